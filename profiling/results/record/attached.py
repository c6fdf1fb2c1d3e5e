"""The record of a server that was asked from outside."""

from __future__ import annotations

from profiling.results.record.base import Record
from profiling.results.record.part import Count, Ms, Part, Size
from profiling.results.record.sized import ModelShape


class StreamedAnswer(Part, frozen=True, kw_only=True):
    """One greedy answer. `context` is that of its row, `prompt_tokens` what the server counted.

    `arrivals_ms` of chunks with text since the request was sent; `counted`: tokens up to each of them, where
    the server says so with every chunk, else empty. None is what it did not say.
    """

    round: Count
    context: Size
    prompt_tokens: Count | None
    tokens: Count | None
    arrivals_ms: list[Ms]
    counted: list[Count] = []


class OnDevice(Part, frozen=True):
    """What a server is said to run, and where: for the floor and the prediction. `engine` launches it."""

    shape: ModelShape
    device: str
    precision: str
    engine: str


class AttachRecord(Record, frozen=True, kw_only=True, tag="attach"):
    """Steps of a server, timed from outside.

    `url` is without secrets, `path` what answered; `served`, `owner`: the model as the server names it.
    `left_out`: contexts that it refused, with its words.
    """

    url: str = ""
    path: str = ""
    served: str = ""
    owner: str | None = None
    contexts: list[Size] = []
    tokens: Size = 1
    repeats: Size = 1
    entropy: Count = 0
    answers: list[StreamedAnswer] = []
    left_out: dict[int, str] = {}
    on_device: OnDevice | None = None

    @property
    def place(self) -> str:
        return self.url
