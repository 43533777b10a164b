"""Claims of published texts about caches, worked again and measured: `kvcast bench sources`.

One module a claim; each returns tables of figures for docs/sources.md. What can be counted
(operations, copies, slots, tokens) is apart from what a clock says, so that tests can check it.
"""
