"""Work of the encoders of decoders that hear, each for the longest input of its kind.

Knows neither bytes nor rates, and no decoder.
"""

from functools import singledispatch
from typing import NamedTuple

from kvcast.families.audio_encoder import MOST_FRAMES, AudioEncoder
from kvcast.families.block_conformer import MOST_FRAMES as MOST_PAIRS
from kvcast.families.block_conformer import BlockConformer
from kvcast.families.causal_encoder import CausalEncoder
from kvcast.families.sound_encoder import SoundEncoder


class Encoding(NamedTuple):
    """Operations of products with matrices, of all else, and numbers of the matrices."""

    products: int
    others: int
    matrices: int


@singledispatch
def counted(encoder: SoundEncoder) -> Encoding:
    """Return the work of encoding one input."""
    raise TypeError(f"nobody has counted the work of {type(encoder).__name__}")


@counted.register
def _(audio: AudioEncoder) -> Encoding:
    positions = audio.positions * audio.joined
    layers = audio.layers * (4 * audio.width**2 + 2 * audio.width * audio.inner)
    projector = audio.projected * (audio.joined * audio.width + audio.output)
    seen = positions
    if audio.chunk:
        windows = MOST_FRAMES // audio.window or 1
        seen = positions // windows
    attention = 2 * 2 * audio.layers * positions * seen * audio.width
    products = 2 * (positions * layers + audio.positions * projector)
    return Encoding(products, attention + _convolutions(audio), layers + projector)


def _convolutions(audio: AudioEncoder) -> int:
    """Return the operations of the layers before attention."""
    frames = MOST_FRAMES
    if not audio.chunk:
        return 2 * 3 * (frames * audio.n_mels * audio.width + frames // 2 * audio.width**2)
    operations, bands, before = 0, audio.n_mels, 1
    for _ in range(3):
        frames, bands = (frames + 1) // 2, (bands + 1) // 2
        operations += 2 * 9 * frames * bands * before * audio.channels
        before = audio.channels
    return operations + 2 * frames * bands * audio.channels * audio.width


@counted.register
def _(of: BlockConformer) -> Encoding:
    frames, mixed, queried = MOST_PAIRS, of.heads * of.head_dim, of.projector
    windows = of.positions // of.queries
    # Two feed-forwards; query, key, value and output; the convolution's three.
    layer = of.width * (4 * of.inner + 4 * mixed + 3 * of.channels)
    other = of.width * of.n_mels + 2 * of.characters * of.width * (of.layers > 1)
    crossings = -(-queried.layers // queried.crossing)
    asked = queried.layers * queried.width * (4 * queried.width + 2 * queried.inner)
    asked += crossings * 2 * queried.width**2
    held = crossings * 2 * queried.width * of.width
    last = queried.width * of.output
    products = frames * (of.layers * layer + other) + of.positions * (asked + last)
    products += windows * of.window * held
    # Products with keys, with distances, and of values.
    attention = 3 * of.layers * frames * min(of.block, frames) * mixed
    attention += (
        2
        * windows
        * of.queries
        * queried.width
        * (queried.layers * of.queries + crossings * of.window)
    )
    convolved = of.layers * frames * of.kernel * of.channels
    matrices = of.layers * layer + other + asked + held + last
    return Encoding(2 * products, 2 * (attention + convolved), matrices)


@counted.register
def _(of: CausalEncoder) -> Encoding:
    frames = of.positions * of.each
    positions, mixed = of.positions * of.joined, of.heads * of.head_dim
    layer = of.width * (4 * mixed + 3 * of.inner)
    projector = of.output * (of.joined * of.width + of.output)
    products = positions * of.layers * layer + of.positions * projector
    seen = min(of.window, positions)
    pairs = positions * seen - seen * (seen - 1) // 2
    convolved = 3 * (frames * of.n_mels * of.width + positions * of.width**2)
    attention = 2 * of.layers * pairs * mixed
    return Encoding(2 * products, 2 * (attention + convolved), of.layers * layer + projector)
