"""Question: what does the model write, and how long do its first token (TTFT) and each further one (TPOT)
take?

Prints as it goes: text where the weights folder has a tokenizer.json (and the package `tokenizers` is
installed), else token ids. Greedy, or drawn by temperature, top-k and top-p with a seed; several temperatures
write one text each, from the same prompt and seed. Streaming needs
every token on the host, so each step ends with that sync: it is inside the time, printing is not. The variant
is proven first, briefly; `--no-proof` skips that, and then there are no times. Stops at the end of the
text (where the tokenizer has a token for it) and at the model's limit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict, astuple

from experiments.shared import cli
from experiments.shared.measured import chosen_variants, model_on_device
from experiments.shared.text import Pieces, add_prompt, ends_of_text, load_tokenizer, prompt_ids
from profiling.results.record import BUCKETS
from profiling.results.record.page import Bullets, Code, Section, Sentence
from variants.config import GPTConfig
from variants.errors import UserError
from variants.hub import folder_of

if TYPE_CHECKING:
    import torch

    from profiling.results.record import Generate
    from variants.decoder import Decoder
    from variants.model import GPT
    from variants.sampling import Sampler
    from variants.spec import Variant

EXAMPLES = (
    "",
    "--prompt-ids 1,2,3 --new 20 --temperature 0.8 --top-k 50 --seed 7",
    "--model shakespeare --prompt 'Ham.' --temperature 0,0.5,1,1.5",
    "--model FOLDER --prompt 'Hello' --new 60 --top-p 0.95 --temperature 1",
)
NEW, QUICK_NEW = 64, 16
PROVEN_STEPS, SMALLEST = 4, 32  # tokens that the proof takes, and the capacity that it needs


def parser() -> argparse.ArgumentParser:
    parser = cli.common_parser("experiments.generate", __doc__ or "", EXAMPLES, used=())
    add = parser.add_argument
    add_prompt(parser)
    add("--new", type=int, help=f"tokens to write (default {NEW}, with --quick {QUICK_NEW})")
    add("--variant", default="sdpa", metavar="NAME", help="the rung that writes")
    add(
        "--temperature", type=temperatures, default=(0.0,), metavar="T,T", help="0 is greedy; a text for each"
    )
    add("--top-k", type=int, default=0, help="draw among the k likeliest (default 0: all)")
    add(
        "--top-p",
        type=float,
        default=1.0,
        help="draw among the likeliest that hold this mass (default 1: all)",
    )
    add("--no-proof", action="store_true", help="skip the gate; then no times are printed")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    _refuse_unused(arguments)
    from experiments.shared.outcome import page_of, publish
    from profiling.measure.environment import environment
    from profiling.results.folder import RunFolder
    from profiling.results.record import GenerateRecord, Model
    from variants.sampling import Sampler

    samplers = [Sampler(t, arguments.top_k, arguments.top_p) for t in arguments.temperature]
    model, device = model_on_device(arguments)
    (variant,) = chosen_variants([arguments.variant], arguments.precision, device.type, beside=())
    folder = folder_of(arguments.model)
    tokenizer = load_tokenizer(folder)
    ends = ends_of_text(folder, tokenizer)
    prompt = prompt_ids(arguments, tokenizer, model.config)
    new = _new(arguments)
    fits = min(new, model.config.n_ctx - len(prompt) + 1)  # the last token need not be fed back

    run = RunFolder.create(arguments.out, GenerateRecord, device.type)
    decoder = warm_decoder(variant, model, len(prompt) + fits)
    proof = None if arguments.no_proof else prove(decoder, model, arguments)
    texts = [
        _written(decoder, sampler, prompt, fits, arguments, tokenizer, ends, proof) for sampler in samplers
    ]
    first, *further = texts
    about = Model(arguments.model, arguments.precision)
    run.update(environment=environment(model.device), model=about, generate=first, further=further)
    endings = dict.fromkeys(_ending(text.ids, new, ends, model.config) for text in texts)
    how = Bullets([f"`{arguments.variant}`, gate: {first.proof}", *endings])
    sections = [_text(text, tokenizer, alone=not further) for text in texts]
    page = page_of(__doc__ or "", run, _times(first.tokens_ms or (), proof), [how], sections)
    return publish(arguments, run, page, **_fields(first), further=[_fields(text) for text in further])


def _written(
    decoder: Decoder,
    sampler: Sampler,
    prompt: list[int],
    new: int,
    arguments: argparse.Namespace,
    tokenizer: Any | None,
    ends: frozenset[int],
    proof: str | None,
) -> Generate:
    """One text, printed as it comes; its temperature before it, where there are others."""
    from profiling.results.record import Generate, Sampling

    if len(arguments.temperature) > 1 and not arguments.quiet:
        _write_at_once(f"-- temperature {sampler.temperature:g}\n")
    tokens = stream(decoder, prompt, new, sampler, arguments.seed)
    ids, times_ms = write_out(prompt, tokens, tokenizer, ends, arguments.quiet)
    return Generate(
        variant=arguments.variant,
        sampling=Sampling(sampler.temperature, sampler.top_k, sampler.top_p, arguments.seed),
        prompt_ids=prompt,
        ids=ids,
        proof=proof or "skipped",
        tokens_ms=times_ms if proof == "pass" else None,
    )


def temperatures(text: str) -> tuple[float, ...]:
    """'0,0.8' -> (0.0, 0.8)."""
    return tuple(map(float, text.split(",")))


def _text(text: Generate, tokenizer: Any | None, alone: bool) -> Section:
    """What was written; how varied that is, where there are others."""
    title = "The text" if alone else f"At temperature {text.sampling.temperature:g}"
    said = [] if alone else [Sentence(f"{len({*text.ids})} distinct tokens of {len(text.ids)}.")]
    return Section(title, [*said, Code(Pieces(tokenizer).of([*text.prompt_ids, *text.ids]))], detail=True)


def _refuse_unused(arguments: argparse.Namespace) -> None:
    """Flags of the other experiments that mean nothing here are refused, not ignored."""
    if arguments.batch != 1:
        raise UserError("--batch: one text is streamed, so the batch is 1")
    for name in ("context", "steps", "rounds"):
        if getattr(arguments, name) is not None:
            raise UserError(f"--{name} has no meaning here; --new says how many tokens are written")


def _new(arguments: argparse.Namespace) -> int:
    new = arguments.new if arguments.new is not None else (QUICK_NEW if arguments.quick else NEW)
    if new < 1:
        raise UserError(f"--new must be at least 1, got {new}")
    return int(new)


def warm_decoder(variant: Variant, model: GPT, slots: int) -> Decoder:
    """A warmed-up decoder of one row, with `slots` in its cache and no fewer than the proof needs."""
    from variants.decoder import Decoder

    capacity = min(max(slots, SMALLEST), model.config.n_ctx)
    buckets = (*(size for size in BUCKETS if size < capacity), capacity)
    decoder = Decoder.of(variant, model, capacity=capacity, buckets=buckets)
    decoder.warm_up()
    return decoder


def prove(decoder: Decoder, model: GPT, arguments: argparse.Namespace) -> str:
    """Status of a brief proof. Raises UserError for a variant that does not compute the reference."""
    from profiling.gate import Gate

    gate = Gate(
        model,
        arguments.precision,
        capacity=decoder.capacity,
        steps=PROVEN_STEPS,
        forced=PROVEN_STEPS,
        seed=arguments.seed,
        brief=True,
    )
    result = gate.check_briefly(decoder)
    if result.status != "pass":
        raise UserError(f"{decoder.variant.name} does not compute the reference function: {result.reason}")
    return result.status


def stream(
    decoder: Decoder, prompt: Sequence[int], new: int, sampler: Sampler, seed: int
) -> Iterator[tuple[int, float]]:
    """Each new token with its latency in ms: the model, the draw, and the copy of the token to the host."""
    import torch

    from profiling.measure.clock import Clock

    clock, device = Clock(decoder.model.device), decoder.model.device
    generator = torch.Generator(device=device).manual_seed(seed)
    text = torch.tensor([list(prompt)], device=device)
    tokens: list[int] = []

    def draw(run: Callable[[], torch.Tensor]) -> None:
        token = sampler(run(), generator)
        decoder.token.copy_(token)
        tokens.append(int(token.item()))

    def prefill() -> torch.Tensor:
        return decoder.prefill(text)

    for number in range(new):
        run = decoder.advance if number else prefill
        (ms,) = clock.each_ms(partial(draw, run), 1)
        yield tokens[-1], ms


def write_out(
    prompt: Sequence[int],
    tokens: Iterator[tuple[int, float]],
    tokenizer: Any | None,
    ends: frozenset[int],
    quiet: bool,
) -> tuple[list[int], list[float]]:
    """Write prompt and tokens as they come, up to the end of the text. Returns the new ids and their ms."""
    write: Callable[[str], object] = (lambda text: None) if quiet else _write_at_once
    pieces = Pieces(tokenizer)
    write(pieces.of(prompt))
    ids, times_ms = list[int](), list[float]()
    for token, ms in tokens:
        ids.append(token)
        times_ms.append(ms)
        write(pieces.of([token]))
        if token in ends:
            break
    write(pieces.rest() + "\n")
    return ids, times_ms


def _write_at_once(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _ending(ids: Sequence[int], wanted: int, ends: frozenset[int], config: GPTConfig) -> str:
    if len(ids) == wanted:
        return f"{wanted} tokens, as asked."
    why = "the text ended" if ids[-1] in ends else f"the model's limit of {config.n_ctx} is reached"
    return f"{len(ids)} of {wanted} tokens: {why}."


def _times(times_ms: Sequence[float], proof: str | None) -> str:
    if proof is None:
        return "No times: what is not proven has none (--no-proof)."
    ttft, rest = times_ms[0], times_ms[1:]
    tpot = f"TPOT {fmean(rest):.2f} ms (median {median(rest):.2f})" if rest else "TPOT unknown (one token)"
    return f"TTFT {ttft:.2f} ms, {tpot}; each with the sync that brings its token to the host."


def _fields(generate: Generate) -> dict[str, object]:
    """The fields of a generation by name, as `--json` prints them."""
    return {
        **asdict(generate),
        "sampling": astuple(generate.sampling),
        "ttft_ms": generate.ttft_ms,
        "tpot_ms": generate.tpot_ms,
    }


if __name__ == "__main__":
    cli.run(main)
