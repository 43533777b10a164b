"""Checks of a model with a cache, by their names, in the order in which they are made."""

from collections.abc import Mapping

from kvcast.verification.checks import caches, reference, rows
from kvcast.verification.trial import CheckOf

CHECKS: Mapping[str, CheckOf] = {
    "dimensions": reference.dimensions,
    "weights": reference.weights,
    "programs": reference.programs,
    "teacher-forced": reference.teacher_forced,
    "free-running": reference.free_running,
    "layers": reference.layers,
    "recorded": reference.recorded,
    "chunks": rows.chunks,
    "second-input": rows.second_input,
    "batch": rows.batch,
    "rows-come-and-go": rows.rows_come_and_go,
    "capacity": rows.capacity,
    "window": rows.window,
    "beams": caches.beams,
    "prefix": caches.prefix,
    "truncate": caches.truncate,
    "alignment": reference.alignment,
    "memory": caches.memory,
    "copies": caches.copies,
}
"""Each takes a trial, and raises nothing of its own where a model is wrong."""
