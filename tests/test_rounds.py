"""One loop measures: everything once a round, in an order that is stored; what fails leaves as a whole."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.measure.visits import in_rounds


@dataclass(frozen=True)
class Noted:
    """A visit that notes its turns, and fails in one round if it is told to."""

    subject: str
    name: str
    rounds: int
    turns: list[tuple[int, str]]
    fails_in: int = -1

    def __call__(self, number: int) -> None:
        if number == self.fails_in:
            raise RuntimeError(self.name)
        self.turns.append((number, self.name))


def run(visits: list[Noted], entropy: int, numbers: range, failed: list[str]) -> list[float]:
    return list(in_rounds(visits, entropy, numbers, lambda subject, error: failed.append(subject)))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(0, 3), st.integers(0, 2**40))
def test_each_is_visited_once_in_each_of_its_rounds(limits: list[int], first: int, entropy: int) -> None:
    turns: list[tuple[int, str]] = []
    visits = [Noted(str(n), str(n), limit, turns) for n, limit in enumerate(limits)]
    done = run(visits, entropy, range(first, 4), [])
    expected = [(r, str(n)) for r in range(first, 4) for n, limit in enumerate(limits) if r < limit]
    assert sorted(turns) == sorted(expected) and len(done) == len(turns)
    assert [int(d) for d in done if d.is_integer()] == sorted({r + 1 for r, _ in turns})


def test_the_order_is_the_entropys() -> None:
    orders = []
    for entropy in (1, 1, 2):
        turns: list[tuple[int, str]] = []
        run([Noted(str(n), str(n), 3, turns) for n in range(6)], entropy, range(3), [])
        orders.append(turns)
    assert orders[0] == orders[1] != orders[2]
    rounds = [[name for number, name in orders[0] if number == r] for r in range(3)]
    assert len({tuple(order) for order in rounds}) > 1


def test_what_fails_leaves_with_all_visits_of_its_subject() -> None:
    turns: list[tuple[int, str]] = []
    failed: list[str] = []
    visits = [
        Noted("a", "a", 5, turns),
        Noted("a", "a again", 5, turns),
        Noted("b", "b", 5, turns, fails_in=2),
    ]
    run(visits, 7, range(5), failed)
    assert failed == ["b"] and max(n for n, name in turns if name == "b") == 1
    assert [n for n, name in turns if name == "a again"] == list(range(5))
    run([Noted("a", "a", 1, turns), Noted("a", "broken", 1, turns, 0)], 7, range(1), failed)
    assert failed == ["b", "a"]


class Stopping(Noted):
    def __call__(self, number: int) -> None:
        raise KeyboardInterrupt


def test_an_interruption_is_no_failure() -> None:
    with pytest.raises(KeyboardInterrupt):
        list(in_rounds([Stopping("a", "a", 1, [])], 1, range(1), lambda subject, error: pytest.fail("told")))
