"""The cause of differing results: which tensor, which layer, from which position on."""
