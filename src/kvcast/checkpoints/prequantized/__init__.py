"""Pre-quantized folders: the codes, scales and zero points of each matrix become one tensor.

It is read on demand. Integer codes with scales that fp16 holds become blocks of ggml's, whose
kernels multiply with the codes as they are; the rest is dequantized.
"""
