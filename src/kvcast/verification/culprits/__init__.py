"""What is wrong with a model whose results differ: which tensor, which layer, from where on."""
