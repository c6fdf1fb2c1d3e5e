"""What every experiment's command line shares: flags, one-line errors, output.

Torch-free: `--help` answers at once.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count, islice, takewhile
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from profiling.results.record import Workload
from variants import command
from variants.config import PRESETS
from variants.errors import UserError
from variants.hub import TRAINED
from variants.known_configs import KNOWN_CONFIGS, SHAPE
from variants.option import declared
from variants.slots.precision import PrecisionOption

T = TypeVar("T")
Flag = Literal["context", "steps", "rounds"]
DEVICES = ("auto", "cpu", "cuda", "mps")
PRECISIONS = tuple(name for name, option in declared(PrecisionOption).items() if option.plain)
SEEDS = 2**63  # torch refuses the double of it, and `random` takes -1 for 1 without a word
NUMBERS = "numbers, or ranges like 10..1000*10 or 10..90+20"
MAX_NUMBERS = 1000  # of a range
MAX_PER_CORE = 4  # threads: with many more a step takes minutes, as each waits actively for the others


class Parser(command.Parser):
    """Knows the flags that many experiments have."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The flags as argparse reads them; numbers that no experiment can use are refused here."""
        arguments = super().parse_args(args, namespace)
        seed, threads = getattr(arguments, "seed", 0), getattr(arguments, "threads", None)
        for name in ("batch", "steps", "rounds"):
            count = getattr(arguments, name, None)
            if isinstance(count, int) and count < 1:
                raise UserError(f"--{name} must be at least 1, got {count}")
        if not 0 <= seed < SEEDS:
            raise UserError(f"--seed must be from 0 to 2^63 - 1, got {seed}")
        cores = os.cpu_count() or 1
        most = MAX_PER_CORE * cores
        for count in threads if isinstance(threads, tuple) else (threads,):
            if count is not None and count < 1:
                raise UserError(f"--threads must be at least 1, got {count}")
            if count is not None and count > most:
                raise UserError(
                    f"--threads must be from 1 to {most}, got {count}: beyond {MAX_PER_CORE} for each of "
                    f"the {cores} cores here they do little but wait for each other"
                )
        return arguments


