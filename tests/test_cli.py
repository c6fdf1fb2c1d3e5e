"""What all command lines share: how they refuse numbers that no run can use, and how they end."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from floor_run import ROOT, copied
from hypothesis import given
from hypothesis import strategies as st

from experiments.shared import cli
from profiling.measure.memory import decoder_bytes
from profiling.measure.models import bytes_at_once
from profiling.results.folder import RunFolder
from profiling.results.record import Record
from reports import build
from variants import version
from variants.command import Parser
from variants.config import PRESETS
from variants.decoder import Decoder
from variants.errors import UserError, one_line
from variants.known_configs import KNOWN_CONFIGS
from variants.ladder import ladder
from variants.model import empty_model, random_model
from variants.slots.pages import DEFAULT

CORES = os.cpu_count() or 1


def with_flag(flag: str) -> list[str]:
    """The experiments that know `flag`."""
    texts = {file.stem: file.read_text("utf-8") for file in (ROOT / "experiments").glob("[a-z]*.py")}
    return sorted(name for name, text in texts.items() if "common_parser(" in text or f'"{flag}"' in text)


NEEDED = {"duel": [".", "."]}  # what an experiment cannot do without


def refusal(name: str, flags: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        cli.run(import_module(f"experiments.{name}").main, [*NEEDED.get(name, []), *flags])
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and error.startswith("error: ") and error.count("\n") == 1
    return error


@pytest.mark.parametrize("name", with_flag("--seed"))
@pytest.mark.parametrize("seed", ["-1", str(2**63)])
def test_a_seed_is_what_every_generator_takes(
    name: str, seed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`random` takes -1 for 1, torch fails from 2^64 on."""
    flags = ["--seed", seed, "--out", str(tmp_path / "runs")]
    assert f"--seed must be from 0 to 2^63 - 1, got {seed}" in refusal(name, flags, capsys)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", with_flag("--threads"))
