"""What is read from run.json: each of its schemas, whole; anything else is refused in one line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from floor_run import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import Markup

from profiling.results.folder import RunFolder, write_atomically
from profiling.results.record import (
    AnyRecord,
    FloorRecord,
    Model,
    Record,
    decoded,
    encoded,
    replaced,
)
from profiling.results.record.upgrade import upgraded
from reports.build import page, study
from reports.printers.html import html
from reports.printers.markdown import markdown
from variants import version
from variants.errors import UserError

DATA = Path(__file__).parent / "data"
SCHEMAS = {n: DATA / "records" / f"schema-{n}.json" for n in (1, 2)} | {3: GOLDEN / "run.json"}
PUBLISHED = sorted((DATA.parent.parent / "reports" / "published").glob("*/run.json"))
OLD, RAW = [json.loads(SCHEMAS[n].read_bytes()) for n in (1, 2)], json.loads(SCHEMAS[3].read_bytes())


def read(raw: Any) -> AnyRecord:
    return decoded(json.dumps(raw).encode(), Path("run.json"))


def refusal(raw: Any) -> str:
    with pytest.raises(UserError) as refused:
        read(raw)
    return str(refused.value)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_schema_is_read_as_todays(schema: int) -> None:
    assert json.loads(SCHEMAS[schema].read_bytes())["schema"] == schema
    record = decoded(SCHEMAS[schema].read_bytes(), SCHEMAS[schema])
    assert isinstance(record, FloorRecord) and record.schema == 3
    tape = record.variants["tape"]
    assert tape.difference == ("executor", "eager", "op tape") and tape.gate and tape.gate.status == "pass"
    assert record.variants["onelaunch"].difference[0] == "backend"  # type: ignore[index]
    assert record.workload and record.workload.warm_up == 2
    assert record.peaks and record.predicted_replay and record.predicted_replay.parent == "sdpa"
    assert tape.memory and tape.memory.compiled_step_bytes == 0 and len(tape.compiled_steps) > 0


def test_the_first_and_the_last_schema_of_one_run_say_the_same() -> None:
    first, last = (decoded(SCHEMAS[n].read_bytes(), SCHEMAS[n]) for n in (1, 3))
    assert first == last


def test_the_duel_of_schema_2_is_read() -> None:
    record, old = decoded(SCHEMAS[2].read_bytes(), SCHEMAS[2]), OLD[1]["duel"]
    assert len(record.duel.blocks) == len(old["blocks"]) > 10  # type: ignore[union-attr]
    assert [t.trace.busy_us for t in record.duel.traces] == pytest.approx(  # type: ignore[union-attr]
        [t["analysis"]["busy_us"] for t in old["traces"]]
    )


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.parent.name)
def test_a_published_record_comes_back_as_it_was_written(path: Path) -> None:
    record = decoded(path.read_bytes(), path)
    assert decoded(encoded(record), path) == record


def test_means_of_a_trace_are_those_that_schema_1_stored() -> None:
    """To the six digits to which they were rounded when that record was committed."""
    old = OLD[0]["variants"]
    for name, entry_ in decoded(SCHEMAS[1].read_bytes(), SCHEMAS[1]).variants.items():  # type: ignore[union-attr]
        stored = old[name]["trace"]["analysis"]
        assert entry_.trace.parts_us == pytest.approx(stored["parts_us"], rel=1e-5)
        assert entry_.trace.busy_us == pytest.approx(stored["busy_us"], rel=1e-5)
        assert entry_.trace.mean_profiled_ms == pytest.approx(stored["profiled_ms"], rel=1e-5)


def at(raw: Any, path: str) -> tuple[Any, Any]:
    """The container and the last key of a path such as samples.0.round."""
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in steps:
        raw = raw[step] if isinstance(raw, list) else raw[str(step)]
    return raw, last if isinstance(raw, list) else str(last)


REFUSED: dict[str, tuple[str, Any, str]] = {
    "a text for a number": ("samples.3.round", "x", "samples.3.round: expected int, got str"),
    "a share of a round": ("samples.3.round", 1.5, "samples.3.round: expected int, got float"),
    "true for a number": ("samples.3.round", True, "samples.3.round: expected int, got bool"),
    "no time": ("samples.3.steps_ms", [], "samples.3.steps_ms: expected array of length >= 1"),
    "a time that is none": ("samples.3.steps_ms", [0.0], "samples.3.steps_ms.0: expected float > 0.0"),
    "a list for one": ("samples", {}, "samples: expected array, got object"),
    "inside an entry": (
        "variants.tape.memory.cache_bytes",
        "many",
        "variants.tape.memory.cache_bytes: expected int, got str",
    ),
    "inside two mappings": (
        "variants.sdpa.prediction.10.bytes",
        None,
        "variants.sdpa.prediction.10.bytes: expected int, got null",
    ),
    "an unknown status": ("variants.cat.status", "fast", "variants.cat.status: invalid enum value 'fast'"),
    "a shape that is none": ("model.shape.n_head", 5, "model.shape: n_embd 48 is not a multiple of n_head 5"),
    "another experiment": ("experiment", "dance", "experiment: invalid value 'dance'"),
    "a name with a line end": (
        "variants.a\nb",
        {},
        r"variants.a\nb: object missing required field parent",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_value_is_refused_by_its_place(case: str) -> None:
    path, value, said = REFUSED[case]
    raw = json.loads(json.dumps(RAW))
    container, key = at(raw, path)
    container[key] = value
    assert refusal(raw) == f"run.json: {said}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda raw: raw["variants"].pop("tape"), "variants: expected tape, which was timed"),
        (lambda raw: raw.pop("workload"), "workload: expected object, got null in a run that measured"),
        (lambda raw: raw["model"].pop("shape"), "model.shape: expected object, got null in a run that"),
        (lambda raw: raw["variants"]["cat"]["slots"].pop("40"), "variants.cat.slots: expected context 40"),
        (
            lambda raw: raw["variants"]["cat"].pop("prediction"),
            "variants.cat.prediction: expected context 10",
        ),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(change: Callable[[Any], Any], said: str) -> None:
    raw = json.loads(json.dumps(RAW))
    change(raw)
    assert said in refusal(raw)


def test_an_interrupted_proof_has_no_times() -> None:
    """A resumed run plans its variants anew while its samples are there already."""
    raw = json.loads(json.dumps(RAW))
    for entry in raw["variants"].values():
        entry.update(status="planned", slots={}, prediction={})
    run = RunFolder(Path("run"), read(raw))
    assert study(run).timed == [] and "The ladder" in markdown(page(study(run)))


@pytest.mark.parametrize("path", ["samples.0.round", "variants.cat.parent", "command", "floors.2.bytes"])
def test_a_missing_field_is_named(path: str) -> None:
    raw = json.loads(json.dumps(RAW))
    container, key = at(raw, path)
    del container[key]
    assert refusal(raw).endswith(f"object missing required field {key}")


@pytest.mark.parametrize("path", ["", "samples.0.", "variants.cat.", "model.shape.", "workload."])
def test_an_unknown_field_is_named(path: str) -> None:
    raw = json.loads(json.dumps(RAW))
    container, key = at(raw, f"{path}surprise")
    container[key] = 1
    assert refusal(raw).endswith("object contains unknown field surprise")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b'{"schema": 99}',
        b'{"schema": true}',
        b'{"schema": NaN}',
        b'{"schema": 2, "experiment": "floor", "recompiles_while_timing": Infinity}',
        b'{"schema": 1, "variants": []}',
        b'{"schema": 1, "variants": {"a": 3}}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"schema": 2, "experiment": "\xff"}',
    ],
)
def test_a_foreign_or_broken_record_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    write_atomically(tmp_path / "run.json", content)
    with pytest.raises(UserError, match=r"run\.json") as refused:
        RunFolder.load(tmp_path, Record)
    assert len(str(refused.value).splitlines()) == 1 and len(str(refused.value)) < 300 + len(str(tmp_path))


def test_what_cannot_be_written_is_named_as_it_was_given(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "rows.csv"):  # a folder, and one that is not there
        with pytest.raises(OSError) as refused:
            write_atomically(path, b"x")
        assert refused.value.filename == str(path)
    assert not any(tmp_path.iterdir()) and not list(tmp_path.parent.glob("*.part"))


def places(raw: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a record."""
    inner = raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


