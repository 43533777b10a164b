// Shared by the parts of the AMX instruction set.
#pragma once
#include "amx/tiles.hpp"
#include "avx512/vec.hpp"
#if defined(KVCAST_AMX)

namespace kvcast {

extern const Gemm amx_gemm;
extern const EncoderAttention amx_encoder_attention;
extern const PromptAttention amx_prompt_attention;

}  // namespace kvcast
#endif
