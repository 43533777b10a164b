"""Checks of a model with a cache, by their names, in the order in which they are made."""

from collections.abc import Mapping

from kvcast.verification.checks import beside_reference, continued, lengths, memory, parts, rows
from kvcast.verification.trial import CheckOf

CHECKS: Mapping[str, CheckOf] = {
    "dimensions": parts.dimensions,
    "weights": parts.weights,
    "programs": parts.programs,
    "teacher-forced": beside_reference.teacher_forced,
    "free-running": beside_reference.free_running,
    "layers": parts.layers,
    "recorded": beside_reference.recorded,
    "chunks": rows.chunks,
    "second-input": rows.second_input,
    "batch": rows.batch,
    "rows-come-and-go": rows.rows_come_and_go,
    "capacity": lengths.capacity,
    "window": lengths.window,
    "beams": continued.beams,
    "prefix": continued.prefix,
    "truncate": continued.truncate,
    "alignment": beside_reference.alignment,
    "memory": memory.memory,
    "copies": memory.copies,
}
"""Each takes a trial, and raises nothing of its own where a model is wrong."""
