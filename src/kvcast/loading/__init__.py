"""Opens models by name or path; exports them, with proof."""
