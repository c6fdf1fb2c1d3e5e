"""A row of the published table as something to predict, or the reason why it is out of range.

Columns as in the published table; the measured time is not looked at. A missing column or a value that is no
number is a UserError that names the line.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

from profiling.forecast import engines, hosts
from profiling.forecast.devices import find
from profiling.forecast.engines import Engine, Family, Mode
from profiling.forecast.job import NATIVE_BITS, PACKED_BITS, Job
from profiling.forecast.scope import SERVING, why_not
from profiling.forecast.step import Setup
from variants.errors import UserError

COLUMNS = (
    *(
        "id",
        "source",
        "date",
        "gpu",
        "n_gpu",
        "host_cpu",
        "framework",
        "model",
        "layers",
        "hidden",
        "vocab",
        "precision",
        "batch",
    ),
    *("context", "weight_bytes", "kv_bytes", "mode", "mlp"),
)
MAX_ROWS = 8  # of a batch: beyond, products are no longer matrix times vector
WHOLE_BUFFER = (
    4096  # tokens: gpt-fast's eager attention copies its whole static cache, once per group of heads
)
GRAPH_LIMIT = 8192  # tokens: vLLM before 0.6 runs eager beyond (max_seq_len_to_capture)

MAX = 1e15  # of any number in a table: beyond, it is a mistake


class OutOfRange(Exception):
    """Nothing here predicts this step; the message says why."""


@dataclass(frozen=True)
class Row:
    """One row: its values as text by column, with where it stands."""

    where: str
    values: dict[str, str]

    def text(self, name: str) -> str:
        return self.values[name].strip()

    def number(self, name: str, default: float | None = None) -> float:
        """A number from 0 to MAX. `default`: of an empty field."""
        text = self.text(name)
        try:
            value = float(text) if text or default is None else default
        except ValueError:
            value = math.nan
        if not 0 <= value <= MAX:
            raise UserError(f"{self.where}: {name} is {text!r}; a number from 0 to {MAX:g} is needed")
        return value

    def positive(self, name: str) -> float:
        value = self.number(name)
        if not value:
            raise UserError(f"{self.where}: {name} is 0; more is needed")
        return value

    def whole(self, name: str, default: float | None = None) -> int:
        """A whole number of at least 1."""
        value = self.number(name, default)
        if value < 1 or value % 1:
            raise UserError(
                f"{self.where}: {name} is {self.text(name)!r}; a whole number of at least 1 is needed"
            )
        return int(value)


def read(path: Path) -> list[Row]:
    """All rows. Raises UserError for a file that is not such a table."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # a spreadsheet's mark at its start or none
            head, *lines = list(csv.reader(file)) or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: not a readable table ({error})") from None
    if missing := [name for name in COLUMNS if name not in head]:
        raise UserError(
            f"{path}: no column {', '.join(missing)}; its first line has {', '.join(head) or 'none'}"
        )
    rows = []
    for index, fields in enumerate(lines, 2):
        if fields and len(fields) != len(head):
            raise UserError(
                f"{path}, row {index}: {len(fields)} fields, not {len(head)} as in the first line"
            )
        if fields:
            rows.append(Row(f"{path}, row {index}", dict(zip(head, fields, strict=True))))
    if not rows:
        raise UserError(f"{path}: no row under its first line; one per step is expected")
    return rows


_BY_FRAMEWORK = (
    ("vllm", engines.VLLM),
    ("sglang", engines.SGLANG),
    ("tensorrt", engines.TENSORRT_LLM),
    ("gpt-fast", engines.GPT_FAST),
    ("automegakernel", engines.GPT_FAST),  # its eager and graph baselines are a model of that kind
    ("llama.cpp", engines.LLAMA_CPP),
    ("tinygrad", engines.TINYGRAD),
    ("fastertransformer", engines.FASTER_TRANSFORMER),
    ("transformers", engines.HF),
)
_MODES = {
    "eager-hf": Mode.EAGER, "eager-torch": Mode.EAGER, "eager-vllm": Mode.EAGER, "llama.cpp": Mode.STREAM,
    "llama.cpp-nograph": Mode.STREAM, "llama.cpp-graph": Mode.GRAPH, "tinygrad-jit": Mode.GRAPH,
} | {mode.value: mode for mode in Mode}  # fmt: skip
_OF_MODE = {"eager-hf": engines.HF, "eager-torch": engines.GPT_FAST, "eager-vllm": engines.VLLM}


