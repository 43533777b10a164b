"""Text generation: prompts become requests, and tokens become text."""
