"""Published claims about caches, recomputed and measured: `kvcast bench sources`.

One module per claim; each returns tables for docs/sources.md. Counts (operations, copies, slots,
tokens) are separate from timings, so that tests can check them.
"""
