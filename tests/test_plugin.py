"""Other people's code as a rung: as a file and as a package, proven as ours is, or FAILED with the reason."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from floor_run import ROOT, text_of
from torch import Tensor

from experiments import floor
from experiments.shared import cli
from profiling.gate import Gate
from profiling.measure.expect import floor_bytes
from profiling.results.folder import RunFolder
from profiling.results.metrics import Measured
from profiling.results.record import FloorRecord, GateResult
from variants.backends.plugin import Source, plugin_option
from variants.config import PRESETS
from variants.decoder import Decoder
from variants.errors import UserError
from variants.ladder import BASELINE, ladder, with_plugins
from variants.model import GPT, random_model
from variants.spec import Variant

EXAMPLE = ROOT / "examples" / "plugin"
LISTS = f"{EXAMPLE / 'lists.py'}:Lists"
UNSEEN = {"weights", "unused slots"}  # what nobody sees from outside
BARE = UNSEEN | {
    "chunks",
    "rewind",
    "drafts",
    "interleaved",
    "capacity",
    "every slot",
    "numerics",
    "long run",
}


def lists() -> Any:
    """The class of the example."""
    return with_plugins([LISTS], ladder())[0]["Lists"].backend.source.load()  # type: ignore[attr-defined]


def rung(plugin: Any) -> Variant:
    """A plug-in that needs no import, as a rung."""
    option = plugin_option(Source("own", "here", lambda: plugin))
    return ladder()[BASELINE].then("own", "nothing", backend=option)


def proven(plugin: Any, model: GPT) -> GateResult:
    gate = Gate(model, "float32", capacity=32, contexts=(5,), steps=8, forced=4)
    return gate.check(Decoder.of(rung(plugin), model, capacity=32))


def whole() -> Any:
    """The example with every method that it may have."""
    base = lists()
    run = sys.modules[base.__module__].logits

    class Whole(base):  # type: ignore[misc, valid-type]
        def extend(self, tokens: Tensor) -> Tensor:
            logits: Tensor = run(self.model, tokens, self.past)
            return logits

        def rewind(self, n: int) -> None:
            held = [tuple(torch.cat(parts, dim=2) for parts in zip(*kv, strict=True)) for kv in self.past]
            self.past = [[(k[:, :, :n], v[:, :, :n])] for k, v in held]

        def load(self, tokens: Tensor, kv: list[tuple[Tensor, Tensor]]) -> None:
            self.past = [[pair] for pair in kv]

        def buffers(self) -> list[Tensor]:
            return [self.model.lm_head.weight]

    return Whole


def test_the_page_shows_the_example() -> None:
    text = (EXAMPLE / "lists.py").read_text("utf-8")
    assert f"```python\n{text}```" in (ROOT / "docs" / "adding.md").read_text("utf-8")


def test_three_methods_are_proven_as_far_as_they_answer(model: GPT) -> None:
    result = proven(lists(), model)
    assert result.status == "pass", result.reason
    assert result.checks[0].check == "reference"
    assert {check.check for check in result.unproven} == BARE
    details = {check.check: check.detail for check in result.unproven}
    assert details["chunks"] == "it has no extend" and details["rewind"] == "it has no extend"
    assert details["long run"] == "it has no rewind" and details["numerics"] == "it has no load"


def test_every_method_more_proves_more(model: GPT) -> None:
    result = proven(whole(), model)
    assert result.status == "pass", result.reason
    assert {check.check for check in result.unproven} == UNSEEN


def broken(base: Any, method: str) -> Any:
    """The class with a fault in one of its methods."""

    def answered(self: Any, *given: Any) -> Any:
        if method == "load":
            tokens, kv = given
            return base.load(self, tokens, [(k, v * 1.01) for k, v in kv])
        if method == "rewind":
            return base.rewind(self, max(1, given[0] - 1))
        return getattr(base, method)(self, *given) * 1.01

    return type("Broken", (base,), {method: answered})


CAUGHT = {
    "reference": {"reference"},
    "prefill": {"greedy"},
    "step": {"greedy"},
    "extend": {"chunks"},
    "rewind": {"rewind"},
    "load": {"contexts", "every slot", "numerics"},
}


@pytest.mark.parametrize("method", CAUGHT)
def test_a_fault_in_any_method_is_seen(method: str, tiny: GPT) -> None:
    result = proven(broken(whole(), method), tiny)
    assert result.failed is not None and result.failed.check in CAUGHT[method], result.reason


def spoiling(what: str) -> Any:
    """The example, which does something to the process or to what it is given."""
    base = lists()

    class Spoils(base):  # type: ignore[misc, valid-type]
        def __init__(self, model: GPT, batch: int, capacity: int) -> None:
            super().__init__(model, batch, capacity)
            if what == "weights":
                model.lm_head.weight.data.mul_(1.5)
            if what == "dtype":
                torch.set_default_dtype(torch.float64)

        def prefill(self, tokens: Tensor) -> Tensor:
            logits: Tensor = super().prefill(tokens)
            if what == "text":
                tokens.zero_()
            self.kept = logits  # a buffer that the next answer overwrites
            return logits

        def step(self, token: Tensor) -> Tensor:
            if what == "threads":
                torch.set_num_threads(torch.get_num_threads() + 1)
            if what == "end":
                raise GeneratorExit
            logits: Tensor = super().step(token)
            return self.kept.copy_(logits)

    return Spoils


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("weights", "it changed the model's weights"),
        ("dtype", "torch.set_default_dtype"),
        ("threads", "torch.set_num_threads"),
        ("end", "it ended the program with GeneratorExit"),
    ],
)
def test_what_a_plugin_does_to_the_others_fails_it_alone(what: str, reason: str) -> None:
    model, threads = random_model(PRESETS["tiny"], 0), torch.get_num_threads()
    gate = Gate(model, "float32", capacity=32, contexts=(5,), steps=4, forced=2)
    said = ""
    try:
        said = gate.check_briefly(Decoder.of(rung(spoiling(what)), model, capacity=32)).reason or ""
    except RuntimeError as error:  # of its constructor
        said = str(error)
    assert reason in said
    assert torch.get_num_threads() == threads and torch.get_default_dtype() == torch.float32


def test_the_text_is_not_the_plugins_to_change_nor_an_answer_once_given(tiny: GPT) -> None:
    decoder = Decoder.of(rung(spoiling("text")), tiny, capacity=32)
    text = torch.ones(1, 5, dtype=torch.long)
    logits = decoder.prefill(text)
    first = logits.clone()
    decoder.advance()
    assert text.eq(1).all() and torch.equal(logits, first)


def test_its_floor_is_of_the_bytes_that_it_names(tiny: GPT) -> None:
    bare, own = (Decoder.of(rung(plugin), tiny, capacity=32) for plugin in (lists(), whole()))
    assert floor_bytes(bare, 10) == floor_bytes(Decoder.of(ladder()["cat"], tiny, capacity=32), 10)
    all_weights = sum(p.nbytes for p in tiny.parameters() if p is not tiny.wpe.weight)
    assert floor_bytes(bare, 10) - floor_bytes(own, 10) == all_weights - tiny.lm_head.weight.nbytes


# -- whole runs -----------------------------------------------------------------------------------

FAULTY = {
    "Misses": "TypeError: Misses has no method step",
    "Ends": "RuntimeError: it ended the program with 3",
    "Thin": r"greedy: TypeError: prefill answered \[1, 1, 101\] on cpu, expected logits \[1, 101\] on cpu",
    "Absent": "AttributeError: .* has no attribute 'Absent'",
    "Late": "greedy: RuntimeError: out of paper",
}
CODE = """
import sys
sys.path.insert(0, {example!r})
from lists import Lists
sys.path.pop(0)

