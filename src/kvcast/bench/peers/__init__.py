"""The programs that kvcast is compared with, one file each.

A peer is added with a class that extends `kvcast.bench.backend.Backend` and a row in `table`.
"""
