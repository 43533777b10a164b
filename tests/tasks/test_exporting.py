"""What an export tells a caller while it runs, and that it is kept."""

import kvcast


def test_each_phase_of_an_export_is_told_as_it_begins_and_a_model_is_exported_once(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("KVCAST_CACHE", str(tmp_path))
    first, again = [], []
    kvcast.load("demo-t5", threads=1, on_phase=first.append)
    kvcast.load("demo-t5", threads=1, on_phase=again.append)
    assert first == ["reading", "exporting", "quantising", "sealing", "proving"]
    assert again == []
