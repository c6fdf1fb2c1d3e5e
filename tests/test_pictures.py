"""Pictures are data: they are kept and brought back, every axis has numbers, one slow bar hides no other."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.results.record.page import Bullets, Code, Figure, Page, Section, Sentence, Table
from profiling.results.record.pictures import Bar, Bars, Curves, DrawnStep, Steps, level
from reports.drawing import draw
from reports.drawing.axes import round_numbers

STEPS = Steps(["compute"], ["op"], [DrawnStep("a", 9, [[(0, 5, 0, 0)]], [])])
FIGURES = {
    "curves": [Curves("tokens", "ms", {"a": [[1, 2], [2, 3]]}, {"floor": [[1, 1], [2, 1]]})],
    "bars": [Bars("ms", [Bar("a", {"ours": 1.0}, "1 ms", 0.5, "16 bit")])],
    "steps": STEPS,
}


@pytest.mark.parametrize("kind", FIGURES)
def test_a_page_is_brought_back_from_a_record_as_it_was(kind: str) -> None:
    figure = Figure(kind, "caption", FIGURES[kind], "what it shows")
    blocks = [Sentence("s"), Bullets(["b"]), Code("c"), Table(["x"], [["y"]], 1, "t"), figure]
    page = Page("title", [Section("first", blocks), Section("second", [], detail=True)])
    assert msgspec.json.decode(msgspec.json.encode(page), type=Page) == page


@pytest.mark.parametrize("name", ["", "../../x", "A", "a.b", "a b"])
def test_a_figure_is_never_written_elsewhere(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be named"):
        Figure(name, "", STEPS)


@settings(max_examples=300)
@given(st.floats(1e-6, 1e6), st.floats(1.02, 1e6))
def test_a_logarithmic_axis_has_numbers_however_short_or_long_it_is(low: float, ratio: float) -> None:
    ticks = round_numbers(low, low * ratio)
    assert 2 <= len(ticks) <= 8 and ticks == sorted(set(ticks))
    assert all(low <= tick <= low * ratio for tick in ticks)


@pytest.mark.parametrize("log_y", [True, False])
@pytest.mark.parametrize("high", [16.4, 21.0, 4000.0])
def test_every_axis_has_numbers(high: float, log_y: bool) -> None:
    figure = draw([Curves("tokens", "ms", {"a": [[10, 16.0], [1000, high]]}, log_y=log_y)])
    (axes,) = figure.axes
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        texts = [
            t for t in axis.get_major_ticks() if limits[0] <= t.get_loc() <= limits[1] and t.label1.get_text()
        ]
        assert len(texts) >= 2


def test_one_slow_engine_does_not_hide_what_the_others_take() -> None:
    lengths = [10.0, 12.0, 20.0, 30.0, 235.0]
    bars = [Bar(f"engine {n}", {"others": length}, f"{length:.1f} ms") for n, length in enumerate(lengths)]
    (axes,) = draw([Bars("ms", bars)]).axes
    low, high = axes.get_xlim()
    assert low == 0 and 30 < high < 80
    assert "235.0 ms" in [text.get_text().strip() for text in axes.texts]
    (even,) = draw([Bars("ms", bars[:4])]).axes
    assert even.get_xlim()[1] > 30 and not even.lines  # nothing is cut: no strokes


def test_a_long_interval_is_cut_before_the_words() -> None:
    """It ends where its axis does, with an arrow, and the words stand behind it."""
    bars = [Bar(f"step {n}", {"ms": 1.0}, "1.0 not seen", 1.0, interval=(0.9, 1.1)) for n in range(4)]
    bars.append(Bar("wide", {"ms": 1.0}, "1.0 not seen", 1.0, interval=(0.2, 40.0)))
    (axes,) = draw([Bars("after / before", bars)]).axes
    (words,) = [text for text in axes.texts if text.get_position()[1] == 4]
    drawn = [line for line in axes.lines if set(line.get_ydata()) == {4}]
    reach = max(float(max(line.get_xdata())) for line in drawn)
    assert 1.1 < reach <= words.get_position()[0] < axes.get_xlim()[1]
    assert ">" in [line.get_marker() for line in drawn]


def test_each_name_looks_the_same_in_every_panel() -> None:
    a, b = [[1, 2], [2, 3]], [[1, 5], [2, 6]]
    left, right = draw([Curves("x", "y", {"a": a, "b": b}), Curves("x", "y", {"a": [], "b": b})]).axes
    assert left.lines[1].get_color() == right.lines[0].get_color() != left.lines[0].get_color()


def test_many_panels_share_a_key() -> None:
    panels = [
        Curves("x", "y", {"step": [[1, n], [2, n + 1]]}, {"floor": level([1, 2], n)}) for n in (1, 2, 3)
    ]
    figure = draw(panels)
    assert len([axes for axes in figure.axes if axes.get_visible()]) == 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["step", "floor"]
