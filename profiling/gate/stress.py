"""A small model and caches that exercise what random weights never do.

At GPT-2's initialisation attention is nearly uniform, scores are small and every mean is near zero: a softmax
without its maximum, a skipped slot or a variance in one pass give the right logits. Here

- attention hangs on single slots: a key cached there points along the query (a needle), or away from it in
  all slots but the newest; scores reach 100 and -100, beyond the range of exp in float32 (88.7); where two
  needles share a query, the difference of two large scores counts;
- activations are so small that the norms' epsilon counts, or have means that are large against their spread,
  or outlier channels, by tokens of their own;
- GELU is used where its tanh approximation differs most from erf (10 % at -3), in the first block;
- the first and the last entry of the vocabulary, and two with equal rows, win after tokens of their own.

Keys and values that no text leaves behind are as good as any: a step is a function of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle

import torch
from torch import Tensor

from profiling.gate.oracle import KV, random_stream
from variants.config import GPTConfig
from variants.model import GPT, Block, empty_model
from variants.rope import rope_tables
from variants.slots.head import all_positions

STEPS = 6  # of every scene
SMALL_VALUES, LARGE_MEANS, OUTLIERS = "small values", "large means", "outlier channels"
# Contexts with tokens like all others: around the ends of chunks of 16 and 256 slots, and two of these.
PLAIN_CONTEXTS = (1, 29, 250, 290)
SCALE = 1.5  # of embeddings that have one: its root of the width would outshine what the layers add
WINDOW = 40  # of layers that have one: contexts on both sides of it, and more than a chunk beyond it
TAIL, TAIL_SPREAD = -3.0, 0.2  # what GELU is given there
SPREAD = 1.5  # standard deviation of the scores where nothing else is arranged
NEEDLE, BEYOND_EXP = 30.0, 100.0  # scores: far above a thousand others, and where exp overflows float32
LOUDEST = 1  # the query, of those that share their keys, with a score beyond exp in one layer of two
TINY = 2e-3  # its square is below the usual epsilon of 1e-5
MEAN = 128.0  # a variance in one pass loses 16,000 of float32's units there, one in two passes 128
OUTLIER, OUTLIER_CHANNELS = 60.0, 3
SECOND = 1.0  # below the needle beside it: the two share the attention 73 to 27


@dataclass(frozen=True)
class Scene:
    """Steps with the last tokens of `text` int64 [B,T], on arranged slots for those before."""

    name: str
    text: Tensor
    kv: KV  # values that bfloat16 holds exactly, so that every precision starts from the same
    stressed: str  # what its errors are compared with: those of scenes with the same word

    @property
    def context(self) -> int:
        return self.kv[0][0].size(2)

    def on(self, device: torch.device) -> Scene:
        """The scene with its text [B,n] and its keys and values on this device."""
        kv = [(k.to(device), v.to(device)) for k, v in self.kv]
        return replace(self, text=self.text.to(device), kv=kv)


def small_config(config: GPTConfig) -> GPTConfig:
    """Two layers of the same family, or as many as it has kinds of. Rows hold two groups of int4's scales,
    the cache two chunks of slots.
    """
    heads, n_ctx = 4, 320
    of_layers = [(config.slides(n), config.window(n), config.rope_of(n)) for n in range(config.n_layer)]
    kinds = list(dict.fromkeys(of_layers))
    return replace(
        config,
        n_layer=max(2, len(kinds)),
        windows=tuple(WINDOW if window else slides and n_ctx for slides, window, _ in kinds),
        unturned=tuple(rope is None for *_, rope in kinds) if config.unturned else (),
        embed_scale=SCALE if config.embed_scale != 1.0 else 1.0,
        n_head=heads,
        n_kv_head=max(1, heads * config.n_kv_head // config.n_head),
        n_embd=128,
        n_inner=256,
        head_width=None,
        n_ctx=n_ctx,
        vocab_size=199,
        tied_head=False,  # embeddings of outliers would be head rows that outshine every other logit
    )


def stressed(config: GPTConfig, batch: int, seed: int) -> tuple[GPT, list[Scene]]:
    """A float32 model of this config on the CPU, and its scenes for `batch` rows."""
    generator = torch.Generator().manual_seed(seed)
    model = _drawn(config, generator)
    texts = _texts(model, batch, generator)
    arranged = {name: _Arranged(model, text.size(1) - STEPS, generator) for name, text in texts.items()}
    for name, text in texts.items():
        _fill(model, text, arranged[name])
    return model, [Scene(name, text, arranged[name].kv, stressed=name) for name, text in texts.items()]


# -- weights ----------------------------------------------------------------------------------


@torch.no_grad()
def _drawn(config: GPTConfig, generator: torch.Generator) -> GPT:
    """Matrices keep the size of what they are given; so every block counts against the residual stream."""
    model = empty_model(config).to_empty(device="cpu")
    if config.rope is not None:
        model.rope.copy_(rope_tables(config))
    if config.tied_head:  # to_empty gives each name its own storage
        model.lm_head.weight = model.wte.weight
    for name, parameter in model.named_parameters():
        if "norm" in name or "ln_" in name:
            parameter.normal_(1.0 if name.endswith("weight") else 0.0, 0.1, generator=generator)
        elif name == "wpe.weight" or name.endswith("bias"):
            parameter.normal_(0.0, 0.3, generator=generator)
        elif name in ("wte.weight", "lm_head.weight"):
            parameter.normal_(0.0, 1.0, generator=generator)
        else:
            parameter.normal_(0.0, parameter.size(1) ** -0.5, generator=generator)
    first = model.blocks[0]
    if isinstance(first, Block) and config.mlp_bias and not config.gated:
        _into_the_tail(first, generator)
    return model.requires_grad_(False).eval()


def _into_the_tail(block: Block, generator: torch.Generator) -> None:
    """Put what GELU is given into its tail, and let `down` bring what comes out back to size 1."""
    block.up.weight.mul_(TAIL_SPREAD)
    block.up.bias.mul_(TAIL_SPREAD).add_(TAIL)
    samples = TAIL + TAIL_SPREAD * torch.randn(1, 2 * block.down.in_features, generator=generator)
    block.down.weight.div_(block.activated(samples).square().mean().sqrt())


def _special(vocab_size: int) -> tuple[int, ...]:
    """First and last entry, and two that get equal rows in the head; never fed."""
    return 0, vocab_size - 1, vocab_size // 3, 2 * vocab_size // 3


@torch.no_grad()
def _texts(model: GPT, batch: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Per scene its text [B,n+STEPS]; what stands before the last STEPS tokens only tells scenes apart."""
    size = model.config.vocab_size
    order = torch.randperm(size, generator=generator).tolist()
    pool = torch.tensor([token for token in order if token not in _special(size)])
    tokens_of, common = pool[: 3 * STEPS].view(3, STEPS), pool[3 * STEPS :]
    scenes = [
        (name, 2 + 8 * place, tokens_of[place])
        for place, name in enumerate((SMALL_VALUES, LARGE_MEANS, OUTLIERS))
    ]
    for name, context, tokens in scenes:
        _set_embeddings(model, name, context, tokens)
    scenes += [(f"{n} slots", n, common) for n in PLAIN_CONTEXTS]
    texts = {}
    for number, (name, context, tokens) in enumerate(scenes):
        fed = torch.stack(
            [tokens[torch.randperm(len(tokens), generator=generator)[:STEPS]] for _ in range(batch)]
        )
        texts[name] = torch.cat([random_stream(size, batch, context, number), fed], dim=1)
    return texts


