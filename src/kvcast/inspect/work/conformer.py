"""Work of an encoder that attends and convolves. Knows neither bytes nor rates, and no decoder."""

from kvcast.families.conformer import Conformer
from kvcast.inspect.work.base import Work


def encoding(of: Conformer, inputs: int, weights: int) -> Work:
    """Return the work of encoding the longest sounds; `weights` are those of the encoder."""
    t, width = of.positions, of.width
    # Query, key, value and output, the convolution's three, two feed-forwards; keys of distances.
    matrices = of.layers * (7 * width * width + 4 * width * of.inner)
    distances = of.layers * width * width
    halved = sum((t << i) * (of.n_mels >> of.halvings << i) for i in range(of.halvings))
    mixed = sum((t << i) * (of.n_mels >> of.halvings << i) for i in range(of.halvings - 1))
    convolved = (
        9 * of.channels * halved + of.channels**2 * mixed + of.layers * of.kernel * t * width
    )
    return Work(
        encoder=2 * inputs * t * matrices + 2 * 2 * t * distances,
        # Products with keys, with distances, and of values.
        encoder_attention=2 * inputs * (3 * of.layers * t * t * width + convolved),
        weights=weights,
        encoder_matrices=matrices + distances,
    )