SHOWN = [
    json.loads(path.read_bytes()) for path in PUBLISHED if "-growth" in str(path) or "-peers" in str(path)
]
PLACES = [[(raw, place) for place in places(raw)[1:]] for raw in (*OLD, RAW, *SHOWN)]
HOSTILE = st.sampled_from([None, True, -1, 0, 1.5, 1e300, 2**70, "", "<b>", [], {}, [[]], {"a": {}}])
MISSING, TWICE = object(), object()


def changed(raw: Any, place: tuple[Any, ...], value: Any) -> Any:
    """The record with one thing replaced, missing, or there twice."""
    raw = msgspec.json.decode(msgspec.json.encode(raw))
    container = raw
    for key in place[:-1]:
        container = container[key]
    if value is MISSING:
        del container[place[-1]]
    elif value is TWICE and isinstance(container, list):
        container.append(container[place[-1]])
    elif value is TWICE:
        container["twice"] = container[place[-1]]
    else:
        container[place[-1]] = value
    return raw


@given(
    st.sampled_from(PLACES).flatmap(st.sampled_from), st.one_of(HOSTILE, st.sampled_from([MISSING, TWICE]))
)
@settings(max_examples=60)
def test_a_record_with_one_thing_wrong_is_read_or_refused(
    at_: tuple[Any, tuple[Any, ...]], value: Any
) -> None:
    """What is refused is said in one line; what is read can be written, read again, and reported."""
    try:
        record = read(changed(*at_, value))
    except UserError as error:
        assert len(str(error).splitlines()) == 1
        return
    assert decoded(encoded(record), Path("run.json")) == record
    record_page = record.page
    if isinstance(record, FloorRecord):
        record_page = page(study(RunFolder(Path("run"), record)))
    if record_page is not None:
        assert markdown(record_page) and html(record_page, defaultdict(Markup))


