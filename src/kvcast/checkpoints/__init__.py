"""Readers of checkpoint formats, which give all tensors kvcast's canonical names.

`source.locate` finds a model's files, `source.fingerprint` hashes them without reading tensors, and
`source.open_checkpoint` reads them.
"""
