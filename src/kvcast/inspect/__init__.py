"""`kvcast inspect`: what caching does, drawn and counted, from sizes alone."""
