"""The old name of `kvcast.conditional`. Importing it, or `kvcast.export.cross_attention`, warns."""

import sys
import warnings

warnings.warn(
    "kvcast.export is now kvcast.conditional: import from kvcast.conditional.cross_attention",
    DeprecationWarning,
    stacklevel=2,
)

from kvcast.conditional import cross_attention  # noqa: E402 - a warning may be an error

# What `import kvcast.export.cross_attention` finds, as this module is no package.
sys.modules[f"{__name__}.cross_attention"] = cross_attention
