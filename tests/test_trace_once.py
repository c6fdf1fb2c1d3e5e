"""A command reads each trace once, and works out once what several parts of the analysis need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments import explain, floor
from profiling.analysis.attribution import device
from profiling.trace import devices, file
from tests.synthetic_trace import Synthetic, eager, on_host

ONCE = [
    (file, "open_source"),
    (devices, "calls_of"),
    (file, "host_ops_of"),
    (devices, "main_device_of"),
    (device, "owners"),
]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of `ONCE` is called; of a file also under its name."""
    count: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(first: Any, *rest: Any, **more: Any) -> Any:
            count.update([name] if not isinstance(first, Path) else [name, first.name])
            return function(first, *rest, **more)

        return counted

    for module, name in ONCE:
        monkeypatch.setattr(module, name, counting(name, getattr(module, name)))
    return count


@pytest.mark.parametrize("synthetic", [eager(steps=3), on_host()], ids=["device", "host"])
def test_explain_with_a_report(synthetic: Synthetic, tmp_path: Path, calls: Counter[str], capsys) -> None:
    path = synthetic.write(tmp_path / "t.json")
    assert explain.main([str(path), "--json", "--out", str(tmp_path / "explained")]) == 0
    assert calls == dict.fromkeys(["t.json", *(name for _, name in ONCE)], 1)


def test_explain_against_another_reads_two(tmp_path: Path, calls: Counter[str], capsys) -> None:
    paths = [eager(steps=steps).write(tmp_path / f"{steps}.json") for steps in (3, 4)]
    assert explain.main([str(paths[0]), "--against", str(paths[1])]) == 0
    assert {calls[name] for _, name in ONCE} == {2}


def test_a_floor_study_with_its_report(tmp_path: Path, calls: Counter[str]) -> None:
    flags = ["--model", "tiny", "--context", "6,20", "--rounds", "2", "--quick", "--max-time", "1s"]
    floor.main([*flags, "--variant", "naive,tape", "--out", str(tmp_path), "--quiet"])
    (folder,) = tmp_path.iterdir()
    trace_names = {trace.name for trace in (folder / "traces").iterdir()}
    assert len(trace_names) > 6 and (folder / "figures/timeline.json").exists()
    again = "duel-sdpa.pt.trace.json.gz"  # one trace after the other
    assert {calls[name] for name in trace_names - {again}} == {1}
    assert len({calls[name] for _, name in ONCE}) == 1
