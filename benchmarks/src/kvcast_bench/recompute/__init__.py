"""The baseline without a cross-attention cache: a Whisper as most exports have it.

Every call of the decoder takes the encoder's states and projects each layer's cross keys and values
from them. All else is kvcast's: modules, weights, self caches, operators, lowering and loop. A
matrix has the form that it has in the cached programs, so projections have `encode`'s, which is the
one for many tokens; only ExecuTorch's int4 has them in int4, as all of `decode`.
"""