@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "at least 1, got 0 "),
        (-3, "at least 1, got -3 "),
        (4 * CORES + 1, f"got {4 * CORES + 1}: beyond 4 for each of the {CORES} cores"),
    ],
)
def test_threads_that_only_wait_for_each_other_are_refused(
    name: str, count: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--threads", str(count), "--out", str(tmp_path / "runs")]
    assert said in f"{refusal(name, flags, capsys).strip()} "
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("flag", ["--batch", "--steps", "--rounds"])
def test_none_of_something_is_refused_by_every_experiment_that_has_it(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = ("sizing", "gpu_check")  # whose --batch is a list, and which names the flags of what it starts
    names = [name for name in with_flag(flag) if name not in others]
    assert len(names) > 10
    for name in names:
        error = refusal(name, [flag, "0", "--out", str(tmp_path / "runs")], capsys)
        assert f"{flag} must be at least 1, got 0" in error, name
    assert not (tmp_path / "runs").exists()


# -- what a command line may hold -----------------------------------------------------------------

QUICKEST = ["--quiet", "--json", "--layers", "2", "--heads", "4", "--kv-heads", "4", "--head-dim", "8"]
QUICKEST += ["--kv-dtype", "fp8"]


@pytest.mark.parametrize(
    ("out", "said"),
    [("x" * 300, "File name too long"), ("nul\0", "NUL character"), ("\udcff", "not valid UTF-8")],
    ids=["long", "NUL", "bytes"],
)
@pytest.mark.parametrize("name", ["sizing", "work"])
def test_a_place_that_cannot_be_is_refused(
    name: str, out: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = QUICKEST if name == "sizing" else ["--model", "tiny", "--quick"]
    assert said in refusal(name, [*flags, "--out", out], capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("out", ["two words", "-dash", "größe ✓", "a'b\"c", "line\nend", "*"], ids=ascii)
def test_an_odd_place_is_written_and_its_command_can_be_copied(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sizing", *QUICKEST, f"--out={out}"])
    with pytest.raises(SystemExit) as stopped:
        cli.run(import_module("experiments.sizing").main)
    printed = capsys.readouterr()
    assert (stopped.value.code, printed.err) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == [out]
    path = Path(json.loads(printed.out)["run"])
    record = RunFolder.load(path, Record).record
    assert shlex.split(record.command)[3:] == sys.argv[1:] and (path / "report.html").exists()


@pytest.mark.parametrize("flag", ["--out", "--model", "--seed", "--context"])
def test_a_flag_without_its_value_is_one_line(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "expected one argument" in refusal("floor", [flag, "--quick"], capsys)


def test_what_the_system_refuses_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def main(argv: object) -> int:
        raise OSError(28, "No space left on device", "runs/run.json")

    with pytest.raises(SystemExit) as stopped:
        cli.run(main, [])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "error: runs/run.json: No space left on device\n"


def test_a_console_that_lacks_a_sign_shows_another(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))

    def main(argv: object) -> int:
        sys.stdout.write("Grüße")
        return 0

    with pytest.raises(SystemExit, match="0"):
        cli.run(main, [])
    assert written.getvalue() == b"Gr??e"


def test_no_message_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    """Names in a record or a model are somebody else's text."""

    def main(argv: object) -> int:
        raise UserError("no variant \x1b[2J\x9b31m\x07 there")

    with pytest.raises(SystemExit, match="2"):
        cli.run(main, [])
    assert capsys.readouterr().err[:-1].isprintable()


def test_an_error_that_cannot_say_itself_is_named() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert one_line(Mute()) == "Mute: no message"


def test_a_shape_beyond_memory_is_refused_before_it_is_asked_for(tmp_path: Path, capsys: Any) -> None:
    raw = {**KNOWN_CONFIGS["llama-2-7b"], "hidden_size": 1 << 20, "num_attention_heads": 1 << 13}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    flags = ["--shape", str(tmp_path / "config.json"), "--out", str(tmp_path / "runs")]
    said = refusal("floor", flags, capsys)
    assert "needs at least" in said and "(weights " in said and "truth " in said and "are free" in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_what_is_summed_before_loading_is_what_is_held(precision: str) -> None:
    dtype = getattr(torch, precision)
    root = empty_model(PRESETS["tiny"]).to(dtype)
    model = random_model(PRESETS["tiny"], dtype=dtype)
    for variant in ladder(precision).values():
        if variant.why_not("cpu") or not variant.fixed_shape or variant.executor.compiles:
            continue
        if variant.pages is not DEFAULT:  # whole pages, of 2 MiB
            continue
        needs = bytes_at_once(root, [variant], batch=2, capacity=64)
        held = decoder_bytes(Decoder.of(variant, model, batch=2, capacity=64))
        own = variant.precision.name != precision
        assert needs["copies"] == (held.weights_bytes if own else 0), variant.name
        assert (needs["caches"], needs["masks"]) == (held.cache_bytes, held.mask_bytes), variant.name
        assert needs["weights"] == sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def test_a_run_whose_copies_do_not_fit_is_refused_with_their_sum(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("profiling.measure.models.free_bytes", lambda device: 2**20)
    flags = ["--model", "tiny", "--out", str(tmp_path / "runs")]
    said = refusal("floor", [*flags, "--variant", "all"], capsys)
    assert all(part in said for part in ("weights", "copies", "caches", "masks", "truth", "0.0 GiB are free"))
    assert not (tmp_path / "runs").exists()


DEFAULTS = {
    "floor": ("10,100,500,1000, with", "2", "8, with --quick 4"),
    "context": ("8,9,32,64,", "2", "20, with --quick 3"),
    "batch": ("100", "2", "20, with --quick 3"),
    "paging": ("10,100,500,1000, with", "2", "20, with --quick 4"),
    "throughput": ("10", None, "3, with --quick 1"),
    "memory": ("64,128,256,", None, None),
    "faults": (None, "48, with --quick 24", None),
    "generate": (None, None, None),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_help_says_what_is_done_without_a_flag(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        import_module(f"experiments.{name}").main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    for flag, default in zip(
        ("--context N,N", "--steps STEPS", "--rounds ROUNDS"), DEFAULTS[name], strict=True
    ):
        said = ": no meaning here" if default is None else rf" \(default {default}"
        assert re.search(rf"{flag} [a-z][^(:]*{said}", text), flag


MAP = "experiments.shared.map"  # knows no flags


def modules_with_a_command() -> list[str]:
    ends = '\nif __name__ == "__main__":\n'
    files = [
        f for room in ("variants", "profiling", "experiments", "reports") for f in (ROOT / room).rglob("*.py")
    ]
    texts = {".".join(f.relative_to(ROOT).with_suffix("").parts): f.read_text("utf-8") for f in files}
    return sorted(
        n for n, text in texts.items() if ends in text and "arse" in text and "__main__" not in n and n != MAP
    )


@pytest.mark.parametrize("name", modules_with_a_command())
def test_every_command_tells_its_version_and_its_defaults(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main = import_module(name).main
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0 and re.match(r"decode-floor \S+", capsys.readouterr().out)
    seen: list[Parser] = []
    monkeypatch.setattr(Parser, "print_help", lambda self, file=None: seen.append(self))
    with pytest.raises(SystemExit):
        main(["--help"])
    (parser,) = seen
    formatter = parser._get_formatter()
    for action in parser._actions:
        if action.option_strings and action.nargs != 0 and action.default not in (None, []):
            value = action.default
            default_text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            text = formatter._expand_help(action)
            assert default_text in text or "default" in text, (action.option_strings, text)
            assert text.count("(default") <= 1, text


def test_a_default_that_an_experiment_sets_is_the_one_that_is_shown(capsys: Any) -> None:
    parser = cli.common_parser("experiments.faults", "")
    parser.set_defaults(model="tiny")
    parser.print_help()
    assert "[@REVISION] (default tiny)" in " ".join(capsys.readouterr().out.split())


def test_the_whole_tells_its_version_with_the_commit() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "--version"], cwd=ROOT, capture_output=True, text=True
    )
    commit = version.checkout()
    assert done.returncode == 0 and done.stdout.startswith("decode-floor ")
    assert done.stdout.endswith(f", commit {commit}\n" if commit else "\n")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("10", (10,)),
        ("10,100", (10, 100)),
        ("10..1000*10", (10, 100, 1000)),
        ("10..999*10", (10, 100)),
        ("10..30+10,50", (10, 20, 30, 50)),
        ("7..7+1", (7,)),
        ("-1", (-1,)),
    ],
)
def test_numbers_and_ranges(text: str, numbers: tuple[int, ...]) -> None:
    assert cli.integers(text) == numbers


@given(st.integers(1, 50), st.integers(0, 500), st.integers(2, 9))
def test_a_range_holds_what_its_rule_says(first: int, more: int, by: int) -> None:
    last = first + more
    assert cli.integers(f"{first}..{last}+{by}") == tuple(range(first, last + 1, by))
    powers = cli.integers(f"{first}..{last}*{by}")
    assert powers[0] == first and powers[-1] <= last < powers[-1] * by
    assert all(after == by * before for before, after in itertools.pairwise(powers))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10,",
        "ten",
        "10..100",
        "100..10*2",
        "10..100*1",
        "10..100+0",
        "0..8*2",
        "1..9999999999999+1",
        "1.5",
    ],
)
def test_what_is_no_range_is_refused_in_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--context" in refusal("floor", [f"--context={text}"], capsys)


def test_samples_are_exported_a_row_per_step(tmp_path: Path) -> None:
    run = copied(tmp_path / "run")
    files = {"csv": tmp_path / "steps.csv", "jsonl": tmp_path / "steps.jsonl"}
    build.main([str(run), *(word for name, file in files.items() for word in (f"--{name}", str(file)))])
    record = json.loads((run / "run.json").read_text())
    steps = [
        (s["variant"], s["round"], n, ms) for s in record["samples"] for n, ms in enumerate(s["steps_ms"])
    ]
    lines = [json.loads(line) for line in files["jsonl"].read_text().splitlines()]
    assert [(r["variant"], r["round"], r["step"], r["ms"]) for r in lines] == steps
    rows = list(csv.DictReader(files["csv"].open()))
    assert [(r["variant"], int(r["round"]), int(r["step"]), float(r["ms"])) for r in rows] == steps


def test_a_run_without_steps_has_none_to_export(tmp_path: Path, capsys: Any) -> None:
    run = tmp_path / "run"
    run.mkdir()
    published = ROOT / "reports" / "published" / "2026-11-30-amd-epyc-2-cores-peers"
    shutil.copy(published / "run.json", run)  # its report is not made anew where it is published
    with pytest.raises(SystemExit) as stopped:
        cli.run(build.main, [str(run), "--csv", str(tmp_path / "steps.csv")])
    assert stopped.value.code == 2 and not (tmp_path / "steps.csv").exists()
    assert capsys.readouterr().err == "error: a run of peers has no timed steps to write\n"


def test_an_export_into_no_folder_is_refused_before_anything_runs(tmp_path: Path, capsys: Any) -> None:
    place = tmp_path / "none" / "steps.csv"
    assert "there is no folder" in refusal(
        "floor", ["--csv", str(place), "--out", str(tmp_path / "r")], capsys
    )
    assert not (tmp_path / "r").exists()


def test_more_threads_than_cores_are_allowed(tmp_path: Path) -> None:
    most = 4 * (os.cpu_count() or 1)
    parser = cli.common_parser("experiments.floor", "")
    assert parser.parse_args(["--threads", str(most)]).threads == most


COMMANDS = {
    "list": ["-m", "experiments"],
    "help": ["-m", "experiments.floor", "--help"],
    "rich": ["-m", "experiments.work", "--quick", "--model", "tiny", "--out", "OUT"],
    "json": ["-m", "experiments.sizing", "--quiet", "--json", "--out", "OUT"],
    "print": ["-m", "experiments.predict"],
    "report": ["-m", "reports.build", "RUN"],
}


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_closed_pipe_ends_a_command_quietly(name: str, buffered: bool, tmp_path: Path) -> None:
    """As in `... | head -1`, when head was faster."""
    places = {"OUT": str(tmp_path / "runs"), "RUN": str(copied(tmp_path / "floor"))}
    command = [sys.executable, *([] if buffered else ["-u"]), *(places.get(w, w) for w in COMMANDS[name])]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=120)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_command_ends_in_the_same_way() -> None:
    commands = {}
    for package in ("variants", "profiling", "experiments", "reports"):
        for file in (ROOT / package).rglob("*.py"):
            _, is_command, last = file.read_text("utf-8").partition('if __name__ == "__main__":\n')
            if is_command:
                commands[file.relative_to(ROOT).as_posix()] = last.strip()
    assert commands.pop("experiments/__main__.py") == "main()"  # which runs what is named
    assert len(commands) > 15 and set(commands.values()) == {"run(main)", "cli.run(main)"}


def test_a_default_model_of_an_experiment_is_no_shape() -> None:
    parser = cli.common_parser("experiments.faults", "")
    parser.set_defaults(model="tiny")
    assert parser.parse_args([]).model == "tiny"
    assert parser.parse_args(["--shape", "smollm2-135m"]).model == "shape:smollm2-135m"