def _engine(row: Row, mode: Mode) -> Engine:
    engine = _named_engine(row, mode)
    return engines.HF_2024 if engine is engines.HF and row.text("date")[:4] < "2025" else engine


def _named_engine(row: Row, mode: Mode) -> Engine:
    named, framework = row.text("mode"), row.text("framework").lower()
    if named in _OF_MODE:
        return _OF_MODE[named]
    if named.startswith("llama.cpp"):
        return engines.LLAMA_CPP
    if mode in (Mode.ONE_LAUNCH, Mode.DEPENDENT):
        return engines.MEGAQWEN if framework == "cooperative megakernel" else engines.NATIVE
    engine = next((known for name, known in _BY_FRAMEWORK if name in framework), None)
    if engine is None and re.match(r"hf\b", framework):
        return engines.HF
    if engine is None and mode is Mode.STREAM:
        return engines.NATIVE
    if engine is None or mode not in engine.modes:
        raise OutOfRange(f"what {row.text('framework') or 'this framework'} launches as {named} is not known")
    return engine


_FAMILIES = (
    ("qwen3", Family.QWEN3), ("qwen", Family.QWEN2), ("mistral", Family.MISTRAL), ("opt-", Family.OPT),
    ("gpt-neox", Family.NEOX), ("pythia", Family.NEOX), ("gpt", Family.GPT2), ("phi-", Family.PHI3),
    ("gemma", Family.GEMMA),
)  # fmt: skip


def _family(row: Row) -> Family:
    name = row.text("model").lower()
    known = next((family for part, family in _FAMILIES if part in name), None)
    return known or (Family.GPT2 if row.text("mlp") == "plain" else Family.LLAMA)


def _check_precision(row: Row, engine: Engine, mode: Mode) -> None:
    precision, framework = row.text("precision"), row.text("framework").lower()
    if precision not in NATIVE_BITS and precision not in PACKED_BITS:
        raise OutOfRange(f"kernels of {precision} are not limited by bytes, and their rate is not known")
    if reason := why_not(engine, mode, precision):
        raise OutOfRange(reason)
    if precision == "awq" and re.search(r"vllm 0\.[0-5]\b", framework):
        raise OutOfRange("AWQ before Marlin kernels is not limited by bytes")


def setup_of(row: Row) -> Setup:
    """The setup that the row ran in. Raises OutOfRange."""
    named, context = row.text("mode"), row.number("context")
    if named not in _MODES:
        raise OutOfRange(f"mode {named!r} is not known")
    mode = _MODES[named]
    engine = _engine(row, mode)
    _check_precision(row, engine, mode)
    if row.whole("n_gpu", 1) != 1:
        raise OutOfRange("more than one device: what they exchange is not modelled")
    if row.whole("batch", 1) > MAX_ROWS:
        raise OutOfRange(f"a batch above {MAX_ROWS}: products are no longer matrix times vector")
    if re.search(r"vllm 0\.[0-5]\b", row.text("framework").lower()) and context > GRAPH_LIMIT:
        raise OutOfRange(f"this engine runs eager beyond {GRAPH_LIMIT} tokens")
    if engine is engines.GPT_FAST and mode is Mode.EAGER and context > WHOLE_BUFFER:
        raise OutOfRange(
            f"eager attention copies its whole static cache: not modelled beyond {WHOLE_BUFFER} tokens"
        )
    try:
        device = find(row.text("gpu"))
    except UserError:
        raise OutOfRange(f"device {row.text('gpu')!r} is not known") from None
    machine = hosts.machine(row.text("source"), device.name)
    device = replace(device, host=hosts.kind(row.text("host_cpu"), device.host))
    between = engine in SERVING and row.text("date")[:4] < "2025"
    return Setup(device, engine, mode, between, machine.host_us if machine else None)


def job_of(row: Row) -> Job:
    """The step of the row: bytes that it reads and how its weights are stored."""
    precision = row.text("precision")
    bits = NATIVE_BITS.get(precision) or PACKED_BITS[precision]
    weight_bytes = row.positive("weight_bytes")
    return Job(
        _family(row),
        row.whole("layers"),
        weight_bytes,
        weight_bytes * 8 / bits,
        row.number("kv_bytes"),
        packed=precision not in NATIVE_BITS,
        casts=bits != 32,
    )
