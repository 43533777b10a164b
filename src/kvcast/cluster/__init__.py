"""Many machines, through Ray, which is imported here alone, and only when a command asks for it."""