def _set_embeddings(model: GPT, name: str, context: int, tokens: Tensor) -> None:
    rows = model.wte.weight
    if name == SMALL_VALUES:
        rows[tokens] *= TINY
        if model.config.rope is None:
            model.wpe.weight[context : context + STEPS] *= TINY
    elif name == LARGE_MEANS:
        rows[tokens] += MEAN
    else:
        _set_winners(model, tokens)


def _set_winners(model: GPT, tokens: Tensor) -> None:
    """After each third of these tokens, the first entry wins, the last, or two at once.

    A token's outlier channel comes through the layers: after the last norm it is the largest by far, near the
    root of the width. The winners' rows read that channel only.
    """
    head, width = model.lm_head.weight, model.config.n_embd
    first, last, *twins = _special(head.size(0))
    for number, winners in enumerate(((first,), (last,), twins)):
        channel = number * (width // OUTLIER_CHANNELS)
        model.wte.weight[tokens[number::OUTLIER_CHANNELS], channel] = OUTLIER
        for winner in winners:
            head[winner] = 0.0
            head[winner, channel] = width**0.5


# -- caches -----------------------------------------------------------------------------------


class _Arranged:
    """The keys and values of one scene, arranged layer by layer for the queries that come."""

    def __init__(self, model: GPT, context: int, generator: torch.Generator) -> None:
        self.config, self.context, self.generator = model.config, context, generator
        self.slots = _slots(context, generator)
        self.kv: KV = []

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B,H,STEPS,D], k and v [B,Hkv,STEPS,D] of the scene's own tokens -> [B,H,STEPS,D]."""
        self.kv.append(self._for_queries(layer, q))
        held = [x.to(q) for x in self.kv[-1]]
        keys, values = (torch.cat(pair, dim=2) for pair in zip(held, (k, v), strict=True))
        return attention(q, keys, values, self.config.window(layer))

    def _for_queries(self, layer: int, q: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B,Hkv,n,D]."""
        shape = (2, q.size(0), self.config.n_kv_head, self.context, self.config.head_dim)
        keys, values = torch.randn(shape, generator=self.generator)
        keys *= SPREAD
        for kv_head, queries in enumerate(q.unflatten(1, (self.config.n_kv_head, -1)).transpose(0, 1)):
            along = directions(queries)
            for place in range(along.size(1)):
                match (place + layer) % 4:
                    case 0:
                        keys[:, kv_head] -= NEEDLE * along[:, None, place]
                    case 1:
                        strength = BEYOND_EXP if place == LOUDEST else NEEDLE
                        keys[:, kv_head, next(self.slots)] = strength * along[:, place]
                    case 2:
                        for strength in (NEEDLE - SECOND, NEEDLE):
                            keys[:, kv_head, next(self.slots)] = strength * along[:, place]
        return keys.bfloat16(), values.bfloat16()


def directions(queries: Tensor) -> Tensor:
    """queries [B,G,STEPS,D] that share their keys -> keys [B,N,D], the i-th with score 1 for query i.

    And with score 0 for the others of the first N; of so few that this does not make the keys long.
    """
    D = queries.size(-1)
    few = queries.flatten(1, 2)[:, : max(1, D // 2)]
    directions: Tensor = torch.linalg.pinv(few).transpose(1, 2) * math.sqrt(D)
    return directions.float()


def _slots(n: int, generator: torch.Generator) -> Iterator[int]:
    """All of n slots in turn; first those where loops begin and end: both ends, and next to round numbers."""
    edges = [0, n - 1, n - 2, n - 3]
    for size in (256, 128, 64, 16):
        edges += [slot for edge in range(size, n, size) for slot in (edge - 1, edge)]
    rest = torch.randperm(n, generator=generator).tolist()
    return cycle([slot for slot in dict.fromkeys([*edges, *rest]) if slot >= 0])


def attention(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    """q [B,H,T,D] are the last T of the positions that k and v [B,Hkv,S,D] have."""
    shared_by, T, S = q.size(1) // k.size(1), q.size(2), k.size(2)
    k, v = k.repeat_interleave(shared_by, dim=1), v.repeat_interleave(shared_by, dim=1)
    visible = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)
    if window is not None:
        visible = visible.triu(S - T + 1 - window)
    scores = (q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))).masked_fill(~visible, float("-inf"))
    return scores.softmax(dim=-1) @ v


@torch.no_grad()
def _fill(model: GPT, text: Tensor, arranged: _Arranged) -> None:
    """Arrange keys and values layer by layer, as the last STEPS tokens of the text ask for them."""
    n = arranged.context
    model(text[:, n:], torch.arange(n, n + STEPS), arranged.attend, all_positions)
