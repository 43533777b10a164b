"""Speed and resources of this machine and its devices, and child processes.

For `kvcast inspect cost` and `kvcast bench`; independent of models.
"""