class Misses:
    def __init__(self, model, batch, capacity): pass
    def prefill(self, tokens): pass
    def reference(self, tokens): pass

def Ends(model, batch, capacity):
    sys.exit(3)

class Thin(Lists):
    def prefill(self, tokens):
        return super().prefill(tokens)[:, None]

class Late(Lists):
    def step(self, token):
        raise RuntimeError("out of paper")
"""
QUICKEST = ["--model", "tiny", "--context", "6,20", "--rounds", "3", "--quick", "--threads", "1", "--quiet"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example beside plug-ins of all kinds of faults."""
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "faulty.py").write_text(CODE.format(example=str(EXAMPLE)))
    (folder / "ill.py").write_text("import nothing_of_this_name\n")
    names = [LISTS, *(f"{folder / 'faulty.py'}:{name}" for name in FAULTY)]
    names += [f"{folder / 'ill.py'}:Ill", f"{folder / 'none.py'}:Nowhere"]
    flags = [word for name in names for word in ("--variant", name)]
    assert floor.main([*QUICKEST, *flags, "--max-time", "1s", "--out", str(folder / "runs")]) == 0
    (path,) = (folder / "runs").iterdir()
    return path


def test_a_plugin_is_measured_beside_ours(run: Path) -> None:
    record = RunFolder.load(run, FloorRecord).record
    entry, measured = record.variants["Lists"], Measured(record)
    assert (entry.status, entry.parent) == ("proven", "cat"), entry.reason
    assert entry.difference == ("backend", "modules", "lists.py:Lists")
    lists_rung = measured.rung("Lists")
    assert lists_rung.measured and lists_rung.ratio_to_memory_floor and lists_rung.ratio_to_parent
    assert entry.narrow_bytes.keys() == {64}
    assert measured.duel is not None and ("cat", "Lists") in measured.duel.pairs()
    assert entry.trace is not None and (run / "traces" / "Lists.pt.trace.json.gz").exists()


