"""One page, three printers: nothing is cut, and nothing that others wrote means anything."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from profiling.results.record.page import Bullets, Code, Page, Section, Sentence, Table
from reports.printers.console import print_blocks, show
from reports.printers.html import html
from reports.printers.markdown import markdown

WORD = st.text("abcxyz0189_:.-", min_size=1, max_size=30)
NUMBER = st.from_regex(r"[0-9]{1,6}\.[0-9]{1,3}( \[[0-9]{1,4}, [0-9]{1,4}\])?", fullmatch=True)


def printed(*blocks: Table | Sentence | Bullets | Code, width: int = 80) -> str:
    out = io.StringIO()
    print_blocks(Console(file=out, width=width, highlight=False), blocks)
    return out.getvalue()


@st.composite
def tables(draw: st.DrawFn) -> Table:
    text, numbers = draw(st.integers(1, 3)), draw(st.integers(0, 9))
    count = text + numbers
    heads = draw(st.lists(st.lists(WORD, max_size=4).map(" ".join), min_size=count, max_size=count))
    words = st.lists(WORD, min_size=1, max_size=12).map(" ".join)
    row = st.tuples(WORD, *[words] * (text - 1), *[NUMBER] * numbers)
    return Table(heads, draw(st.lists(row, max_size=4)), text, draw(WORD))


@settings(max_examples=100)
@given(tables(), st.integers(70, 120))
def test_a_table_fits_the_console_and_no_number_and_no_name_is_cut(table: Table, width: int) -> None:
    text = printed(table, width=width)
    assert max(map(len, text.splitlines())) <= width
    for row in table.rows:
        for cell in (row[0], *row[table.text_columns :]):
            assert cell in text


def test_a_table_that_does_not_fit_goes_on_below_with_the_same_names() -> None:
    columns = [f"at context {n}" for n in range(12)]
    text = printed(Table(["variant", *columns], [["compile-cudagraph", *["1234.567"] * 12]], title="Step"))
    assert text.count("compile-cudagraph") > 1 and text.count("1234.567") == 12 and text.count("Step") == 1


@pytest.mark.parametrize("width", [20, 40])
def test_a_name_longer_than_the_console_goes_on_below(width: int) -> None:
    name = "".join(chr(ord("a") + n % 26) for n in range(90))
    text = printed(Table(["name", "n"], [[name, "12"]]), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert re.sub(r"[^a-z]", "", text.split("─")[-1]) == name and "12" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_the_answer_is_one_line_in_a_pipe_and_fits_a_terminal(terminal: bool) -> None:
    out, words = io.StringIO(), "word " * 40 + "end"
    page = Page("t", [Section("Answer", [Sentence(words)])])
    show(Console(file=out, width=40, force_terminal=terminal), page)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 40 if terminal else lines == [words]


def test_the_console_ends_with_the_answer_and_leaves_details_to_the_report() -> None:
    more, detail = Section("More", [Bullets(["b"])]), Section("Run", [Sentence("no")], detail=True)
    page = Page("t", [Section("Answer", [Sentence("yes")]), more, detail])
    out = io.StringIO()
    show(Console(file=out, width=80), page, "runs/" + "long/" * 30)
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("More ") and lines[1:] == ["- b", "runs/" + "long/" * 30, "yes"]


HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[text](javascript:alert(1))",
    "![x](http://example.org/x.png)",
    "[bold red]markup[/]",
    "[link=http://example.org]x[/link]",
    "\x1b[31mred\x1b]8;;http://example.org\x07",
    "`</code><b>`",
    "**<b>** & `<i>`",
    "a | b\nc",
    "```\n# heading",
    "</script><!-- x",
)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]


def everywhere(text: str) -> Page:
    blocks = [
        Sentence(f"x {text}"),
        Bullets([text]),
        Code(text),
        Table([text, "n"], [[text, text]], title=text),
    ]
    return Page(text, [Section(text, blocks)])


HARMLESS = set(Tags(html(everywhere("text\nmore `code` **bold**"), {})).tags)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_others_wrote_means_nothing_in_html(text: str) -> None:
    tags = Tags(html(everywhere(text), {}))
    assert set(tags.tags) <= HARMLESS
    assert not any(name.startswith("on") for name in tags.attributes)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_others_wrote_means_nothing_in_markdown(text: str) -> None:
    printed = re.sub(r"^(`{3,})sh\n.*?^\1$", "", markdown(everywhere(text)), flags=re.S | re.M)
    outside = re.sub(r"`[^`]*`", "", printed)
    assert not re.search(r"<[A-Za-z/!]", outside) and "](" not in outside and "\x1b" not in printed
    assert len([line for line in printed.splitlines() if line.startswith("#")]) == 2
    rows = [line for line in printed.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {3}


@pytest.mark.parametrize("text", HOSTILE)
def test_what_others_wrote_means_nothing_on_a_terminal(text: str) -> None:
    out = io.StringIO()
    show(Console(file=out, width=200, force_terminal=True, highlight=False), everywhere(text))
    codes = re.findall(r"\x1b(\[[0-9;]*m|.)", out.getvalue())
    assert set(codes) <= {"[0m", "[1m", "[2m", "[3m", "[22m"} and "\x07" not in out.getvalue()


def test_marks_nest_and_end() -> None:
    text = "**bold `a**b` x** and `c < d` not **x"
    assert "<strong>bold <code>a**b</code> x</strong> and <code>c &lt; d</code> not **x" in html(
        Page("t", [Section("s", [Sentence(text)])]), {}
    )
    assert text in markdown(Page("t", [Section("s", [Sentence(text)])]))
    assert printed(Sentence(text)) == "bold a**b x and c < d not **x\n"
