"""How long does a server take for each token of an answer? Prompts of a length, answers as they come.

A chunk is not a token: tokens are what the server's usage counts. Where it counts none they are unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from random import Random
from typing import Any

import msgspec

from profiling.measure.clock import arrivals
from profiling.results.record import StreamedAnswer
from profiling.results.record.part import Count
from profiling.serving.client import DONE, Refused, Server, message_of
from variants.errors import UserError

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PATHS = (COMPLETIONS, CHAT)
MISSING = {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}
UNKNOWN_FIELD = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}
# what is asked for beside the standard fields, the most first: a server may refuse what it does not know
EXTRAS: tuple[dict[str, object], ...] = (
    {"ignore_eos": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"stream_options": {"include_usage": True}},
    {},
)
FEW, MANY = 16, 144  # words of the two prompts by which tokens per word are found
PER_WORD = 0.5, 8.0  # tokens that a count may say a word takes: its letters at most
MOST_PROBES = len(PATHS) * len(EXTRAS) + 1
# of one length, and one token each in the vocabularies of today
WORDS = tuple(
    word
    for line in (
        "the and for are but not you all any can had her was one our out day get has him his how",
        "man new now old see two way who did its let put say she too use big end few got men off",
    )
    for word in line.split()
)
MOST_CHUNKS_PER_TOKEN = 64  # beyond it, and a thousand, a server does not heed max_tokens


class Usage(msgspec.Struct):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None


class Delta(msgspec.Struct):
    """Text of a chat's chunk: an answer's, or that of the thought before it under one of two names."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class Choice(msgspec.Struct):
    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None

    @property
    def says(self) -> bool:
        """Whether it has text."""
        delta = self.delta or Delta()
        return bool(self.text or delta.content or delta.reasoning or delta.reasoning_content)


