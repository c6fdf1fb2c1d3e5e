"""The report's curves stay readable with many rungs: every name beside its curve's end, none over another."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.text import Text

from profiling.results.record.pictures import Curves
from reports.drawing import draw
from reports.drawing.curves import spread

CURVES = {"naive": [(10, 150.0), (1000, 3000.0)]} | {
    f"onelaunch-rung{n}": [(10, 45 + n / 50), (1000, 48 - n / 40)] for n in range(20)
}


def names_from_the_top(figure: Figure) -> list[str]:
    """Of the curves, as they stand on the picture; none touches another or leaves the picture."""
    figure.draw_without_rendering()
    texts = [text for text in figure.findobj(Text) if text.get_text() in {*CURVES, "memory floor"}]
    boxes = [text.get_window_extent() for text in texts]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert all(box.y0 >= 0 and box.y1 <= figure.bbox.y1 for box in boxes)
    return [text.get_text() for text in sorted(texts, key=lambda text: -text.get_window_extent().y0)]


@pytest.mark.parametrize("rungs", [1, 5, 9, 21])
def test_the_steps_curves_are_named_in_the_order_of_their_ends(rungs: int) -> None:
    curves = dict(list(CURVES.items())[:rungs])
    floor = {"memory floor": [(10, 16.0), (1000, 20.0)]}
    cached = {name: [] if name == "naive" else points for name, points in curves.items()}
    enlarged = Curves("tokens", "ms", cached, floor, log_x=False, log_y=False)
    names = names_from_the_top(draw([Curves("tokens", "ms", curves, floor), enlarged]))
    names.remove("naive")  # stands in the picture of all, where it ends
    del curves["naive"]
    assert names == [*sorted(curves, key=lambda name: -curves[name][-1][1]), "memory floor"]


@pytest.mark.parametrize("rungs", [5, 9, 20])
def test_the_excess_curves_are_named_in_the_order_of_their_ends(rungs: int) -> None:
    curves = {
        name: [(width, ms, ms - 3, ms + 3) for width, ms in points]
        for name, points in list(CURVES.items())[1 : rungs + 1]
    }
    lines = {name: curves.get(name, []) for name in CURVES}
    names = names_from_the_top(draw([Curves("width", "ms", lines, log_x=False, log_y=False)]))
    assert names == sorted(curves, key=lambda name: -curves[name][-1][1])


@settings(max_examples=200)
@given(heights=st.lists(st.floats(0, 1), max_size=21).map(sorted))
def test_places_keep_order_and_gap_and_stay_where_there_is_room(heights: list[float]) -> None:
    gap = 1 / 21
    places = spread(heights, gap)
    assert len(places) == len(heights) and all(-1e-9 <= place <= 1 + 1e-9 for place in places)
    assert all(above - below >= gap - 1e-9 for below, above in pairwise(places))
    if all(above - below >= gap for below, above in pairwise(heights)):
        assert places == pytest.approx(heights)


@pytest.mark.parametrize(
    ("xs", "labels"), [((10, 100, 1000), [10, 100, 1000]), ((2.5, 495, 496, 3095), None)]
)
def test_points_are_labelled_where_their_labels_stand_apart(
    xs: tuple[float, ...], labels: list[float] | None
) -> None:
    figure = draw([Curves("MB", "ms", {"step": [(x, x) for x in xs]})])
    ticks = list(figure.axes[0].get_xticks())
    assert ticks == labels if labels else not set(ticks) & set(xs)
