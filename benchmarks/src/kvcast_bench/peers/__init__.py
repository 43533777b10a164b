"""The programs that kvcast is compared with, in a file for each library.

A peer is added with a class that extends `kvcast_bench.backend.Backend` and a row in `table`. A
process that runs one imports no other's file, which would count as its memory.
"""
