"""Finds the smallest and fastest precision of a model whose tokens nearly match fp32."""
