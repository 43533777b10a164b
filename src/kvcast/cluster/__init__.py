"""Many machines, through Ray: the work of a command spread over a cluster.

Ray is imported here alone, and only when a command asks for it.
"""
