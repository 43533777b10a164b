"""kvcast's own kernels in C++, and the interpreter that runs whole programs of them.

A family writes its programs. `opening` takes them, and `weights` packs their matrices in tiles of
64 outputs, as the processor's instructions want them, a tied table once, in huge pages: from a
bundle, which `lowering` wrote and which is the same for every processor, or from where a
checkpoint's rows lie in its files (`src/packing.cpp`). `quantize` chooses each matrix's precision;
what GGUF files hold in 4 to 8 bits stays in these codes by default, in formats of their own
(`src/instructions.def`), and a matrix whose parts differ is multiplied part by part.
`planning` plans a call: with all sizes known, views are only strides, each operation emits
instructions with addresses, and intermediate results share one arena. Plans of steps are kept with
the cache, so a step writes its tokens and makes one call, in which `src/program.cpp` runs
instructions in sequence. Threads claim tiles as they come, spin for some microseconds between
instructions, and then sleep.

- A row's results do not depend on its neighbours, bit for bit, whatever the batch, the chunk or the
  number of threads: activations are rounded per row in blocks, sums have a fixed order, and
  attention sums parts of 256 positions, merged in order.
- `src/kernels.hpp` declares what an instruction set brings: AVX-512 (VNNI, BF16 where there; AMX
  for more than six rows), AVX2, NEON, and plain C++, which the others are compared with. Products
  of codes give the same bits on all of them. NEON is tested under qemu, and its speed has
  not been measured; AVX2's VNNI has run in AVX-512's encoding only.
- Quantised encoders round queries and keys to int8 with a scale a position, less what all keys have
  in common, which changes no softmax. With `--quantize none`, and without AVX-512, attention is
  fp32.
- Experts are one instruction: it chooses each token's, sorts tokens by expert, and multiplies those
  that share one together. An expert that no token chose is not read. The router stays fp32.
- Caches are fp32, fp16 (by default in quantised bundles), or int8 with a scale for each position of
  a head, whose four bytes follow the codes, so whatever copies, forks or cuts rows need not know.
- A ring's chunk that displaces what its first positions see is written and read position by
  position.
"""
