"""Which room knows which? The imports of this package, drawn from its files.

    python -m experiments.shared.map

Prints a Mermaid graph and a sentence per room, as they stand in CONTRIBUTING.md, and which modules serve one
other only. Tests hold the order and the share.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

from variants.command import run

ROOT = Path(__file__).parent.parent.parent

# Every room and what is in it, in the order in which they may know each other: a room imports itself and what
# stands above it here.
ROOMS = {
    "variants": "what runs: the decoder, its model, the ladder of variants and what each changes",
    "variants.slots": "the open places of the decoder, one file per slot with its options",
    "variants.backends": "what a step runs through: modules, Triton kernels, one launch in C++",
    "variants.executors": "how a step is run: eager, compiled, recorded, captured",
    "profiling.trace": "a trace file as tables: events, steps, devices",
    "profiling.cost": "what a step must compute and read, counted before anything is timed",
    "profiling.results": "the record of a run and every number that is derived from it",
    "profiling.gate": "the proof that a variant computes the reference function, and the faults that test it",
    "profiling.sizing": "models as shapes: families, cache bytes, what fits",
    "profiling.forecast": "a step on a device that is not here: devices, engines, constants with sources",
    "profiling.analysis": "what a trace says: parts of a step, readings, predictions",
    "profiling.measure": "the one runner: cases, rounds, clock, measured peaks, traces, a queue of requests",
    "profiling.peers": "other engines at the same work",
    "profiling.serving": "steps of a server that runs elsewhere: requests, streamed answers, prompts",
    "reports": "pages of a record, without torch: sections, tables, figures and their printers",
    "experiments.shared": "what several experiments need: flags, models, progress, published figures",
    "experiments": "one file per question",
}


def room_of(module: str) -> str | None:
    """The innermost room that a module is in; None for a module that is not ours."""
    inside = [room for room in ROOMS if module == room or module.startswith(f"{room}.")]
    return max(inside, key=len, default=None)


def files_of(room: str) -> list[Path]:
    """The Python files of a room, without those of the rooms inside it."""
    files = sorted((ROOT / room.replace(".", "/")).rglob("*.py"))
    return [file for file in files if room_of(module_of(file)) == room]


def module_of(file: Path) -> str:
    """The name by which a file of this repository is imported."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(file: Path) -> set[str]:
    """The modules that a file imports anywhere, inside functions too."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    named = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    return plain | named


def importers() -> dict[str, set[str]]:
    """Per module that is no package the modules that import it, inside functions too."""
    modules = {module_of(file): file for room in ROOMS for file in files_of(room)}
    by: dict[str, set[str]] = {name: set() for name, file in modules.items() if file.stem != "__init__"}
    for name, file in modules.items():
        for known in imports(file):
            module = known if known in modules else known.rpartition(".")[0]
            if module in by and module != name:
                by[module].add(name)
    return by


def arrows() -> dict[str, set[str]]:
    """The rooms that each room imports."""
    known = {room: {room_of(name) for file in files_of(room) for name in imports(file)} for room in ROOMS}
    return {room: {other for other in others if other and other != room} for room, others in known.items()}


def diagram() -> str:
    """The graph, without an arrow where a longer way says the same, and the sentences."""
    order, direct = list(ROOMS), arrows()
    nearer = {room: others & {*order[: order.index(room)]} for room, others in direct.items()}

    def below(room: str) -> set[str]:
        """Every room that this one reaches by going up the list."""
        return nearer[room].union(*map(below, nearer[room]))

    lines = ["```mermaid", "graph BT"]
    for room, others in direct.items():
        implied = set[str]().union(
            *(below(other) for other in others if order.index(other) < order.index(room))
        )
        lines += [f"  {room} --> {other}" for other in order if other in others - implied]
    return "\n".join([*lines, "```", "", *(f"- `{room}`: {purpose}" for room, purpose in ROOMS.items())])


def main(argv: Sequence[str] | None = None) -> int:
    served = importers()
    single = sorted((*by, name) for name, by in served.items() if len(by) == 1)
    print(diagram())
    print(f"\n{len(single)} of {len(served)} modules serve one other only:")
    for by, name in single:
        print(f"- {by}: {name}")
    return 0


if __name__ == "__main__":
    run(main)
