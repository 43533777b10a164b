"""How fast this machine is, and processes that have it to themselves.

For `kvcast inspect cost` and `kvcast bench`; knows no model.
"""
