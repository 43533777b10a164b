"""ExecuTorch: how programs are lowered to methods, and how methods run."""
