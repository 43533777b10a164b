"""Speed and resources of this machine and its devices, and child processes."""
