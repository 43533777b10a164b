// The instruction set that runs everywhere.
#include "plain.hpp"

namespace kvcast {

const Instructions plain = {"plain", [] { return true; }, plain_products, plain_rows, plain_attention, plain_encoder_attention, plain_scores, plain_reading};

}  // namespace kvcast
