"""Facts about models that need no tensor library: dimensions, ring arithmetic, rotary angles."""
