"""`WS /v1/realtime`: OpenAI's realtime protocol, as far as sessions that transcribe go.

Source: the types of the official client, openai/types/realtime. `Realtime` is the way in.
"""

from kvcast.server.realtime.route import Realtime

__all__ = ["Realtime"]
