"""How many runs of a state machine the parts of the suite make."""

import pytest

EXAMPLES = [
    8,
    pytest.param(20, marks=pytest.mark.slow),
    pytest.param(400, marks=pytest.mark.soak),
]
EXAMPLES_OF_INT8 = [
    4,
    pytest.param(15, marks=pytest.mark.slow),
    pytest.param(300, marks=pytest.mark.soak),
]