def test_what_fails_says_why_and_the_others_go_on(run: Path) -> None:
    entries = RunFolder.load(run, FloorRecord).record.variants
    expected = FAULTY | {
        "Ill": "ModuleNotFoundError: .*nothing_of_this_name",
        "Nowhere": "ImportError: .*no Python file",
    }
    for name, reason in expected.items():
        assert entries[name].status == "failed" and re.match(reason, entries[name].reason), entries[
            name
        ].reason
    assert entries["cat"].status == "proven"


def test_the_report_says_what_is_not_proven(run: Path) -> None:
    report = text_of(run)
    assert "not proven of `Lists`: numerics (it has no load)" in report


def test_a_record_cannot_ask_for_code(run: Path) -> None:
    with pytest.raises(UserError, match="measured the plug-in"):
        floor.main(["--resume", str(run), "--max-time", "1s", "--quiet"])


def test_a_name_of_the_ladder_is_refused(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.run(floor.main, ["--variant", f"{tmp_path / 'mine.py'}:sdpa", "--out", str(tmp_path / "runs")])
    assert stopped.value.code == 2 and not (tmp_path / "runs").exists()
    assert "mine.py:sdpa: there is a variant sdpa already; rename it" in capsys.readouterr().err


# -- as a package ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the example is installed: what an installer writes, without one, or a network.

    Whoever imports it leaves a file named `imported`.
    """
    target = tmp_path_factory.mktemp("site")
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text("utf-8"))
    for name in project["tool"]["setuptools"]["py-modules"]:
        shutil.copy(EXAMPLE / f"{name}.py", target)
    with (target / "lists.py").open("a") as file:
        file.write(f"\nfrom pathlib import Path\nPath({str(target / 'imported')!r}).touch()\n")
    about = project["project"]
    metadata = target / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n"
    )
    groups = about["entry-points"].items()
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return target


def floor_with(package: Path, *flags: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(package)}
    command = [sys.executable, "-m", "experiments.floor", *flags]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_and_list_name_a_package_and_import_nothing_of_it(package: Path) -> None:
    floor_with(package, "--help")
    assert re.search(r"lists +lists:Lists", floor_with(package, "--list"))
    assert not (package / "imported").exists()


def test_an_installed_package_is_measured_by_name(package: Path, tmp_path: Path) -> None:
    floor_with(package, *QUICKEST, "--variant", "lists", "--no-trace", "--out", str(tmp_path))
    (path,) = tmp_path.iterdir()
    entry = RunFolder.load(path, FloorRecord).record.variants["lists"]
    assert entry.status == "proven" and entry.difference == ("backend", "modules", "lists:Lists")
    assert (package / "imported").exists()
