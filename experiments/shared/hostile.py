"""What a user may hand in, made wrong by a seed: each kind writes its input and returns what reads it.

What is changed is this project's own: the records and traces of its tests, known configs, and
a tiny checkpoint. A call ends by itself, or raises UserError; a command ends with SystemExit.
"""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from experiments.shared import cli
from experiments.shared.mutation import scrambled, wrong
from variants.config import PRESETS
from variants.described import gpt_config
from variants.hf_config import HfConfig, read_json
from variants.known_configs import KNOWN_CONFIGS

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT / "tests" / "data"
Call = Callable[[], object]
Make = Callable[[Random, Path, Path], Call]  # draws, where the input goes, where results may go
WHOLE = 0.1  # share of records and configs that go through the whole command, with its figures

NUMBERS = (
    "0", "-1", "1", "7", "3.5", "nan", "inf", "1e400", str(2**31), str(2**63), "9" * 400, "x", "1,,2", "9,99",
)  # fmt: skip
PLACES = (
    "x" * 300, "two words", "größe", "-dash", "nul\0", "\udcff", "", "a\nb", "/dev/null", "/proc/x", "*",
)  # fmt: skip
NAMES = (
    "gpt2", "tiny", "llama-2-7b", "cat,sdpa", "all", "H100", "turbo", "", "../..", "float32", "hf", "fp8",
)  # fmt: skip


# -- what is right --------------------------------------------------------------------------------


@cache
def records() -> list[Any]:
    files = [*(DATA / "records").glob("*.json"), DATA / "floor_run" / "run.json"]
    files += (ROOT / "reports" / "published").glob("*/run.json")
    return [json.loads(file.read_bytes()) for file in sorted(files) if file.stat().st_size < 1 << 18]


@cache
def traces() -> list[Any]:
    files = sorted((DATA / "floor_run" / "traces").glob("*.gz"))
    return [json.loads(gzip.decompress(file.read_bytes())) for file in files]


@cache
def checkpoint() -> Path:
    """config.json, model.safetensors and tokenizer.json of the tiny model."""
    from profiling.peers.checkpoint import hugging_face
    from variants.model import random_model

    folder = Path("tiny").absolute()  # the process stands in a folder of its own
    if not folder.exists():
        hugging_face(random_model(PRESETS["tiny"]), folder)
    return folder


def beside(place: Path, *names: str) -> None:
    """These files of the checkpoint, as they are."""
    for name in names:
        (place / name).write_bytes((checkpoint() / name).read_bytes())


def warm_up() -> None:
    """Load and make what is needed once: libraries, fonts, the checkpoint."""
    from reports.build import build
    from variants.model import empty_model

    checkpoint()
    shutil.copytree(DATA / "floor_run", "warm-up", dirs_exist_ok=True)
    build(Path("warm-up"))
    tempfile.gettempdir()  # tries by writing which folder that is
    with_positions = HfConfig.of(KNOWN_CONFIGS["llama-2-7b"], "llama-2-7b")
    empty_model(gpt_config(with_positions, 64))  # torch loads its compiler for it, which makes a folder
    records(), traces()


def command(name: str, *words: str) -> Call:
    """`python -m experiments.NAME WORDS`."""
    return lambda: cli.run(import_module(f"experiments.{name}").main, words)


# -- the kinds ------------------------------------------------------------------------------------


def record(random: Random, place: Path, out: Path) -> Call:
    """A run folder: reported, printed and summed up."""
    run = out / "run"
    run.mkdir()
    (run / "run.json").write_bytes(wrong(random.choice(records()), random))
    whole = random.random() < WHOLE

    def call() -> None:
        from markupsafe import Markup

        from profiling.results.folder import RunFolder
        from profiling.results.record import FloorRecord, Record
        from profiling.results.summary import summary
        from reports.build import build, page_of, study
        from reports.printers.html import html
        from reports.printers.markdown import markdown
        from reports.sections.brief import brief

        page = page_of(run)
        markdown(page), html(page, defaultdict(Markup))
        if isinstance(read := RunFolder.load(run, Record).record, FloorRecord):
            floor = RunFolder(run, read)
            markdown(brief(study(floor)))
            cli.encoded(summary(floor))
        if whole:
            build(run)

    return call


def trace(random: Random, place: Path, out: Path) -> Call:
    """A trace: explained."""
    content = wrong(random.choice(traces()), random)
    file = place / random.choice(["trace.json", "trace.json.gz"])
    if file.suffix == ".gz":
        content = gzip.compress(content, 1, mtime=0)
        content = scrambled(content, random) if random.random() < 0.3 else content
    file.write_bytes(content)
    step = random.choice([[], [], ["--step", random.choice(["(", "step", "", "x" * 10_000])]])
    report = ["--out", str(out / "explained")] if random.random() < WHOLE else []
    return command("explain", str(file), "--json", "--quiet", *step, *report)


