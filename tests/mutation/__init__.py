"""Damaged files of every format that kvcast opens, and what becomes of whoever opens them.

    PYTHONPATH=tests python -m mutation --cases 2000 --seed 7 manifest pte

makes so many damaged copies of a whole file of each format named (of all formats if none is), opens
each one as a user would, and prints a table of outcomes by format. The same seed makes the same
copies. What should not happen is listed below the table with the numbers of its cases, each of
which `--first N --cases 1` makes again.
"""
