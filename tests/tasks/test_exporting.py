"""What an export tells a caller while it runs."""

import kvcast


def test_each_phase_of_an_export_is_told_as_it_begins(tmp_path):
    phases = []
    kvcast.export_bundle("demo-t5", tmp_path / "bundle", on_phase=phases.append)
    assert phases == ["reading", "exporting", "quantising", "sealing", "proving"]


def test_a_model_that_is_opened_again_is_not_exported_again(tmp_path, monkeypatch):
    monkeypatch.setenv("KVCAST_CACHE", str(tmp_path))
    first, again = [], []
    kvcast.load("demo-t5", threads=1, on_phase=first.append)
    kvcast.load("demo-t5", threads=1, on_phase=again.append)
    assert first[0] == "reading"
    assert again == []
