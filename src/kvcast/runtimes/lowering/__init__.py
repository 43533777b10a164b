"""Lowers programs to the graphs and packages of each runtime, and quantizes them."""
