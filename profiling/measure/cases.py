"""What is visited in every round: a proven decoder, its contexts, and the text it is loaded with."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace

from torch import Tensor

from profiling.gate.oracle import random_stream
from profiling.results.record import BUCKETS, Difference, Entry, Workload
from variants.backends.plugin import Elsewhere, PluginTrunk, process_of, runs_elsewhere
from variants.config import GPTConfig
from variants.decoder import Decoder, runs
from variants.ladder import THEIRS, ladder, transformers_ladder
from variants.model import Model
from variants.spec import Variant

NARROW, NARROW_VOCABULARY, NARROW_HEADS = 64, 512, 4
WIDTHS = (192, 384)  # the curve over width is a picture; the narrow model is the reading


def narrow_config(config: GPTConfig, width: int = NARROW) -> GPTConfig:
    """A config of this width with as many layers, hence ops per step: it costs overhead, hardly bytes."""
    shared_by = config.n_head // config.n_kv_head
    return replace(
        config,
        n_embd=width,
        n_head=NARROW_HEADS,
        n_kv_head=max(1, NARROW_HEADS // shared_by),
        n_inner=4 * width,
        head_width=None,
        n_ctx=min(config.n_ctx, BUCKETS[0]),
        vocab_size=min(config.vocab_size, NARROW_VOCABULARY),
    )


def width_configs(config: GPTConfig) -> list[GPTConfig]:
    """Configs of widths between the narrow model's and the full one's."""
    return [narrow_config(config, width) for width in WIDTHS if width < config.n_embd]


def new_entry(variant: Variant) -> Entry:
    """The entry of a variant before anything is known about it here."""
    return Entry(
        parent=variant.parent.name if variant.parent else None,
        difference=Difference(*variant.difference) if variant.difference else None,
        owns=list(variant.owned_slots),
        removes=variant.removes,
        pages=variant.pages.name,
        precision=variant.precision.name,
        elsewhere=runs_elsewhere(variant.backend),
    )


class Inputs:
    """One random text of a model with the keys and values that plain cached eager computes for it."""

    def __init__(self, model: Model, precision: str, workload: Workload, longest: int) -> None:
        self.model = model
        ours, theirs = ladder(precision)["lasthead"], transformers_ladder(precision)[THEIRS.baseline]
        plain = Decoder.of(ours if runs(ours, model) else theirs, model, batch=workload.batch)
        text = random_stream(model.config.vocab_size, workload.batch, longest, workload.seed + 7)
        self.tokens = text.to(model.device)
        plain.prefill(self.tokens)
        self.kv = [plain.cache.contents(layer, longest) for layer in range(model.config.n_layer)]

    def first(self, n: int) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """The first n tokens [B,n] and, per layer, their keys and values [B,Hkv,n,D]."""
        return self.tokens[:, :n], [(k[:, :, :n], v[:, :, :n]) for k, v in self.kv]

    def rows(self, batch: int) -> Inputs:
        """This text, of one row, as `batch` equal rows that share its memory."""
        other = copy(self)
        other.tokens = self.tokens.expand(batch, -1)
        other.kv = [(k.expand(batch, -1, -1, -1), v.expand(batch, -1, -1, -1)) for k, v in self.kv]
        return other


@dataclass(eq=False)
class Case:
    """A decoder under measurement. Without a cache a step is long: it is visited less, without warm-up."""

    name: str
    decoder: Decoder
    contexts: tuple[int, ...]
    inputs: Inputs
    full_size: bool
    workload: Workload

    @property
    def width(self) -> int:
        return self.decoder.model.config.n_embd

    @property
    def cached(self) -> bool:
        return self.decoder.variant.cache.keeps

    @property
    def rounds(self) -> int:
        return self.workload.rounds if self.cached else min(self.workload.rounds, self.workload.naive_rounds)

    @property
    def warm_up(self) -> int:
        return self.workload.warm_up if self.cached else 0

    @property
    def steps(self) -> int:
        return self.workload.steps if self.cached else 1

    @property
    def elsewhere(self) -> Elsewhere | None:
        """Who times its steps, where that is another process."""
        return process_of(self.decoder.modules)

    @property
    def kept_contexts(self) -> tuple[int, ...]:
        """Where a step is asked for again once it was timed: without a cache one text says it for all, and a
        process without logits has nothing to compare.
        """
        if self.elsewhere and not self.elsewhere.gives_logits:
            return ()
        return self.contexts if self.cached else self.contexts[:1]

    def load(self, context: int) -> None:
        """Put the decoder at this context, untimed."""
        self.decoder.load(*self.inputs.first(context))

    def put_back(self, context: int) -> None:
        """From a few tokens behind it to this context, untimed: a plug-in that cannot is loaded anew."""
        trunk = self.decoder.modules
        if isinstance(trunk, PluginTrunk) and not trunk.answers("rewind"):
            self.load(context)
        else:
            self.decoder.rewind(context)
