"""The programs that kvcast is compared with, each behind the same small interface."""

from collections.abc import Mapping

from kvcast.bench.peers.base import Contender
from kvcast.bench.peers.faster import FasterWhisper
from kvcast.bench.peers.openai import OpenAIWhisper
from kvcast.bench.peers.ours import Kvcast
from kvcast.bench.peers.transformers import Transformers
from kvcast.bench.peers.whispercpp import WhisperCppF16, WhisperCppQ8

_ALL: tuple[type[Contender], ...] = (
    Kvcast,
    FasterWhisper,
    WhisperCppQ8,
    WhisperCppF16,
    Transformers,
    OpenAIWhisper,
)

CONTENDERS: Mapping[str, type[Contender]] = {contender.name: contender for contender in _ALL}
PEERS = tuple(name for name in CONTENDERS if name != Kvcast.name)