class Chunk(msgspec.Struct):
    """One event of a stream, in so far as it is used."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None


@dataclass(frozen=True)
class Served:
    """A model of a server. `owner` is how the server names who runs it: "vllm", "sglang", "llamacpp"."""

    name: str
    owner: str | None


def served(server: Server, wanted: str | None) -> Served:
    """The model of that name, or the only one. Raises UserError with what there is."""
    try:
        listed = server.get("/v1/models")
    except Refused as refused:
        if refused.status not in MISSING:
            raise
        raise UserError(f"{refused}; it is no OpenAI-compatible server, or its root is another URL") from None
    rows = listed.get("data") if isinstance(listed, dict) else None
    owners = {
        row["id"]: row.get("owned_by")
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, dict) and server.is_name(row.get("id"))
    }
    if not owners:
        raise UserError(f"{server.url}/v1/models lists no model: it is no OpenAI-compatible server")
    names = server.quoted(", ".join(owners))
    if wanted is None and len(owners) > 1:
        raise UserError(f"{server.url} serves several models; choose one by --served: {names}")
    name = next(iter(owners)) if wanted is None else wanted
    if name not in owners:
        raise UserError(f"{server.url} serves no model {name!r}; it serves {names}")
    owner = owners[name]
    return Served(name, owner if server.is_name(owner) else None)


@dataclass(frozen=True)
class Asker:
    """One way of asking that the server accepts. `per_word`, `around`: tokens of a prompt by its words; None
    where it counts none, and a word is taken for a token."""

    server: Server
    model: str
    path: str
    extras: Mapping[str, object]
    per_word: float | None = None
    around: float = 0.0

    def words(self, context: int) -> int:
        """How many make a prompt of about so many tokens."""
        return max(1, round((context - self.around) / (self.per_word or 1.0)))

    def ask(self, words: int, tokens: int, draw: Random, round_: int = 0, context: int = 1) -> StreamedAnswer:
        """A greedy answer of at most so many tokens to a prompt that no cache of prompts knows.

        Raises Refused, UserError: where it is cut off, or no stream of chunks.
        """
        prompt = " ".join(draw.choices(WORDS, k=words))
        asked = (
            {"messages": [{"role": "user", "content": prompt}]} if self.path == CHAT else {"prompt": prompt}
        )
        body = {"model": self.model, **asked, "max_tokens": tokens, "temperature": 0, "stream": True}
        with self.server.streamed(self.path, {**body, **self.extras}) as events:
            return self._read(events, tokens, round_, context)

    def _read(self, events: Iterator[bytes | None], tokens: int, round_: int, context: int) -> StreamedAnswer:
        usage, finished, chunks, text_at = Usage(), False, 0, 0.0
        at: list[float] = []
        counted: list[int | None] = []
        for ms, event in arrivals(events):
            if event == DONE:
                finished = True
                break
            if ms - text_at > 1e3 * self.server.timeout_s:
                raise UserError(
                    f"{self.server.url} sent no text for {self.server.timeout_s:g} s; --timeout waits longer"
                )
            if event is None:
                continue
            chunks += 1
            if chunks > 1000 + MOST_CHUNKS_PER_TOKEN * tokens:
                raise UserError(
                    f"{self.server.url} sends on after {chunks} chunks of {tokens} tokens; stopped"
                )
            chunk = self._chunk(event, chunks)
            usage = chunk.usage or usage
            choices = chunk.choices or []
            finished = finished or any(choice.finish_reason for choice in choices)
            if any(choice.says for choice in choices):
                at.append(ms)
                text_at = ms
                counted.append(chunk.usage.completion_tokens if chunk.usage else None)
        if not finished:
            raise UserError(
                f"{self.server.url}{self.path}: the answer was cut off after {len(at)} chunks with text"
            )
        known = [n for n in counted if n is not None]
        said = usage.completion_tokens
        return StreamedAnswer(
            round=round_,
            context=context,
            prompt_tokens=usage.prompt_tokens,
            tokens=None if said is None or said > tokens else said,  # more than was asked for is no count
            arrivals_ms=at,
            counted=known if len(known) == len(at) and known == sorted(known) else [],
        )

    def _chunk(self, event: bytes, number: int) -> Chunk:
        where = f"{self.server.url}{self.path}: chunk {number} of the answer"

        def quote() -> str:
            return self.server.quoted(message_of(event))

        try:
            chunk = msgspec.json.decode(event, type=Chunk)
        except (msgspec.DecodeError, RecursionError) as error:
            raise UserError(f"{where} cannot be read ({error}): {quote()}") from None
        if chunk.error is not None:
            raise UserError(f"{where} is an error: {quote()}")
        if chunk.choices is None and chunk.usage is None:
            raise UserError(f"{where} is no part of a completion: {quote()}")
        return chunk


def asker(server: Server, model: str, draw: Random) -> Asker:
    """The first way of asking that the server accepts, with its tokens per word.

    Raises Refused, UserError where it accepts none.
    """
    plain, few = _accepted(server, model, draw)
    many = plain.ask(MANY, 1, draw)
    if few.prompt_tokens is None or many.prompt_tokens is None:
        return plain
    per_word = (many.prompt_tokens - few.prompt_tokens) / (MANY - FEW)
    if not PER_WORD[0] <= per_word <= PER_WORD[1]:
        return plain  # it counts something else
    return Asker(server, model, plain.path, plain.extras, per_word, few.prompt_tokens - FEW * per_word)


def _accepted(server: Server, model: str, draw: Random) -> tuple[Asker, StreamedAnswer]:
    for path in PATHS:
        for extras in EXTRAS:
            way = Asker(server, model, path, extras)
            try:
                return way, way.ask(FEW, 1, draw)
            except Refused as refused:
                if refused.status in MISSING:
                    break
                if refused.status not in UNKNOWN_FIELD or not extras:
                    raise
    raise UserError(
        f"{server.url} has neither {COMPLETIONS} nor {CHAT}: it is no OpenAI-compatible server, or its root "
        "is another URL"
    )
