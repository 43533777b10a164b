// The parts of the plain instruction set.
#pragma once
#include "kernels.hpp"

namespace kvcast {

float activated(Activation, float x);

extern const Gemm plain_gemm;
extern const Rows plain_rows;
extern const Attention plain_attention;
extern const EncoderAttention plain_encoder_attention;
extern const Scores plain_scores;
extern const Reading plain_reading;

}  // namespace kvcast
