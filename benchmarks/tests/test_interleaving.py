"""Who does what when, with players that only follow a script."""

from collections.abc import Callable, Mapping
from typing import Any

from kvcast.errors import KvcastError
from kvcast_bench.turns import take_turns


class Stage:
    def __init__(self, settles: bool = True) -> None:
        self.events: list[str] = []
        self.settles = settles

    def settle(self) -> bool:
        self.events.append("settle")
        return self.settles

    def watch(self, turn: Callable[[], Mapping[str, Any]]) -> tuple[Mapping[str, Any], float]:
        return turn(), 0.25


class Scripted:
    """Takes the given seconds in turn; None is a failure."""

    def __init__(self, stage: Stage, name: str, *seconds: float | None) -> None:
        self.stage, self.name, self.seconds = stage, name, list(seconds)

    def __call__(self) -> Mapping[str, Any]:
        self.stage.events.append(self.name)
        seconds = self.seconds.pop(0)
        if seconds is None:
            raise KvcastError("out of breath")
        return {"seconds": seconds, "text": f"{seconds}", "peak_bytes": round(10 * seconds)}


def test_everybody_takes_turns_and_all_is_quiet_before_each():
    stage = Stage()
    players = {name: Scripted(stage, name, 1, 2, 3) for name in "abc"}
    take_turns(players, stage, runs=2, label="beam 5")
    assert stage.events == ["settle", "a", "settle", "b", "settle", "c"] * 3


def test_the_warm_up_does_not_count():
    stage = Stage()
    players = {"a": Scripted(stage, "a", 100, 3, 1, 2)}
    result = take_turns(players, stage, runs=3, label="beam 5")["a"]
    assert result.series("seconds") == [3, 1, 2]
    assert result.others == [0.25] * 3
    assert (result.last["text"], result.last["peak_bytes"]) == ("2", 20)


def test_who_fails_has_no_more_turns_and_the_others_go_on():
    stage = Stage()
    players = {"a": Scripted(stage, "a", 1, None), "b": Scripted(stage, "b", 1, 1, 1)}
    results = take_turns(players, stage, runs=2, label="beam 5")
    assert [event for event in stage.events if event != "settle"] == ["a", "b", "a", "b", "b"]
    assert results["a"].failure == "out of breath"
    assert not results["a"].stands
    assert results["b"].stands
    assert results["b"].series("seconds") == [1, 1]


def test_turns_that_began_before_all_was_quiet_are_counted():
    stage = Stage(settles=False)
    players = {"a": Scripted(stage, "a", 1, 1, 1)}
    assert take_turns(players, stage, runs=2, label="beam 5")["a"].unsettled == 2
