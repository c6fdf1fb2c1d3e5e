"""Steps in alternation: balanced blocks, one estimate each, looks that share the error, traces by share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from profiling.measure import duel as ring_module
from profiling.measure.clock import Clock
from profiling.measure.duel import Plan, Ring, contrasts, fight, profiler_cost_ms, stepping
from profiling.results.duel import LOOKS, MIN_TRACES, Duel, gap_share, next_look, read_of
from profiling.results.record import Counts, DuelBlock, DuelSteps, DuelTrace, Trace


class Steps:
    """A decoder that notes who steps, and fails from some step on."""

    def __init__(self, name: str, noted: list[str], fails_after: int = 10**9) -> None:
        self.name, self.noted, self.left, self.length = name, noted, fails_after, 9

    def rewind(self, n: int) -> None:
        self.length = n

    def advance(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("boom")
        assert self.length == 6, "every step is at the same context"
        self.length += 1
        self.noted.append(self.name)

    def verify(self) -> None:
        pass


def case_of(decoder: Any) -> Any:
    return SimpleNamespace(decoder=decoder, load=lambda n: None, put_back=decoder.rewind)


def ring(noted: list[str], entropy: int = 1, fails: dict[str, int] | None = None) -> tuple[Ring, list[str]]:
    failed: list[str] = []
    decoders = {name: Steps(name, noted, (fails or {}).get(name, 10**9)) for name in "ABC"}
    cases: Any = {name: case_of(decoder) for name, decoder in decoders.items()}
    timed = {name: stepping(case, 6, Clock(torch.device("cpu"))) for name, case in cases.items()}
    return Ring(timed, entropy, lambda name, e: failed.append(name)), failed


PLAN = Plan([("A", "B"), ("A", "A")], [("A", "C")])


def test_each_is_preceded_as_often_by_itself_as_by_the_other() -> None:
    noted: list[str] = []
    for mirrored in [ring(noted)[0].block(("A", "B"), n).mirrored for n in range(8)]:
        five, noted[:] = noted[:5], noted[5:]
        outer, inner = "BA" if mirrored else "AB"
        assert five == [outer, outer, inner, inner, outer]
        before = Counter(zip(five[1:], five, strict=False))
        assert set(before.values()) == {1} and len(before) == 4


def test_the_order_is_drawn_from_the_stored_entropy() -> None:
    orders = []
    for entropy in (1, 1, 2):
        noted: list[str] = []
        fighting, _ = ring(noted, entropy)
        turns = [fighting.turn(PLAN, n) for n in range(12)]
        orders.append(noted)
        assert {b.mirrored for turn in turns for b in turn if b.second == "B"} == {True, False}
        assert [sum(b.second == "C" for b in turn) for turn in turns] == [1, 0, 0, 0] * 3
    assert orders[0] == orders[1] != orders[2]


def test_drift_within_a_block_cancels() -> None:
    straight = DuelBlock("A", "B", False, (10, 13, 14, 13))
    mirrored = DuelBlock("A", "B", True, (12, 11, 12, 15))
    assert straight.means == (11.5, 13.5) and mirrored.means == (11.5, 13.5)


def traced(parts: list[dict[str, float]], profiled_ms: float = 12.0) -> Trace:
    return Trace(
        file="duel.json",
        context=6,
        profiled_ms=[profiled_ms],
        steps_parts_us=parts,
        counts=Counts(0, 0, 0, 1000.0, 0),
        busy_share_of_events=0.2,
    )


def test_it_stops_at_the_look_that_decides_and_traces_are_spread() -> None:
    fighting, _ = ring([])
    duels, asked = [DuelSteps()], []

    def decided() -> bool:
        asked.append(duels[-1].turns)
        return len(asked) == 2

    fight(
        fighting, PLAN, duels[0], 1e6, lambda _: pytest.fail(), duels.append, decided, lambda done, of: None
    )
    assert asked == duels[-1].looks == [40, 80]
    duel = Duel(duels[-1])
    assert duel.count("A", "B") == duel.count("A", "A") == 80 and duel.count("A", "C") == 20
    assert duels[-1].traces == [], "nobody is traced without a gap that decides"


def test_the_end_of_the_time_is_a_look_and_more_time_adds_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, *range(1, 1000)])
    monkeypatch.setattr(ring_module.time, "monotonic", lambda: float(next(times)))
    fighting, _ = ring([])
    duels, trace = [DuelSteps()], traced([{"compute": 1.0}])
    plan = Plan(PLAN.deciding, [], ["A", "B"])

    def beside(name: str) -> DuelTrace:
        return DuelTrace(10.0, None, trace, name)

    for _ in range(2):
        fight(fighting, plan, duels[-1], 5, beside, duels.append, lambda: False, lambda *_: None)
    steps = duels[-1]
    assert steps.turns == steps.looks[-1] > steps.looks[0] > 0
    assert len(steps.blocks) == 2 * steps.turns
    for name in plan.traced:  # no look is judged on fewer, however little time there was
        assert len(Duel(steps).traces(name)) == MIN_TRACES


def test_what_crashes_leaves_and_the_others_go_on() -> None:
    fighting, failed = ring([], fails={"B": 7})
    blocks = [block for n in range(8) for block in fighting.turn(PLAN, n)]
    assert failed == ["B"] and sum(b.second == "A" for b in blocks) == 8
    assert sum(b.second == "B" for b in blocks) < 4


def after(looks: Sequence[int], blocks: Sequence[DuelBlock] = ()) -> Duel:
    return Duel(DuelSteps(looks=list(looks), blocks=list(blocks)))


@pytest.mark.parametrize("looks", [0, 1, 2, 5, 40])
def test_all_looks_together_err_in_five_percent(looks: int) -> None:
    spent = sum(1 - after(list(range(1, k + 1))).confidence for k in range(1, looks + 1))
    assert spent <= 0.05 + 1e-12 and after(LOOKS[:1]).confidence == pytest.approx(0.975)
    assert [next_look(LOOKS[:k]) for k in range(5)] == [40, 80, 160, 320, 640] and next_look([40, 97]) == 160


def test_a_known_drop_is_found_through_drift_and_stalls() -> None:
    rng, blocks = np.random.default_rng(0), []
    for n in range(200):
        speed = 1 + 0.3 * np.sin(n / 9) + 0.01 * np.arange(4)
        order = [0.95, 1, 1, 0.95] if n % 2 else [1, 0.95, 0.95, 1]
        ms = 30 * speed * order * rng.normal(1, 0.03, 4)
        ms[rng.integers(4)] *= 8 if rng.random() < 0.1 else 1
        blocks.append(DuelBlock("A", "B", bool(n % 2), tuple(ms)))
    low, mid, high = after([40], blocks).drop_share("A", "B").interval()
    assert low < 0.05 < high and high - low < 0.02 and abs(mid - 0.05) < 0.006


def test_the_gap_is_freed_of_what_the_profiler_costs() -> None:
    """A step of 6 ms busy and 4 ms gap, 1000 events of 2 us, a fifth of them in busy ops."""
    for speed in (1.0, 2.0):
        parts = {"compute": speed * 6400.0, "python": speed * 5600.0}
        trace = traced([parts, parts, {"compute": 6400.0, "python": 90000.0}])
        assert gap_share(trace, plain_ms=10.0, event_us=2.0) == pytest.approx(0.4)
        assert gap_share(trace, plain_ms=10.0, event_us=None) == pytest.approx(0.4)


def test_the_plan_names_what_decides() -> None:
    plan = contrasts({"cat": "naive", "sdpa": "cat", "tape": "sdpa", "onelaunch": "sdpa"})
    assert plan == Plan(
        [("sdpa", "tape"), ("sdpa", read_of("sdpa")), ("sdpa", "sdpa")],
        [("cat", "sdpa"), ("sdpa", "onelaunch"), ("cat", "onelaunch")],
        ("sdpa",),
    )
    assert contrasts({"cat": "naive", "sdpa": "cat"}) == Plan([("cat", "cat")], [("cat", "sdpa")])
    assert contrasts({"cat": "naive"}) is None


def test_each_trunk_with_a_replay_has_its_own_contrasts() -> None:
    ours = {"cat": "naive", "sdpa": "cat", "tape": "sdpa"}
    plan = contrasts(ours | {"hf": None, "hf-static": "hf", "hf-tape": "hf-static"})
    assert plan is not None and list(plan.traced) == ["sdpa", "hf-static"]
    assert plan.deciding[3:] == [
        ("hf-static", "hf-tape"),
        ("hf-static", read_of("hf-static")),
        ("hf-static", "hf-static"),
    ]
    assert plan.others[0] == ("cat", "hf") and not set(plan.others) & set(plan.deciding)


def test_the_profiler_costs_what_it_adds_to_the_fastest_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stalls only add: one of a minute on either side moves nothing."""
    spans = iter([3.0, 2.0, 60000.0, 5.5, 60000.0, 5.0, 2.5, 9.0, 1.5])

    def each_ms(clock: Clock, action: Callable[[], object], times: int) -> list[float]:
        action()
        return [next(spans)]

    monkeypatch.setattr(Clock, "each_ms", each_ms)
    monkeypatch.setattr(ring_module, "COST_STEPS", 3)
    decoder: Any = Steps("A", [])  # which holds that every step is at the same context
    decoder.model = SimpleNamespace(device=torch.device("cpu"))
    assert profiler_cost_ms(case_of(decoder), 6, Clock(torch.device("cpu"))) == pytest.approx(3.5)
