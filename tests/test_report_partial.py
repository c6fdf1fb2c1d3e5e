"""A report of whatever there is: interrupted, failed, partly measured runs; without traces, without torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from floor_run import ROOT, Record, copied, section, tables, text_of

from profiling.results.rules import NOT_ASKED, UNDECIDED
from reports.build import build
from variants.errors import UserError

BUILT = (
    "gate",
    "prediction",
    "memory",
    "slots",
    "ops",
    "trace",
    "compiled_steps",
    "warm_up_s",
    "narrow_bytes",
)


def only_begun(record: Record) -> None:
    keys = ("schema", "experiment", "command", "started", "warnings")
    for key in [key for key in record if key not in keys]:
        del record[key]
    record["status"] = "incomplete"


def described(record: Record) -> None:
    record.update(status="incomplete", samples=[], floors=[], ttft=[])
    record.pop("predicted_replay", None)
    for entry in record["variants"].values():
        for key in BUILT:
            entry.pop(key, None)
        entry["status"] = "planned"


def not_timed(record: Record) -> None:
    record.update(status="incomplete", samples=[], floors=[], ttft=[])


def one_round(record: Record) -> None:
    record["status"] = "incomplete"
    for key in ("samples", "floors", "ttft"):
        record[key] = [row for row in record[key] if row["round"] == 0]


def not_traced(record: Record) -> None:
    record.pop("predicted_replay", None)
    for entry in record["variants"].values():
        entry.pop("trace", None)


def crashed(record: Record) -> None:
    record["variants"]["static"].update(status="failed", reason="RuntimeError: a | b\nc")
    del record["variants"]["static"]["gate"]
    for key in ("samples", "ttft"):
        record[key] = [row for row in record[key] if row["variant"] not in ("static", "tape")]
    record["variants"]["tape"].update(status="not run", reason="needs a CUDA device")
    for key in BUILT:
        record["variants"]["tape"].pop(key, None)


INCOMPLETE = {f.__name__: f for f in (only_begun, described, not_timed, one_round, not_traced, crashed)}

NOTHING_REPLAYED = ("only_begun", "described", "crashed")  # then launches are not asked about


@pytest.mark.parametrize("case", INCOMPLETE)
def test_whatever_there_is_gives_a_report(case: str, tmp_path: Path) -> None:
    path = copied(tmp_path / "floor", INCOMPLETE[case])
    build(path)
    text, page = (path / "report.md").read_text(), (path / "report.html").read_text()
    assert not {"nan", "None", "inf"} & set(re.findall(r"\w+", text))
    complete = json.loads((path / "run.json").read_text())["status"] == "complete"
    unfinished = "**This run is unfinished**: it is still running, or it was interrupted."
    assert (unfinished in text) != complete  # the record cannot know which
    word = NOT_ASKED if case in NOTHING_REPLAYED else UNDECIDED
    assert f"**{word}**" in text and f"<strong>{word}</strong>" in page
    assert "How to make it again" in text


def test_failed_and_not_run_are_shown_with_their_reasons(tmp_path: Path) -> None:
    text = text_of(copied(tmp_path / "floor", crashed))
    rows = {
        row["variant"]: row for row in tables(section(text, "Failed, and not run").replace("\\|", "/"))[0]
    }
    assert rows["`static`"] == {
        "variant": "`static`",
        "status": "**FAILED**",
        "reason": "RuntimeError: a / b c",
    }
    assert rows["`tape`"]["reason"] == "needs a CUDA device"
    ladder = {row["variant"]: row for row in tables(section(text, "The ladder"))[0]}
    assert ladder["`static`"]["gate"] == "**FAILED**" and not ladder["`static`"]["context 10"]


def test_builds_without_torch(tmp_path: Path) -> None:
    """Also without whatever would import it."""
    path = copied(tmp_path / "floor")
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name.split('.')[0] == 'torch': raise ImportError('torch is not for reports')\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from reports.build import main\n"
        f"sys.exit(main([{str(path)!r}]))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=120, capture_output=True)
    assert (path / "report.html").exists()


def test_bad_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a run folder"):
        build(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "reports.build", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stderr.startswith("error: ")
