"""From logits to tokens: one loop, and the strategies and logit filters it is composed of."""
