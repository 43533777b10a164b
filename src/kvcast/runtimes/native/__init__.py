"""kvcast's own kernels in C++, and the interpreter that runs whole programs of them."""
