"""Question: what does a pass over several tokens cost on each rung, and how often must a draft be right for
speculative decoding to pay?

Passes over 1, 2, 4, 8 and 16 tokens behind one context are timed in interleaved rounds, every variant proven
first; a pass over one token is the step. A pass over n scores a draft of n - 1 tokens: were each of them
right with probability a, it would write (1 - a^n) / (1 - a) tokens (Leviathan et al. 2023). It breaks even
where that is its time over a step's. The example drafts without a second model: it looks up in the text what
followed its last few tokens before, and must write the same tokens as greedy decoding.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from experiments.shared import cli
from experiments.shared.measured import chosen_variants, model_on_device, proven_runner, with_flags
from experiments.shared.text import add_prompt, load_tokenizer, prompt_ids
from profiling.results.record import SpeculateRecord, Workload
from profiling.results.record.page import Bullets, Figure, Table
from profiling.results.record.pictures import Curves
from profiling.results.speculation import Speculation
from reports.numbers import interval, joined, number, percent
from variants.config import GPTConfig
from variants.errors import UserError
from variants.hub import folder_of

if TYPE_CHECKING:
    from profiling.measure.runner import Runner

EXAMPLES = (
    "",
    "--quick --variant onelaunch-int4 --sizes 4,8",
    "--model FOLDER --prompt @FILE --variant onelaunch-int8 --context 500",
)
RUNGS = (
    "sdpa",
    "int8",
    "onelaunch",
    "onelaunch-bf16",
    "onelaunch-int8",
    "onelaunch-int4",
    "onelaunch-int4-kv8",
)
QUICK_RUNGS = ("sdpa", "onelaunch", "onelaunch-int8")
SIZES = (2, 4, 8, 16)  # tokens of a pass
NEW, QUICK_NEW = 64, 16
USUAL = Workload(contexts=(100,), ttft_rounds=0, prompt=1)
QUICK = replace(USUAL, rounds=3, gate_steps=8)


def parser() -> argparse.ArgumentParser:
    parser = cli.common_parser("experiments.speculate", __doc__ or "", EXAMPLES, USUAL, QUICK)
    add = parser.add_argument
    add("--variant", action="append", metavar="NAME,NAME", help=f"rungs (default {','.join(RUNGS)})")
    sizes = ",".join(map(str, SIZES))
    add("--sizes", type=cli.integers, metavar="N,N", help=f"tokens of a pass, beside 1 (default {sizes})")
    add("--draft", type=int, default=7, help="tokens that are looked up and proposed to a pass (default 7)")
    add("--new", type=int, help=f"tokens of the example (default {NEW}, with --quick {QUICK_NEW})")
    add_prompt(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    model, device = model_on_device(arguments)
    quick = arguments.quick
    rungs = cli.names(arguments.variant) or [
        name for name in (QUICK_RUNGS if quick else RUNGS) if _here(name, arguments.precision, device.type)
    ]
    variants = chosen_variants(rungs, arguments.precision, device.type, beside=())
    _refuse(arguments)
    prompt = prompt_ids(arguments, load_tokenizer(folder_of(arguments.model)), model.config)
    new = arguments.new or (QUICK_NEW if quick else NEW)
    sizes = tuple(sorted({1, *(arguments.sizes or SIZES)}))
    workload, context = _workload(arguments, model.config, sizes, len(prompt) + new)

    def measure(runner: Runner[SpeculateRecord]) -> None:
        from profiling.measure.passes import Passes, Writing
        from variants.drafting import PromptLookup

        record, clock, drafts = runner.record, runner.clock, PromptLookup(arguments.draft)
        cases, entropy = runner.once(), record.entropy
        passes = [Passes(case, clock, entropy, context, sizes, record.passes) for case in cases]
        texts = [Writing(case, clock, entropy, prompt, new, drafts, record.written) for case in cases]
        runner.time("passes and texts", [*passes, *texts], workload.rounds)

    runner = proven_runner(arguments, SpeculateRecord, model, workload, variants, measure)
    return _show(arguments, runner, Speculation(runner.record), context)


def _here(name: str, precision: str, device: str) -> bool:
    """Whether a default rung is part of this precision's ladder and runs on this kind of device."""
    from variants.ladder import ladder

    rung = ladder(precision).get(name)
    return rung is not None and rung.why_not(device) is None


def _refuse(arguments: argparse.Namespace) -> None:
    """Numbers that mean nothing here."""
    if arguments.batch != 1:
        raise UserError("--batch: rows of a batch would accept drafts of different lengths, so it is 1")
    if arguments.context is not None and len(arguments.context) != 1:
        raise UserError("--context: this experiment varies the tokens of a pass, give one context")
    if min(arguments.sizes or SIZES) < 1:
        raise UserError("--sizes must be at least 1")
    if arguments.draft < 1 or (arguments.new is not None and arguments.new < 2):
        raise UserError("--draft must be at least 1, and --new at least 2")


