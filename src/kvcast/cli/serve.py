"""`kvcast serve MODEL [MODEL…]`: opens models, and offers them over HTTP."""

import argparse
import functools
import json
import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from kvcast.cli import console
from kvcast.cli.arguments import Parser, add_options, filled, headings, keywords
from kvcast.cli.console import Progress, progress
from kvcast.cli.opening import for_actor, opened
from kvcast.cluster.params import ANY, CLUSTER, ReplicaParams, replica_range
from kvcast.errors import KvcastError, UsageError
from kvcast.loading.params import LOADING, LoadParams
from kvcast.server.params import ACCESS, ADDRESS, ENGINE, LIMITS, LOGS, ServeParams

if TYPE_CHECKING:
    from kvcast.engine import Engine
    from kvcast.server.model_registry import Models

KEY_VARIABLE = "KVCAST_API_KEY"

EPILOG = """\
Options may be spelled with hyphens or underscores. Each model has its folder's or file's name, or
an --alias. SIGTERM lets running requests end within --drain seconds; a second one does not.

exit codes:
  0    ended by SIGTERM or Ctrl-C
  1    error
  2    wrong usage
  66   input missing
  74   a model cannot be read, or the address cannot be listened at
  130  ended at once by a second Ctrl-C
  143  ended at once by a second SIGTERM
"""


_AUTO = "auto"
_TASKS: tuple[Literal["transcribe", "generate"], ...] = ("transcribe", "generate")


BRIEF = (
    *("models", "alias", "host", "port", "api_key", "rows"),
    *("cache_memory", "threads", "quantize", "log_json", "quiet"),
)
EXAMPLES = """\
  kvcast serve
  kvcast serve large-v3-turbo qwen3:0.6b --alias auto --port 8080
"""


def add_arguments(parser: Parser) -> None:
    parser.epilog, parser.brief, parser.examples = EPILOG, BRIEF, EXAMPLES
    parser.add_argument(
        "models",
        nargs="*",
        type=filled,
        metavar="MODEL",
        help="as --model of the other commands: a bundle, a folder, a GGUF file, a hub id, a usual "
        "name, demo, demo-base, demo-chat, demo-t5 or demo-unilm (default: of speech and of text "
        "the one that is here)",
    )
    under = headings(parser, ADDRESS, LOADING, ENGINE, LIMITS, ACCESS, LOGS, CLUSTER)
    under[ADDRESS].add_argument(
        "--alias",
        action="append",
        default=[],
        type=_alias,
        metavar="NAME=MODEL",
        help="another name for a model, such as whisper-1=demo; may be repeated; auto gives "
        "OpenAI's usual names, such as whisper-1 and gpt-4o-mini, to the first model of their kind",
    )
    add_options(under, ServeParams)
    add_options(under, LoadParams)
    under[CLUSTER].add_argument(
        "--ray",
        nargs="?",
        const=ANY,
        type=filled,
        metavar="ADDRESS",
        help="serve from this Ray cluster: HOST:PORT, auto for the one of this machine, local for "
        "one of this machine alone; without ADDRESS auto, or local if there is none; needs "
        "kvcast[ray] (default: from here)",
    )
    add_options(under, ReplicaParams)
    under[LOGS].add_argument(
        "--quiet", "-q", action="store_true", help="no progress while models are opened"
    )


def _alias(word: str) -> tuple[str, str]:
    name, _, model = word.partition("=")
    if word != _AUTO and not (name and model):
        raise argparse.ArgumentTypeError(f"must be NAME=MODEL or {_AUTO}, not {word!r}")
    return name, model


def run(args: argparse.Namespace) -> int:
    params = ServeParams(**keywords(args, ServeParams))
    replicas = ReplicaParams(**keywords(args, ReplicaParams)).replicas
    if args.ray is None and replicas != ReplicaParams.replicas:
        raise UsageError("--replicas is for a cluster: add --ray")
    args.models = args.models or _models_here()
    if args.adapter and len(args.models) > 1:
        raise UsageError("--adapter is for one model: export it with its adapters, and serve that")
    if not params.keys and (key := os.environ.get(KEY_VARIABLE)):
        params = replace(params, api_key=key)
    try:
        from kvcast.server import metrics, uvicorn_server
    except ImportError as error:
        raise KvcastError(f"the server needs {error.name}: pip install 'kvcast[server]'") from None
    if args.ray is not None:
        return _serve_from_cluster(args, params, replica_range(replicas))
    metrics.install(as_json=params.log_json)
    listening = uvicorn_server.bound(params)
    try:
        models = _opened(args, params)
    except BaseException:
        listening.close()
        raise
    host, port = listening.getsockname()[:2]
    lines = _greeting(models.names, host, port)
    if not args.quiet and not params.log_json:
        lines += _first_steps(models, params, lines[0].rpartition(" ")[2], args.threads)

    def greet() -> None:
        for line in lines:
            metrics.note(line) if params.log_json else console.say(line)

    uvicorn_server.run(models, params, listening, greet)
    return 0