@pytest.mark.parametrize("rows", ["samples", "floors", "ttft"])
def test_a_round_that_holds_something_twice_is_refused(rows: str) -> None:
    record = json.loads(encoded(read(OLD[-1])))
    record[rows].append(record[rows][0])
    with pytest.raises(UserError, match=rf"{rows}: round 0 holds .* 2 times"):
        read(record)


@pytest.mark.parametrize("old", OLD, ids=[1, 2])
def test_the_old_record_stays_as_it_was(old: dict[str, Any]) -> None:
    before = json.dumps(old)
    upgraded(old)
    assert json.dumps(old) == before


RECORD = FloorRecord(command="python -m experiments.floor", started="2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"speed": 1}, "FloorRecord.speed"),
        ({"entropy": "x"}, "FloorRecord.entropy"),
        ({"samples": [1]}, "FloorRecord.samples"),
    ],
)
def test_a_change_of_another_type_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        replaced(RECORD, **changes)


def test_parts_are_frozen() -> None:
    with pytest.raises(AttributeError):
        RECORD.status = "complete"  # type: ignore[misc]
    assert replaced(RECORD, model=Model("gpt2")).model == Model("gpt2") and RECORD.model is None


# -- whose code ran -------------------------------------------------------------------------------


@pytest.fixture
def checked_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module that asks as if it lay in this checkout."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    module = tmp_path / "code" / "version.py"
    module.parent.mkdir()
    module.write_text("one = 1\n")
    for words in (
        ["init"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "one"],
    ):
        subprocess.run(["git", *words], cwd=module.parent, check=True, capture_output=True)
    monkeypatch.setattr(version, "__file__", str(module))
    return module


def test_a_record_names_the_commit_and_whether_files_differ(checked_out: Path, tmp_path: Path) -> None:
    commit = RunFolder.create(tmp_path / "runs", FloorRecord, "cpu").record.commit
    assert commit is not None and re.fullmatch("[0-9a-f]{12}", commit)
    checked_out.write_text("one = 2\n")
    assert version.checkout() == f"{commit}-changed"


def test_a_run_that_another_commit_goes_on_with_says_so(checked_out: Path, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "runs", FloorRecord, "cpu")
    run.release()
    checked_out.write_text("one = 2\n")
    (warning,) = RunFolder.resume(run.path, FloorRecord).record.warnings
    assert warning == f"begun at commit {run.record.commit}, gone on with at {run.record.commit}-changed"


def test_an_installation_inside_of_another_checkout_has_no_commit(
    checked_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "__file__", str(checked_out.with_name("installed.py")))
    assert version.checkout() is None


def test_without_git_the_commit_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert version.checkout() is None
