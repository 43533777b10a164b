"""Which heads of a Whisper's decoder follow the speech: words are placed in time by them.

They were found by looking at published models, so files name them, or do not: Hugging Face's
generation_config.json and CTranslate2's config.json have a list. openai-whisper has a table for
OpenAI's own models (`_ALIGNMENT_HEADS` in whisper/__init__.py), which holds here for models of the
same sizes, as fine-tuning keeps heads as they are. Any other model, such as a distilled one, has
no known heads, and `WhisperDimensions` chooses.

A distilled model's files often name its teacher's heads, of layers that it does not have. They mean
nothing for it and are left out.
"""

from collections.abc import Mapping

from kvcast.families.whisper import Heads, WhisperDimensions, head_pairs

# By encoder layers, decoder layers, decoder heads and whether there are many languages.
_OPENAI: Mapping[tuple[int, int, int, bool], Heads] = {
    # tiny.en, tiny
    (4, 4, 6, False): ((1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4)),
    (4, 4, 6, True): ((2, 2), (3, 0), (3, 2), (3, 3), (3, 4), (3, 5)),
    # base.en, base
    (6, 6, 8, False): ((3, 3), (4, 7), (5, 1), (5, 5), (5, 7)),
    (6, 6, 8, True): ((3, 1), (4, 2), (4, 3), (4, 7), (5, 1), (5, 2), (5, 4), (5, 6)),
    # small.en, small
    (12, 12, 12, False): (
        *((6, 6), (7, 0), (7, 3), (7, 8), (8, 2), (8, 5), (8, 7), (9, 0), (9, 4), (9, 8)),
        *((9, 10), (10, 0), (10, 1), (10, 2), (10, 3), (10, 6), (10, 11), (11, 2), (11, 4)),
    ),
    (12, 12, 12, True): (
        *((5, 3), (5, 9), (8, 0), (8, 4), (8, 7), (8, 8), (9, 0), (9, 7), (9, 9), (10, 5)),
    ),
    # medium.en, medium
    (24, 24, 16, False): (
        *((11, 4), (14, 1), (14, 12), (14, 14), (15, 4), (16, 0), (16, 4), (16, 9), (17, 12)),
        *((17, 14), (18, 7), (18, 10), (18, 15), (20, 0), (20, 3), (20, 9), (20, 14), (21, 12)),
    ),
    (24, 24, 16, True): ((13, 15), (15, 4), (15, 15), (16, 1), (20, 0), (23, 4)),
    # large-v3-turbo
    (32, 4, 20, True): ((2, 4), (2, 11), (3, 3), (3, 6), (3, 11), (3, 14)),
}
# The large models have the same layers. The third alone has this many mel bins; of the other two
# only the name tells one from the other.
_LARGE, _LARGE_V3_MELS = (32, 32, 20, True), 128
_LARGE_V3 = (
    *((7, 0), (10, 17), (12, 18), (13, 12), (16, 1), (17, 14), (19, 11), (21, 4), (24, 1)),
    (25, 6),
)
_NAMED_LARGE: Mapping[str, Heads] = {
    "large-v1": (
        *((9, 19), (11, 2), (11, 4), (11, 17), (22, 7), (22, 11), (22, 17), (23, 2), (23, 15)),
    ),
    "large-v2": (
        *((10, 12), (13, 17), (16, 11), (16, 12), (16, 13), (17, 15), (17, 16), (18, 4), (18, 11)),
        *((18, 19), (19, 11), (21, 2), (21, 3), (22, 3), (22, 9), (22, 12), (23, 5), (23, 7)),
        *((23, 13), (25, 5), (26, 1), (26, 12), (27, 15)),
    ),
}


def alignment_heads(dimensions: WhisperDimensions, named: object, model: str = "") -> Heads:
    """Return the heads for a model of these dimensions; none if they are not known.

    Args:
        dimensions: the model's.
        named: the list in its files, [[layer, head], ...]; None without a list.
        model: its name in its files, such as "openai/whisper-large-v2".

    Raises:
        KvcastError: `named` is no list of pairs of numbers.

    """
    listed = () if named is None else head_pairs(named)
    if listed and all(_has(dimensions, layer, head) for layer, head in listed):
        return tuple(dict.fromkeys(listed))
    kind = (
        dimensions.encoder_layers,
        dimensions.decoder_layers,
        dimensions.decoder_heads,
        dimensions.is_multilingual,
    )
    if kind != _LARGE:
        return _OPENAI.get(kind, ())
    if dimensions.n_mels == _LARGE_V3_MELS:
        return _LARGE_V3
    return next((heads for name, heads in _NAMED_LARGE.items() if model.endswith(name)), ())


def _has(dimensions: WhisperDimensions, layer: int, head: int) -> bool:
    return 0 <= layer < dimensions.decoder_layers and 0 <= head < dimensions.decoder_heads