class _Shape(argparse.Action):
    """Stores a model's name as a shape's. No `type`: that would be applied to a default of `--model` too."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: Any = None) -> None:
        setattr(namespace, self.dest, SHAPE + values)


def common_parser(
    module: str,
    doc: str,
    examples: Sequence[str] = (),
    usual: Workload | None = None,
    quick: Workload | None = None,
    used: Sequence[Flag] = ("context", "steps", "rounds"),
) -> argparse.ArgumentParser:
    """A parser with the flags that all measuring experiments share. `doc` is the module's docstring.

    `usual` and `quick` are what it does without the flags that are `used`, and with `--quick`.
    """

    def default(flag: Flag) -> str:
        if flag not in used:
            return ": no meaning here"
        plain, fewer = (_default(w, flag) for w in (usual or Workload(), quick or usual or Workload()))
        return f" (default {plain})" if fewer == plain else f" (default {plain}, with --quick {fewer})"

    parser = plain_parser(module, doc, examples)
    add = parser.add_argument
    add("--device", choices=DEVICES, default="auto", help="where to run (auto: cuda, else mps, else cpu)")
    _add_model(parser)
    add("--precision", choices=PRECISIONS, default="float32", help="of the first rung")
    add(
        "--context",
        type=integers,
        metavar="N,N",
        help=f"tokens in the cache when a step starts, as {NUMBERS}{default('context')}",
    )
    add("--batch", type=int, default=1, help="rows decoded together")
    add("--steps", type=int, help=f"timed steps per visit{default('steps')}")
    add("--rounds", type=int, help=f"each times everything once, in shuffled order{default('rounds')}")
    add("--seed", type=int, default=0, help="of weights, prompts and order")
    add("--threads", type=int, help="CPU threads (default: torch's)")
    add("--quick", action="store_true", help="fewer rounds and variants; says what it left out")
    add("--out", type=Path, default=Path("runs"), help="where run folders go")
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    model = parser.add_mutually_exclusive_group()
    model.add_argument(
        "--model",
        default="gpt2",
        help=f"{', '.join([*PRESETS, *TRAINED])}, a folder in the Hugging Face layout, or "
        "hub:ORG/NAME[@REVISION]",
    )
    model.add_argument(
        "--shape",
        dest="model",
        action=_Shape,
        metavar="NAME",
        help=f"real shape, seeded weights: a config.json, or one of {', '.join(KNOWN_CONFIGS)} (no default)",
    )


def _default(workload: Workload, flag: Flag) -> str:
    return ",".join(map(str, workload.contexts)) if flag == "context" else str(getattr(workload, flag))


def plain_parser(module: str, doc: str, examples: Sequence[str] = ()) -> argparse.ArgumentParser:
    """A parser with `--json` and `--quiet` only, for experiments that measure nothing."""
    epilog = "examples:\n" + "\n".join(f"  python -m {module} {line}".rstrip() for line in examples)
    parser = Parser(f"python -m {module}", doc, epilog if examples else None)
    parser.add_argument("--json", action="store_true", help="last line of stdout: one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no tables and no progress")
    return parser


def integers(text: str) -> tuple[int, ...]:
    """'10,100' -> (10, 100); '10..1000*10' -> (10, 100, 1000); '10..30+10,50' -> (10, 20, 30, 50)."""
    return tuple(chain.from_iterable(map(_numbers, text.split(","))))


def _numbers(part: str) -> Iterable[int]:
    """A number, or a range from its first to at most its last: by a factor, or by a step."""
    match = re.fullmatch(r"(-?\d+)(?:\.\.(\d+)([*+])(\d+))?", part.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"expected {NUMBERS} with commas between, got {part!r}")
    first, last, by = int(match[1]), int(match[2] or match[1]), int(match[4] or 1)
    if match[3] is None:
        return (first,)
    if not 1 <= first <= last or by < (2 if match[3] == "*" else 1):
        raise argparse.ArgumentTypeError(f"{part!r} is no range that rises: {NUMBERS}")
    powers = takewhile(lambda n: n <= last, (first * by**k for k in count()))
    numbers = tuple(islice(powers if match[3] == "*" else range(first, last + 1, by), MAX_NUMBERS + 1))
    if len(numbers) > MAX_NUMBERS:
        raise argparse.ArgumentTypeError(f"{part!r} has more than {MAX_NUMBERS} numbers")
    return numbers


def seconds(text: str) -> float:
    """'90', '90s' or '2m' -> seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m)?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a time like 90s or 2m, got {text!r}")
    return float(match[1]) * (60 if match[2] == "m" else 1)


def names(values: Sequence[str] | None) -> list[str]:
    """Repeated flags and comma lists in one list: ['a,b', 'c'] -> ['a', 'b', 'c']."""
    return [name for value in values or () for name in value.split(",") if name]


def chosen(what: str, names: Sequence[str], known: Mapping[str, T]) -> list[T]:
    """What bears these names, in their order; no name: all. UserError for one that is unknown."""
    for name in names:
        if name not in known:
            raise UserError(f"unknown {what} {name}; known: {', '.join(known)}")
    return [known[name] for name in names or known]


def console(arguments: argparse.Namespace) -> Any:
    """A rich console on stdout: plain when it is no terminal, silent with --quiet."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else max(80, shutil.get_terminal_size((100, 24)).columns)
    return Console(quiet=arguments.quiet, width=width, highlight=False, soft_wrap=False)


def print_json(value: Any) -> None:
    """One object on the last line of stdout; intervals become [low, mid, high]."""
    sys.stdout.write(encoded(value) + "\n")


def encoded(value: Any) -> str:
    """The JSON text of a value, as `--json` prints it."""
    return msgspec.json.encode(value, enc_hook=list).decode()


def run(main: command.Main, argv: Sequence[str] | None = None) -> None:
    """Run an experiment and exit, see `variants.command.run`."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read when torch is loaded; it logs to stderr
    command.run(main, argv)
