"""Engines that need no package: ours in the clothes of others, with faults by name."""

from __future__ import annotations

import os

import torch

from profiling.peers.engines import Engine
from profiling.peers.peer import Peer, Task
from variants.decoder import Decoder
from variants.ladder import ladder
from variants.model import GPT
from variants.slots.precision import FLOAT32

DEATH = 7  # exit status
STEPS_OF_A_LIFE = 25  # more than a quick proof takes, fewer than that and the rounds


class Fake(Peer):
    """`cat` as an engine; `kind` names its fault."""

    def __init__(self, model: GPT, task: Task, kind: str) -> None:
        self.decoder, self.kind, self.steps = Decoder.of(ladder()["cat"], model), kind, 0
        if kind == "unready":
            raise ValueError("out of paper\nand of ink")

    def prefill(self, tokens: list[int]) -> int:
        return self.chosen(self.decoder.prefill(torch.tensor([tokens]))[0])

    def step(self, token: int) -> int:
        self.steps += 1
        if self.kind == "mortal" and self.steps > STEPS_OF_A_LIFE:
            os._exit(DEATH)
        return self.chosen(self.decoder.step(torch.tensor([[token]]))[0])


def build(model: GPT, task: Task, kind: str) -> Peer:
    return Fake(model, task, kind)


def engine(kind: str = "", package: str = "torch") -> Engine:
    return Engine(
        build=build,
        kind=kind,
        package=package,
        settings="a fake",
        bits=32,
        cache_bits=32,
        precision=FLOAT32,
    )
