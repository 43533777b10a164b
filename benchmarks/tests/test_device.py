"""What torch's devices are asked, on the one that every machine has."""

import torch

from kvcast_bench.machine import device_facts, memory_rates, seconds_of


def test_a_processor_has_a_name_and_no_facts_of_cuda():
    unknown = dict.fromkeys(("capability", "memory_bytes", "driver", "cuda"))
    assert device_facts("cpu") == {"name": "cpu", **unknown}


def test_work_is_done_once_and_timed():
    total = torch.zeros(())
    assert seconds_of(lambda: total.add_(1), "cpu") > 0
    assert total == 1


def test_memory_is_copied_and_read():
    rates = memory_rates("cpu", 2**16)
    assert list(rates) == ["copy", "read"]
    assert min(rates.values()) > 0
