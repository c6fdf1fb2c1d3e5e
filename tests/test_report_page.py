"""The page: it fetches nothing, says what its pictures show, and lets a step be zoomed into."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from floor_run import Record, copied, tables
from markupsafe import Markup

from profiling.analysis.timeline import timeline_of
from profiling.results.folder import RunFolder
from profiling.results.record import Measurement
from reports.build import build, page, study
from reports.printers.html import html
from variants.errors import UserError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = copied(tmp_path_factory.mktemp("run") / "floor")
    build(path)
    return path


@pytest.fixture(scope="module")
def report(run: Path) -> str:
    return (run / "report.md").read_text()


def test_pictures_are_reproducible_and_outlive_the_traces(run: Path, tmp_path: Path) -> None:
    """A published folder holds no traces: the small data of a step stays, every picture is the same again."""
    published = shutil.copytree(run, tmp_path / "published", ignore=shutil.ignore_patterns("traces", "*.svg"))
    build(published)
    drawn = sorted(file.name for file in (run / "figures").glob("*.svg"))
    assert "timeline.svg" in drawn
    for name in drawn:
        assert (published / "figures" / name).read_bytes() == (run / "figures" / name).read_bytes()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"kinds": [], "names": [], "steps": []}', b"[" * 9999])
def test_a_broken_timeline_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    path = shutil.copytree(copied(tmp_path / "a"), tmp_path / "b", ignore=shutil.ignore_patterns("traces"))
    (path / "figures").mkdir()
    (path / "figures" / "timeline.json").write_bytes(content)
    with pytest.raises(UserError, match=r"timeline\.json") as refused:
        build(path)
    assert len(str(refused.value).splitlines()) == 1


def test_timeline_divides_the_step_as_the_trace_does(run: Path) -> None:
    """Painting the innermost op last gives the parts that the attribution found, within a hundredth."""
    data = json.loads((run / "figures" / "timeline.json").read_text())
    assert [step["variant"] for step in data["steps"]] == ["sdpa", "tape"]
    for step in data["steps"]:
        ticks = np.full(round(step["length_us"] * 10), -1)
        for start, length, kind, _ in (bar for depth in step["host"] for bar in depth):
            ticks[round(start * 10) : round((start + length) * 10)] = kind
        entry = RunFolder.load(run, Measurement).record.variants[step["variant"]].trace
        candidates = [
            parts for parts in entry.steps_parts_us if abs(sum(parts.values()) - step["length_us"]) < 1
        ]
        painted = {kind: float((ticks == i).sum()) / 10 for i, kind in enumerate(data["kinds"])}
        assert any(
            parts["compute"] == pytest.approx(painted["compute"], abs=0.02 * step["length_us"])
            for parts in candidates
        )


def test_a_step_that_is_one_launch_stands_in_the_timeline(tmp_path: Path) -> None:
    def change(record: Record) -> None:
        variant = next(name for name in record["variants"] if name not in ("sdpa", "tape"))
        phases = {"qkv": {"slowest_us": 1.0, "waiting_us": 0.0}}
        record["variants"][variant]["trace"] = {**record["variants"]["tape"]["trace"], "phases": phases}

    run = RunFolder.load(copied(tmp_path / "floor", change), Measurement)
    steps = timeline_of(run).steps
    assert [step.variant for step in steps] == ["sdpa", "tape", next(iter(run.record.variants))]


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.fetched: list[str] = []
        self.pictures: list[str | None] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids += [values["id"] or ""] if "id" in values else []
        for key in ("src", "href", "xlink:href", "data", "poster", "srcset", "action"):
            self.fetched += [values[key] or ""] if key in values else []
        if tag in ("img", "canvas") or values.get("role") == "img":
            self.pictures.append(values.get("alt") or values.get("aria-label"))


def test_page_fetches_nothing(run: Path) -> None:
    text = (run / "report.html").read_text()
    page = Page(text)
    assert all(address.startswith(("#", "data:")) for address in page.fetched)
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|WebSocket|import\(", text)
    assert len(page.ids) == len(set(page.ids))
    anchors = {address[1:] for address in page.fetched if address.startswith("#")}
    assert anchors <= set(page.ids)


def test_every_picture_says_what_it_shows(run: Path, report: str) -> None:
    images = re.findall(r"!\[(.*?)\]\((.*?)\)", report)
    assert {Path(name).stem for _, name in images} >= {"ladder", "parts", "context", "price", "timeline"}
    for alt, name in images:
        assert len(alt) > 40 and re.search(r"\d", alt)
        assert (run / name).stat().st_size > 5000 and (run / name).with_suffix(".svg").exists()
    assert all(Page((run / "report.html").read_text()).pictures)


def test_page_escapes_what_others_wrote(tmp_path: Path) -> None:
    def change(record: Record) -> None:
        record["model"]["name"] = "<script>alert(1)</script>"
        record["warnings"] = ["</script><b>bold</b> & `code`"]

    run = RunFolder.load(copied(tmp_path / "floor", change), Measurement)
    text = html(page(study(run)), defaultdict(Markup))
    assert "<script>alert" not in text and "<b>bold" not in text and "<code>code</code>" in text


def test_markdown_and_page_hold_the_same_numbers(run: Path, report: str) -> None:
    text = re.sub(r"<[^>]+>", "", (run / "report.html").read_text().split("<main>")[1])
    for table in tables(report):
        for row in table:
            for cell in row.values():
                plain = re.sub(r"[`*]", "", cell).replace("\\|", "|")
                assert plain in text.replace("&#39;", "'").replace("&gt;", ">").replace("&amp;", "&")


@pytest.fixture
def tab() -> Iterator[Any]:
    chromium = pytest.importorskip("chromium", reason="needs websockets")
    if chromium.CHROMIUM is None:
        pytest.skip("needs Chromium")
    with chromium.page(1000, 900) as opened:
        yield opened


def test_step_can_be_zoomed_into(run: Path, tab: Any) -> None:
    """Bars are drawn, a bar says its name, zooming makes it wider, and nothing is asked of any network."""
    tab.go((run / "report.html").as_uri())
    tab.evaluate("document.querySelector('canvas').scrollIntoView({block: 'center'})")
    box = tab.evaluate(
        "(({x, y, width}) => ({x, y, width}))(document.querySelector('canvas').getBoundingClientRect())"
    )
    drawn = "document.querySelector('canvas').toDataURL()"
    before = tab.evaluate(drawn)
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=box["x"] + box["width"] / 2, y=box["y"] + 34)
    assert re.search(
        r"(aten::|outside ops).* of sdpa", tab.until("document.querySelector('.tip').textContent")
    )
    tab.evaluate("document.querySelector('.timeline button').click()")
    assert tab.evaluate(drawn) != before
    tab.evaluate("document.querySelector('[data-key=\"0\"]').click()")
    assert tab.evaluate(drawn) == before
    assert all(address.startswith("file://") for address in tab.requests)


def test_nothing_is_wider_than_the_window(run: Path, tab: Any) -> None:
    tab.go((run / "report.html").as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