def _workload(
    arguments: argparse.Namespace, config: GPTConfig, sizes: Sequence[int], text: int
) -> tuple[Workload, int]:
    """With the context, and the longest text that is held, which is proven as well."""
    quick = arguments.quick
    workload = with_flags(replace(QUICK if quick else USUAL, seed=arguments.seed), arguments)
    context = arguments.context[0] if arguments.context else min(*USUAL.contexts, config.n_ctx // 2)
    longest = max(context + sizes[-1], text)
    most = config.n_ctx - workload.tokens_after
    if longest > most:
        raise UserError(
            f"context, passes and text take {longest} tokens, this model has room for {most} here"
        )
    return replace(workload, contexts=(context, longest)), context


# -- from the record to what is shown ---------------------------------------------------------


def _show(
    arguments: argparse.Namespace, runner: Runner[SpeculateRecord], found: Speculation, context: int
) -> int:
    from experiments.shared.outcome import page_of, publish

    if not found.variants:
        raise UserError(f"no variant has times: {'; '.join(runner.record.warnings)}")
    several = [size for size in found.sizes if size > 1]
    tables = [_times(found, several, context), _needed(found, several), _written(found)]
    notes = Bullets(
        [
            "a pass of a module rung is eager, whatever runs its steps; one launch reads the weights once",
            "how often a draft is right is the text's: random weights soon repeat themselves",
        ]
    )
    page = page_of(__doc__ or "", runner.run, _verdict(found, several), [_figure(found), *tables, notes])
    prices = {name: {n: found.price(name, n) for n in several} for name in found.variants}
    needed = {name: {n: found.acceptance_needed(name, n) for n in several} for name in found.variants}
    written = {name: found.written(name) for name in found.variants}
    return publish(arguments, runner.run, page, prices=prices, acceptance_needed=needed, written=written)


def _times(found: Speculation, sizes: Sequence[int], context: int) -> Table:
    rows = [
        (
            name,
            number(found.pass_ms(name, 1)),
            *(f"{number(found.pass_ms(name, n))}: {interval(found.price(name, n))}" for n in sizes),
        )
        for name in found.variants
    ]
    heads = ("variant", "step, ms", *(f"{n} tokens, ms: of a step" for n in sizes))
    return Table(heads, rows, title=f"A pass over several tokens, at context {context}")


def _needed(found: Speculation, sizes: Sequence[int]) -> Table:
    rows = [
        (name, *(_acceptance(found.acceptance_needed(name, n)) for n in sizes)) for name in found.variants
    ]
    heads = ("variant", *(f"{n} tokens" for n in sizes))
    return Table(heads, rows, title="Share of a draft that must be right to break even")


def _acceptance(needed: float | None) -> str:
    return "never pays" if needed is None else percent(needed)


def _written(found: Speculation) -> Table:
    rows = []
    for name in found.variants:
        if text := found.written(name):
            rows.append(
                (
                    name,
                    f"{text.same} of {text.new}",
                    str(text.passes),
                    f"{text.kept} of {text.proposed}",
                    number(text.plain_per_s),
                    number(text.drafted_per_s),
                    interval(text.speedup),
                )
            )
    heads = ("variant", "as greedy", "passes", "kept", "plain, tokens/s", "drafted, tokens/s", "speedup")
    return Table(heads, rows, title="The same text with drafts looked up in it")


def _figure(found: Speculation) -> Figure:
    lines = {
        name: [(n, found.pass_ms(name, n) / found.pass_ms(name, 1)) for n in found.sizes]
        for name in found.variants
    }
    bounds = {"as many steps": [(n, n) for n in found.sizes]}
    curves = Curves("tokens of a pass", "its time over a step's", lines, bounds)
    return Figure("speculate", "What a pass over several tokens costs, in steps of the same rung.", [curves])


def _verdict(found: Speculation, sizes: Sequence[int]) -> str:
    most = sizes[-1]
    price = {name: found.pass_ms(name, most) / found.pass_ms(name, 1) for name in found.variants}
    cheap, dear = (pick(price, key=lambda name: price[name]) for pick in (min, max))
    said = [
        f"a pass over {most} tokens costs {price[name]:.2f} steps of `{name}`"
        for name in dict.fromkeys((cheap, dear))
    ]
    texts = {name: text for name in found.variants if (text := found.written(name))}
    differ = [name for name, text in texts.items() if text.same < text.new]
    same = f"but {joined(differ)} differed from it" if differ else "token for token"
    return f"{'; '.join(said)}; drafts wrote what greedy decoding writes, {same}."


if __name__ == "__main__":
    cli.run(main)
