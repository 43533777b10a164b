"""From logits to tokens: logits processors, samplers, grammars and speculative decoding."""