def config(random: Random, place: Path, out: Path) -> Call:
    """A config.json: sized, and built without memory."""
    file = place / "config.json"
    file.write_bytes(wrong(random.choice([*KNOWN_CONFIGS.values()]), random))
    whole = random.random() < WHOLE

    def call() -> None:
        from profiling.sizing.read_shape import read_shape
        from variants.model import empty_model

        if whole:
            name, *place_of = random.choice([["sizing", "--out", str(out)], ["predict"]])
            command(name, "--model", str(file), "--json", "--quiet", *place_of)()
        read_shape(str(file))
        empty_model(gpt_config(HfConfig.of(read_json(file), str(file)), 64))

    return call


def loaded(place: Path) -> Call:
    def call() -> None:
        from profiling.sizing.read_shape import read_shape
        from variants.weights import load_model

        read_shape(str(place))
        load_model(place)

    return call


def safetensors(random: Random, place: Path, out: Path) -> Call:
    """Weights whose header or bytes are wrong: loaded."""
    content = (checkpoint() / "model.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    if random.random() < 0.7:
        header = wrong(json.loads(content[8 : 8 + size]), random)
        size = random.choice([len(header)] * 8 + [random.getrandbits(64), len(header) + 1])
        content = size.to_bytes(8, "little") + header + content[8 + size :]
    else:
        content = scrambled(content, random)
    beside(place, "config.json")
    (place / "model.safetensors").write_bytes(content)
    return loaded(place)


def index(random: Random, place: Path, out: Path) -> Call:
    """A sharded checkpoint's index: loaded."""
    content = (checkpoint() / "model.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    shard = "model-00001-of-00001.safetensors"
    placed = {name: shard for name in header if name != "__metadata__"}
    beside(place, "config.json")
    (place / shard).write_bytes(content)
    raw = {"metadata": {"total_size": len(content)}, "weight_map": placed}
    (place / "model.safetensors.index.json").write_bytes(wrong(raw, random))
    return loaded(place)


def tokenizer(random: Random, place: Path, out: Path) -> Call:
    """A tokenizer.json: a prompt to tokens and back."""
    raw = json.loads((checkpoint() / "tokenizer.json").read_bytes())
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    raw |= {"pre_tokenizer": bytewise, "decoder": bytewise}
    (place / "tokenizer.json").write_bytes(wrong(raw, random))

    def call() -> None:
        from experiments.shared.text import Pieces, encoded, ends_of_text, load_tokenizer

        tokenizer = load_tokenizer(place)
        ends_of_text(place, tokenizer)
        if tokenizer is not None:
            encoded(tokenizer, "t1 hello <b> \0")
        pieces = Pieces(tokenizer)
        pieces.of([0, 1, 5, 100]), pieces.rest()

    return call


def command_line(random: Random, place: Path, out: Path) -> Call:
    """Flags with any values, of a command that measures nothing, or as far as they are parsed."""
    name = random.choice(["sizing", "predict", "build", "floor", "generate", "growth", "peers", "prove"])
    module = import_module("reports.build" if name == "build" else f"experiments.{name}")
    flags = ["RUN"] if name == "build" else flags_of(module.parser())
    words = ["--list"] if name == "floor" else []  # whatever else is right, nothing is measured
    words += [] if name in ("build", "predict") else ["--out", str(out)]
    for flag in random.choices(flags, k=random.randint(0, 4)):
        value = random.choice(random.choice([NUMBERS, PLACES, NAMES]))
        if flag in ("--out", "--table"):
            value = str(out / value.replace("/", "_"))
        words += [value] if flag == "RUN" else random.choice([[flag, value], [flag], [f"{flag}={value}"]])

    def parse(argv: Sequence[str] | None) -> None:
        module.parser().parse_args(argv)

    measures = name in ("generate", "growth", "peers", "prove")
    return lambda: cli.run(parse if measures else module.main, words)


def flags_of(parser: Any) -> list[str]:
    """Every flag that changes what is done."""
    flags = [flag for action in parser._actions for flag in action.option_strings]
    return [flag for flag in flags if flag not in ("-h", "--help")]


KINDS: dict[str, Make] = {
    "record": record,
    "trace": trace,
    "config": config,
    "safetensors": safetensors,
    "index": index,
    "tokenizer": tokenizer,
    "command line": command_line,
}
