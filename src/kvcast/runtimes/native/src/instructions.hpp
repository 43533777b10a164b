// The structs and enums of instructions.def.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kvcast {

#define VALUE(NAME, NUMBER) NAME = NUMBER,
#define ENUM(NAME, VALUES) enum class NAME : int32_t { VALUES };
#define STRUCT(NAME, FIELDS)
#define INSTRUCTION(CODE, NAME, FIELDS)
#include "instructions.def"
#undef VALUE
#undef ENUM
#undef STRUCT

constexpr int DIMS = 4;  // of arrays, at most
using Dims = int64_t[DIMS];
using Axes = int64_t[3];

#define FIELD(TYPE, NAME) TYPE NAME;
#define ENUM(NAME, VALUES)
#define STRUCT(NAME, FIELDS) struct NAME { FIELDS };
#include "instructions.def"
#undef STRUCT
#undef INSTRUCTION

constexpr int MOST_ARRAYS = 3;

// The most arrays that an operation takes.
struct Arrays {
  int count;
  Array items[MOST_ARRAYS];
};

#define STRUCT(NAME, FIELDS)
#define INSTRUCTION(CODE, NAME, FIELDS) struct NAME { FIELDS };
#include "instructions.def"
#undef FIELD
#undef ENUM
#undef STRUCT
#undef INSTRUCTION

}  // namespace kvcast
