"""What Ray hears of a replica's health."""

import asyncio
from pathlib import Path

import pytest

from kit.tiny_gguf import tiny_llama
from kvcast.cluster.serving import Replica
from kvcast.engine import Engine
from kvcast.errors import KvcastError
from kvcast.loading.opening import open_model
from kvcast.loading.params import LoadParams
from kvcast.server.model_registry import Models, Served, kind_of


def test_a_replica_is_well_as_long_as_its_engines_take_requests(tmp_path: Path):
    path = tiny_llama(tmp_path / "tiny.gguf")
    opened = open_model(path, LoadParams(runtime="native", quantize="none", threads=1))
    engine = Engine(opened.model, rows=1)
    replica = Replica.__new__(Replica)
    replica._models = Models([Served(name="tiny", engine=engine, kind=kind_of(opened.model))])
    asyncio.run(replica.check_health())
    assert engine.status().finished == {}
    engine.close()
    with pytest.raises(KvcastError, match="closed"):
        asyncio.run(replica.check_health())