def _models_here() -> list[str]:
    from kvcast.loading.local_models import default_model

    if names := [name for task in _TASKS if (name := default_model(task)) is not None]:
        return names
    raise UsageError("no model is here: name one, or download one with kvcast pull base")


def _greeting(names: Iterable[str], host: str, port: int) -> list[str]:
    shown = f"[{host}]" if ":" in host else host
    return [f"serving {', '.join(names)} at http://{shown}:{port}"]


def _first_steps(
    models: "Models", params: ServeParams, address: str, threads: int | None
) -> list[str]:
    """Return where the page, the documentation and the API are, a request, and what is reserved."""
    from kvcast.machine.resources import available_cores

    key = f' -H "authorization: Bearer ${KEY_VARIABLE}"' if params.keys else ""
    reserved = console.readable_size(sum(each.status().cache_bytes for each in models.engines))
    return [
        f"page {address}/, documentation {address}/docs, OpenAI base URL {address}/v1",
        f"try: {_request(models, address)}{key}",
        f"{threads or available_cores()} threads, at most {reserved} for caches",
    ]


def _request(models: "Models", address: str) -> str:
    """Return a request to the first model, if possible of chat, as a line for a shell."""
    from kvcast.server.model_registry import CHAT, COMPLETION, EMBEDDING, RERANKING, SPEECH

    served = min(models, key=lambda each: each.kind != CHAT)
    path, words = {
        SPEECH: ("audio/transcriptions", f"-F file=@talk.mp3 -F model={served.name}"),
        EMBEDDING: ("embeddings", _json(model=served.name, input="Hello")),
        RERANKING: ("rerank", _json(model=served.name, query="Hello", documents=["Good day"])),
        COMPLETION: ("completions", _json(model=served.name, prompt="Once upon a time")),
    }.get(served.kind, ("chat/completions", _json(model=served.name, messages=[_HELLO])))
    return f"curl {address}/v1/{path} {words}"


_HELLO = {"role": "user", "content": "Hello"}


def _json(**body: Any) -> str:
    return f"-H 'content-type: application/json' -d {shlex.quote(json.dumps(body))}"


def _serve_from_cluster(
    args: argparse.Namespace, params: ServeParams, replicas: tuple[int, int]
) -> int:
    from kvcast.cluster import serving

    names = chain.from_iterable(_names(args.models, args.alias).values())
    if params.port == 0:
        raise UsageError("--port 0 is for one machine: with --ray, give a port")
    own = for_actor(args)
    serving.serve(
        functools.partial(_opened, own, params),
        params,
        address=None if args.ray == ANY else args.ray,
        replicas=replicas,
        cores=own.threads,
        started=lambda: console.say(*_greeting(names, params.host, params.port)),
    )
    return 0


def _opened(args: argparse.Namespace, params: ServeParams) -> "Models":
    from kvcast.engine import Engine
    from kvcast.server.model_registry import Models, Opener, Served, kind_of, with_usual_names

    names = _names(args.models, args.alias)
    watcher = progress(quiet=args.quiet)
    served: list[Served] = []
    openers: dict[Engine, Opener] = {}

    def engine_of(model: str, watcher: Progress, before: Sequence[Engine]) -> Engine:
        with watcher.waiting(f"loading {model}") as on_phase:
            loaded = opened(model, args, on_phase).model
        return Engine(
            loaded,
            rows=params.rows,
            cache_memory=_cache_memory(params, before),
            queue=params.queue,
            chunk=params.chunk,
        )

    for model, called in names.items():
        engine = engine_of(model, watcher, [each.engine for each in served])
        openers[engine] = functools.partial(engine_of, model, progress(quiet=True))
        kind = kind_of(engine.model)
        served += [Served(name=name, engine=engine, kind=kind) for name in called]
    if (_AUTO, "") in args.alias:
        served = with_usual_names(served)
    return Models(served, openers)


def _cache_memory(params: ServeParams, before: Sequence["Engine"]) -> int:
    from kvcast.engine import share_of_memory

    megabytes = params.cache_memory
    return share_of_memory(before) if megabytes is None else megabytes << 20


def _names(models: list[str], aliases: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Return each model's names; raises UsageError for names that are not clear."""
    names = {model: [_name(model)] for model in models}
    if len(names) < len(models):
        raise UsageError("a model is named twice: name it once, and give it an --alias")
    for alias, model in aliases:
        if not model:
            continue  # `_AUTO` needs the models' kinds
        owner = next((key for key, called in names.items() if model in (key, called[0])), None)
        if owner is None:
            raise UsageError(f"--alias {alias}={model}: {model} is not one of the models")
        names[owner].append(alias)
    every = [name for called in names.values() for name in called]
    if twice := [name for name in every if every.count(name) > 1]:
        raise UsageError(f"two models have the name {twice[0]}: give other folders or aliases")
    return names


def _name(model: str) -> str:
    """Return a model's name: a hub id unchanged, or the last part of a path, without .gguf."""
    if os.path.exists(model):  # noqa: PTH110 - a hub id is no path
        name = os.path.basename(os.path.abspath(model))  # noqa: PTH100, PTH119
        return name.removesuffix(".gguf") or name
    return model
