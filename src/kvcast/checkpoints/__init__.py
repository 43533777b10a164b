"""Files to weights: readers that give every checkpoint kvcast's canonical names.

`source.locate` finds the folder, `source.fingerprint` names its contents without reading tensors,
`source.open_checkpoint` reads it. Knows nothing of torch, models or runtimes.
"""
