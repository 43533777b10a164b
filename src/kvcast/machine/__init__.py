"""How fast this machine and its devices are, and processes that have it to themselves.

For `kvcast inspect cost` and `kvcast bench`; knows no model.
"""
