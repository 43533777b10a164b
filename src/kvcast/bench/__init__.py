"""Measurements of kvcast beside other programs, in one run, on the same input and weights."""
