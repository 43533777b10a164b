"""kvcast's own kernels in C++, and the interpreter that runs whole programs of them.

A family writes its programs. `bundles` takes them, and `weights` packs their matrices in tiles of
64 outputs in the ISA's layout, a tied table once, in huge pages: from a bundle, which is the same
for every processor, or from a checkpoint's mapped files (`src/packing.cpp`). `quantize` chooses
each matrix's precision; GGUF tensors of 4 to 8 bits keep their codes by default, in separate
formats (`src/instructions.def`), and a matrix whose parts differ is multiplied part by part.
`interpreter` plans a call: with all sizes known, views are only strides, each op emits opcodes with
addresses, and intermediate results share one arena. Plans of steps are kept with the cache, so a
step writes its tokens and makes one call, in which `src/program.cpp` runs the opcodes in sequence.
Threads claim tiles dynamically, spin for some microseconds between opcodes, and then sleep.

- A row's results are bit-identical for any batch, chunk or number of threads: activations are
  quantized per row in blocks, sums have a fixed order, and attention sums parts of 256 positions,
  merged in order.
- `src/kernels.hpp` declares the kernels of an ISA: AVX-512 (VNNI, BF16 if present; AMX for more
  than six rows), AVX2, NEON, and plain C++, the reference. Integer GEMMs give the same bits on all
  of them. NEON is tested under qemu, and its speed has not been measured; AVX2's VNNI has run in
  AVX-512's encoding only.
- Quantized encoders quantize queries and keys to int8 with a scale per position, after subtracting
  the keys' mean, which does not change the softmax. With `--quantize none`, and without AVX-512,
  attention is fp32.
- Experts are one opcode, which chooses each token's experts, sorts tokens by expert, and multiplies
  an expert's tokens together, reading only chosen experts. The router stays fp32.
- Caches are fp32, fp16 (by default in quantized bundles), or int8 with a scale for each position of
  a head, whose four bytes follow the codes, so copies and truncation need no special case.
- A chunk that would evict positions its first queries attend to is written position by position.
"""
