// A head of an encoder in fp32. Each instruction set includes this where its own instructions are allowed, so it
// includes nothing itself and defines nothing that two files could share. The file that includes it has STRIP.
#pragma once

// A packed head: queries [t, D], times scale and log2(e); keys [T / STRIP, D, STRIP]; values [D / STRIP, T, STRIP].
// D is the head's size, filled up to whole strips with zeros; T the positions, filled up to whole blocks.
struct FloatHead {
  int positions, filled, width;  // t, T, D
  float *query, *key, *value;

  FloatHead(uint8_t* packed, int t, int head_dim)
      : positions(t),
        filled((t + BLOCK - 1) / BLOCK * BLOCK),
        width(padded(head_dim)),
        query(reinterpret_cast<float*>(packed)),
        key(query + part()),
        value(key + part()) {}

  explicit FloatHead(const EncoderHead& of) : FloatHead(of.packed, of.positions, of.head_dim) {}

  size_t part() const { return static_cast<size_t>(filled) * width; }
};

size_t head_bytes(int positions, int head_dim) { return 3 * sizeof(float) * FloatHead(nullptr, positions, head_dim).part(); }
