"""The programs that kvcast is compared with, each behind the same small interface."""

from collections.abc import Callable, Mapping

from kvcast.bench.speech.peers.base import Contender, Task
from kvcast.bench.speech.peers.faster import FasterWhisper
from kvcast.bench.speech.peers.openai import OpenAIWhisper
from kvcast.bench.speech.peers.ours import Kvcast
from kvcast.bench.speech.peers.transformers import Transformers
from kvcast.bench.speech.peers.whispercpp import WhisperCppF16, WhisperCppQ8

CONTENDERS: Mapping[str, Callable[[Task], Contender]] = {
    Kvcast.name: Kvcast,
    FasterWhisper.name: FasterWhisper,
    WhisperCppQ8.name: WhisperCppQ8,
    WhisperCppF16.name: WhisperCppF16,
    Transformers.name: Transformers,
    OpenAIWhisper.name: OpenAIWhisper,
}
PEERS = tuple(name for name in CONTENDERS if name != Kvcast.name)
