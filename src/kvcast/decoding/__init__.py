"""From logits to tokens: logit filters, samplers, grammars and drafts."""
