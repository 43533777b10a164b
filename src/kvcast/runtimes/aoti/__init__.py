"""AOTInductor: how programs are compiled, and how packages run."""
