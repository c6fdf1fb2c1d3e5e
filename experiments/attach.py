"""Question: what does a token take at a server that is running somewhere, and how far is that from its floor?

Asks an OpenAI-compatible server (vLLM, SGLang, llama.cpp's, transformers serve) for streamed greedy answers
at chosen contexts, one at a time, and times what arrives: the first token, and the time between tokens by
what the server's usage counts. Where --model and --device say what runs there, the memory floor stands beside
it, and a PREDICTION of what one graph would take. --profile asks the engine for a trace of a few steps.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from experiments import explain
from experiments.shared import attach_page as parts
from experiments.shared import cli
from experiments.shared.outcome import page_of, publish
from experiments.shared.progress import ProgressLine
from profiling.forecast import engines
from profiling.forecast.devices import find
from profiling.forecast.engines import ENGINES
from profiling.forecast.job import NATIVE_BITS, PACKED_BITS, job_of
from profiling.results.folder import RunFolder
from profiling.results.record import AttachRecord, Model, OnDevice, replaced
from profiling.results.record.page import Section, Sentence
from profiling.results.streamed import Streamed
from profiling.serving.asking import MOST_PROBES, Asker, Served, asker, served
from profiling.serving.client import Refused, Server
from profiling.sizing.read_shape import read_shape
from variants.errors import UserError

EXAMPLES = (
    "http://localhost:8000",
    "http://localhost:8000 --model llama-3-8b --device H100 --context 100,1000,8000",
    "https://HOST --served NAME --key-env OPENAI_API_KEY --tokens 32 --repeats 3",
    "http://localhost:8000 --profile --trace-folder traces",
)
OWNERS = {"vllm": engines.VLLM, "sglang": engines.SGLANG, "llamacpp": engines.LLAMA_CPP}
SILENCE_S = 120.0
PROFILED = 8  # tokens of the answer that is traced
LOOK_EVERY_S = 0.5
EXPLAIN = "Once it is here: `python -m experiments.explain FILE`."


def parser() -> argparse.ArgumentParser:
    parser = cli.plain_parser("experiments.attach", __doc__ or "", EXAMPLES)
    add = parser.add_argument
    add("url", metavar="URL", help="of the server, http://HOST:PORT")
    add("--served", metavar="NAME", help="the model as the server names it (default: the only one)")
    add(
        "--context",
        type=cli.integers,
        default=(100, 1000),
        metavar="N,N",
        help=f"tokens of the prompt: {cli.NUMBERS}",
    )
    add("--tokens", type=int, default=64, metavar="N", help="of each answer, at most")
    add("--repeats", type=int, default=5, metavar="N", help="timed answers at each context")
    add(
        "--timeout", type=cli.seconds, default=120.0, metavar="120s", help="the longest silence of the server"
    )
    key = "the environment variable that holds an API key (default: no key is sent)"
    add("--key-env", metavar="NAME", help=key)
    add("--model", metavar="NAME", help="what runs there: a name, a config.json, or a folder with one")
    add("--device", metavar="NAME", help="where it runs, such as H100")
    add("--precision", default="bfloat16", help=f"of the weights: {', '.join([*NATIVE_BITS, *PACKED_BITS])}")
    add("--engine", choices=ENGINES, help="what runs it (default: as the server says, else hf)")
    add("--profile", action="store_true", help="ask for a trace of a few steps (vLLM, SGLang)")
    add("--trace-folder", type=Path, metavar="DIR", help="where the server's traces can be seen from here")
    add("--out", type=Path, default=Path("runs"), help="where run folders go")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    _check(arguments)
    server = Server.at(arguments.url, arguments.timeout, _key(arguments.key_env))
    on_device = _on_device(arguments)
    contexts = sorted(set(arguments.context))
    if not arguments.quiet:
        most = MOST_PROBES + len(contexts) * (1 + arguments.repeats) + arguments.profile
        sys.stderr.write(
            f"At most {most} answers are asked of {server.url}, one at a time: {MOST_PROBES} of 1 token "
            f"to find how, then of {arguments.tokens} tokens at context {', '.join(map(str, contexts))}\n"
        )
    entropy = secrets.randbits(32)
    draw = Random(entropy)  # no prompt is one that a server may have kept
    model = served(server, arguments.served)
    way = asker(server, model.name, draw)
    run = _begun(arguments, way, model, on_device, entropy)
    try:
        words = _warmed(run, way, contexts, draw)
        _measure(run, way, words, draw, arguments.quiet)
    except UserError as error:
        run.save()
        raise UserError(f"{error}; what was measured until then is kept in {run.path}") from None
    return _end(
        arguments, run, *(_traced(arguments, way, min(words.values()), draw) if arguments.profile else ())
    )


def _check(arguments: argparse.Namespace) -> None:
    for flag, least in (("tokens", 2), ("repeats", 2)):
        if (value := getattr(arguments, flag)) < least:
            raise UserError(f"--{flag} must be at least {least}, got {value}")
    if min(arguments.context) < 1:
        raise UserError("--context needs numbers of at least 1")
    if not 0 < arguments.timeout <= 1e6:
        raise UserError(f"--timeout must be above 0 s, got {arguments.timeout:g}")
    if (arguments.model is None) != (arguments.device is None):
        raise UserError("a floor needs both: --model says what is read, --device how fast")
    folder = arguments.trace_folder
    if folder and not (arguments.profile and folder.is_dir()):
        raise UserError(f"--trace-folder {folder}: a folder, with --profile")


def _key(variable: str | None) -> str | None:
    """The key in that variable. Raises UserError, without it, where it is none."""
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:  # nor is the name repeated: it may be a key that was given in its place
        raise UserError("--key-env takes the name of an environment variable; it is not set, or empty")
    if not (key.isascii() and key.isprintable()):
        raise UserError(f"--key-env {variable}: what it holds cannot be sent as a key")
    return key


def _on_device(arguments: argparse.Namespace) -> OnDevice | None:
    if arguments.model is None:
        return None
    shape, device = read_shape(arguments.model), find(arguments.device)
    job_of(shape, arguments.precision, max(arguments.context))  # refuses here what has no floor
    return OnDevice(shape, device.name, arguments.precision, arguments.engine or "")


def _begun(
    arguments: argparse.Namespace, way: Asker, model: Served, on_device: OnDevice | None, entropy: int
) -> RunFolder[AttachRecord]:
    run = RunFolder.create(arguments.out, AttachRecord, way.server.host)
    if on_device and not on_device.engine:
        engine = OWNERS.get((model.owner or "").lower(), engines.HF)
        on_device = replaced(on_device, engine=engine.name)
    run.update(
        model=Model(model.name),
        url=way.server.url,
        path=way.path,
        served=model.name,
        owner=model.owner,
        contexts=sorted(set(arguments.context)),
        tokens=arguments.tokens,
        repeats=arguments.repeats,
        entropy=entropy,
        on_device=on_device,
    )
    return run


def _warmed(
    run: RunFolder[AttachRecord], way: Asker, contexts: Sequence[int], draw: Random
) -> dict[int, int]:
    """An untimed answer at each context, and from it the words that make a prompt of that length. What the
    server refuses is left out; UserError where that is all."""
    record, words = run.record, {}
    for context in contexts:
        count = way.words(context)
        try:
            answer = way.ask(count, record.tokens, draw)
        except Refused as refused:
            record.left_out[context] = str(refused)
            continue
        if way.per_word and answer.prompt_tokens:
            count = max(1, count + round((context - answer.prompt_tokens) / way.per_word))
        words[context] = count
    if not words:
        raise UserError(next(iter(record.left_out.values())))
    run.save()
    return words


def _measure(
    run: RunFolder[AttachRecord], way: Asker, words: dict[int, int], draw: Random, quiet: bool
) -> None:
    """Rounds over the contexts, each in drawn order; kept after every round."""
    record, total = run.record, run.record.repeats * len(words)
    with ProgressLine(quiet) as progress:
        for number in range(record.repeats):
            for context in draw.sample(list(words), len(words)):
                progress("answers", len(record.answers), total)
                record.answers.append(way.ask(words[context], record.tokens, draw, number, context))
            run.save()
        progress("answers", total, total)


def _traced(arguments: argparse.Namespace, way: Asker, words: int, draw: Random) -> tuple[str, list[Path]]:
    """Have the engine trace a few steps: what became of it, and the new files that can be seen from here."""
    folder = arguments.trace_folder
    before = _traces(folder)
    try:
        way.server.post("/start_profile", {})
        try:
            way.ask(words, PROFILED, draw)
        finally:
            way.server.post("/stop_profile", {})
    except UserError as error:
        return (
            f"No trace: {error}. vLLM and SGLang make one where they were started with a folder for it.",
            [],
        )
    if folder is None:
        return f"The trace is on the server's disk, in the folder that it was started with. {EXPLAIN}", []
    for _ in range(round(arguments.timeout / LOOK_EVERY_S)):
        seen = _traces(folder)
        time.sleep(LOOK_EVERY_S)
        if (found := _traces(folder)) == seen and found.keys() - before.keys():  # none grows any more
            new = sorted(found.keys() - before.keys())
            return f"The engine traced {PROFILED} tokens; `explained` in the run folder reads it.", new
    return f"No new trace in {folder} after {arguments.timeout:g} s. {EXPLAIN}", []


def _traces(folder: Path | None) -> dict[Path, int]:
    """The trace files below a folder, with their sizes."""
    files = [
        file for pattern in ("*.json", "*.json.gz") for file in (folder.rglob(pattern) if folder else ())
    ]
    return {file: file.stat().st_size for file in files}


def _end(
    arguments: argparse.Namespace, run: RunFolder[AttachRecord], said: str = "", traces: Sequence[Path] = ()
) -> int:
    streamed = Streamed(run.record)
    known = [parts.beside(run.record.on_device, row) for row in streamed.rows] if run.record.on_device else []
    further = [parts.section(streamed, known), *([Section("A trace", [Sentence(said)])] if said else [])]
    answer = parts.answer(streamed, known)
    page = page_of(__doc__ or "", run, answer, list(parts.measured(streamed)), further)
    code = publish(arguments, run, page, **parts.as_json(streamed, known), answer=answer)
    if traces:
        quiet = ["--quiet"] if arguments.quiet or arguments.json else []
        explain.main([*map(str, traces), "--out", str(run.path / "explained"), *quiet])
    return code


if __name__ == "__main__":
    cli.run(main)
