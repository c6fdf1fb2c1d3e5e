"""Any trace file is read exactly, or as far as it honestly can be with what was skipped said, or refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.trace import Trace, load, read, source
from tests.synthetic_trace import Synthetic, eager
from variants.errors import UserError

EVENT = b'{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "ts": 10, "dur": 2, "args": {"stream": 7}}'


def loaded(tmp_path: Path, text: bytes, name: str = "t.json") -> Trace:
    path = tmp_path / name
    path.write_bytes(text)
    return load(path)


def same(a: pd.DataFrame, b: pd.DataFrame) -> bool:
    """Equal tables, whatever code each category has."""
    return bool(a.astype(object).equals(b.astype(object)))


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("wrap", ["plain", "gzip", "gzip twice over", "list", "bom"])
@pytest.mark.parametrize("piece", [64, 1000, 1 << 22])
def test_one_table_however_the_file_is_written(tmp_path, monkeypatch, indent, wrap, piece) -> None:
    synthetic = eager()
    expected = load(synthetic.write(tmp_path / "plain.json")).events
    monkeypatch.setattr(read, "PIECE_BYTES", piece)
    text = synthetic.text(indent)
    if wrap == "list":
        text = json.dumps(synthetic.events, indent=indent).encode()
    text = {"gzip": gzip.compress(text), "bom": b"\xef\xbb\xbf" + text}.get(wrap, text)
    if wrap == "gzip twice over":  # two members, as `cat a.gz b.gz` gives
        text = gzip.compress(text[:500]) + gzip.compress(text[500:])
    trace = loaded(tmp_path, text, "wrong_extension.json")
    assert same(trace.events, expected)
    assert trace.warnings == []
    assert trace.events_total == len(synthetic.events)


@pytest.mark.parametrize("base", [0, 7_721_328_752_560_214, 1_712_195_495_505_582_988, 8_796_093_022_208_001])
@given(offsets=st.lists(st.integers(0, 10**10), min_size=1, max_size=5))
@settings(max_examples=40)
def test_every_nanosecond_is_kept(tmp_path_factory, base: int, offsets: list[int]) -> None:
    """Absolute microseconds near 1.7e15 lose up to 0.25 us in a float64; the digits are read instead."""
    times = [(f"{(base + o) // 1000}.{(base + o) % 1000:03d}", f"0.{o % 1000:03d}") for o in offsets]
    text = ", ".join(f'{{"ph": "X", "name": "k", "ts": {ts}, "dur": {dur}}}' for ts, dur in times)
    trace = loaded(tmp_path_factory.mktemp("t"), b'{"traceEvents": [' + text.encode() + b"]}")
    assert trace.events["ts_ns"].tolist() == [base + o for o in offsets]
    assert trace.events["dur_ns"].tolist() == [o % 1000 for o in offsets]


@pytest.mark.parametrize("value", ['"12.345"', "12.345", '" 12.345 "', "1.2345e1"])
def test_numbers_of_any_type(tmp_path, value) -> None:
    trace = loaded(tmp_path, EVENT.replace(b"10", value.encode()).join([b"[", b"]"]))
    assert trace.events["ts_ns"].tolist() == [12345]


@pytest.mark.parametrize(
    "value", ['"soon"', "null", "1e300", "123456789012345678901234567890", "[1]", "true"]
)
def test_times_that_are_none_are_counted(tmp_path, value) -> None:
    trace = loaded(
        tmp_path, b"[" + EVENT + b", " + EVENT.replace(b'"ts": 10', b'"ts": ' + value.encode()) + b"]"
    )
    assert len(trace.events) == 1
    assert trace.skipped == {"event without a usable ts": 1}
    assert any("skipped" in w for w in trace.warnings)


@pytest.mark.parametrize(
    ("broken", "kept", "said"),
    [
        (EVENT.replace(b"10", b"NaN"), 1, "NaN or Infinity"),
        (EVENT.replace(b"7}", b'7, "occupancy": -Infinity, "x": nan}'), 2, "NaN or Infinity"),
        (EVENT.replace(b'"k"', rb'"C:\Users\me\k"'), 2, "backslashes"),
        (EVENT.replace(b'"k"', b'"a\x01b\tc"'), 2, "control characters"),
        (EVENT.replace(b'"k"', b'"a\xff\xfeb"'), 2, "not UTF-8"),
        (EVENT.replace(b'"k"', b'"f<"x">"'), 1, "near byte"),
        (EVENT + b",", 2, "commas"),
        (b"null", 1, "not an event"),
    ],
)
def test_broken_json_is_mended_or_skipped_and_said(tmp_path, broken, kept, said) -> None:
    text = b'{"schemaVersion": 1, "traceEvents": [' + EVENT + b", " + broken + b'], "traceName": "t"}'
    trace = loaded(tmp_path, text)
    assert len(trace.events) == kept
    assert any(said in w for w in trace.warnings), trace.warnings
    assert trace.meta == {"schemaVersion": 1, "traceName": "t"}


def test_half_a_surrogate_pair_in_a_name_is_replaced(tmp_path) -> None:
    trace = loaded(tmp_path, b"[" + EVENT + b", " + EVENT.replace(b'"k"', rb'"a\ud800b"') + b"]")
    assert list(trace.events["name"]) == ["k", "a?b"]


@pytest.mark.parametrize("number", [b"1e400", b"7" * 5_000])
def test_a_number_beyond_all_bounds_costs_only_its_event(tmp_path, number: bytes) -> None:
    broken = EVENT.replace(b'"stream": 7', b'"stream": ' + number) + b", nonsense"
    trace = loaded(tmp_path, b"[" + b", ".join([EVENT, broken, EVENT]) + b"]")
    assert 2 <= len(trace.events) <= 3


@pytest.mark.parametrize("depth", [2_000, 50_000])
@pytest.mark.parametrize("field", [b'"dur": 2', b'"stream": 7', b'"name": "k"'])
def test_an_event_that_is_nested_too_deep_costs_only_itself(
    tmp_path, monkeypatch, field: bytes, depth: int
) -> None:
    monkeypatch.setattr(read, "PIECE_BYTES", 300)
    value = field.partition(b" ")[0] + b'{"a":' * depth + b"1" + b"}" * depth
    events = [EVENT] * 9
    events[4] = EVENT.replace(field, value)
    trace = loaded(tmp_path, b"[" + b", ".join(events) + b"]")
    assert len(trace.events) == 8 and sum(trace.skipped.values()) == 1


def test_a_broken_event_costs_only_itself_between_pieces(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(read, "PIECE_BYTES", 300)
    events = [EVENT] * 40
    events[17] = EVENT.replace(b'"k"', b'"f<"x">"')
    trace = loaded(tmp_path, b'{"traceEvents": [' + b",\n".join(events) + b"]}")
    assert len(trace.events) == 39
    assert trace.skipped == {"event that is not valid JSON": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "byte"),
        (b"not json", "byte 0"),
        (b'{"a": 1}', "without"),
        (b'{"a": 1, "traceEve', "byte"),
        (b"\x1f\x8bgarbage", "damaged"),
        (b"PK\x03\x04", "zip archive; convert it first: unzip -p"),
        (b"\x28\xb5\x2f\xfd", "zstd; convert it first: zstd -d"),
        (gzip.compress(b"\x28\xb5\x2f\xfd", mtime=0), "zstd"),
        (b"BZh9", "bzip2"),
        (b"\xfd7zXZ\0", "xz"),
        (b"\x0a\x05\x08\x01\x10\x02", "Perfetto trace in protobuf; convert it first: traceconv json"),
        (b"x" * 257 + b"ustar", "tar archive"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS"),
        (b"\x80\x04\x95", "pickle"),
        (b"<!DOCTYPE html>", "web page"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, text, said) -> None:
    with pytest.raises(UserError, match=said):
        loaded(tmp_path, text)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_read_as_such(tmp_path, encoding) -> None:
    mark = {"utf-16": b"", "utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff"}[encoding]
    trace = loaded(tmp_path, mark + eager().text().decode().encode(encoding))
    assert same(trace.events, load(eager().write(tmp_path / "plain.json")).events)
    assert trace.warnings == ["the file is UTF-16 and was read as that"]


@pytest.mark.parametrize("wrap", ["object", "list"])
def test_a_second_document_is_not_read_and_that_is_said(tmp_path, wrap) -> None:
    text = eager().text() if wrap == "object" else json.dumps(eager().events).encode()
    once = loaded(tmp_path, text)
    twice = loaded(tmp_path, text + b"\n" + text)
    assert same(once.events, twice.events) and once.meta == twice.meta
    assert any("more than one JSON document" in w for w in twice.warnings)


@pytest.mark.parametrize("chunk", [100, 1 << 12])
@pytest.mark.parametrize("zipped", [False, True])
def test_a_window_over_the_text_changes_nothing(tmp_path, monkeypatch, chunk, zipped) -> None:
    text = eager(steps=6).text(indent=1)
    whole = loaded(tmp_path, text)
    monkeypatch.setattr(source, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(read, "PIECE_BYTES", 500)
    again = loaded(tmp_path, gzip.compress(text) if zipped else text)
    assert same(whole.events, again.events) and whole.meta == again.meta
    assert again.json_bytes == len(text)


def test_a_missing_file_is_refused(tmp_path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path / "nowhere.json")


@given(share=st.floats(0, 1), zipped=st.booleans())
@settings(max_examples=120)
def test_a_file_cut_anywhere_loads_with_a_warning_or_is_refused(tmp_path_factory, share, zipped) -> None:
    whole = eager(steps=2, kernels=3).text(indent=1)
    whole = gzip.compress(whole) if zipped else whole
    cut = int(share * (len(whole) - 1))
    try:
        trace = loaded(tmp_path_factory.mktemp("t"), whole[:cut])
    except UserError:
        return
    assert trace.warnings
    assert len(trace.events) <= len(eager(steps=2, kernels=3).events)


def test_begin_and_end_events_become_spans(tmp_path) -> None:
    text = b"""[{"ph": "B", "name": "a", "pid": 1, "tid": 1, "ts": 1.001}, {"ph": "B", "name": "b", "pid":
    1, "tid": 1, "ts": 2}, {"ph": "E", "pid": 1, "tid": 1, "ts": 3}, {"ph": "E", "pid": 1, "tid": 1, "ts":
    5}, {"ph": "B", "name": "c", "pid": 1,
    "tid": 1, "ts": 9}]"""
    trace = loaded(tmp_path, text)
    spans = dict(zip(trace.events["name"], trace.events["dur_ns"], strict=True))
    assert spans == {"a": 3999, "b": 1000}
    assert trace.skipped == {"begin event without an end": 1}


def test_events_may_lack_anything(tmp_path) -> None:
    trace = loaded(
        tmp_path,
        b'[{"ph": "X", "ts": 1, "dur": 1}, {}, {"ph": "X", "ts": 1, "dur": 1, "args": [1], "name": 5}]',
    )
    assert trace.events["name"].tolist() == ["", "5"]
    assert loaded(tmp_path, b'{"traceEvents": []}').warnings == ["the trace holds no complete events"]


def test_metadata_may_hold_lists_behind_the_events(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(read, "PIECE_BYTES", 100)
    tail = b'], "INFO": [{"a": 1}, {"b": [1, 2]}, {"c": 1}], "x": {"traceEvents": [{"ph": "X"}]}}'
    trace = loaded(tmp_path, b'{"traceEvents": [' + b",".join([EVENT] * 5) + tail)
    assert len(trace.events) == 5
    assert len(trace.meta["INFO"]) == 3


def test_names_with_brackets_do_not_confuse_the_cutting(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(read, "PIECE_BYTES", 10)
    synthetic = Synthetic()
    names = ['a},{"ph":"X"}', "]}", '{"traceEvents": [', 'q"},\n {"', "é},{ü"] * 3
    for index, name in enumerate(names):
        synthetic.event(
            "cpu_op", name, index * 1000, index * 1000 + 500, args={"l": [{"a": 1}, {"b": "},{"}]}
        )
    for indent in (None, 1):
        assert load(synthetic.write(tmp_path / "n.json", indent)).events["name"].tolist() == names
