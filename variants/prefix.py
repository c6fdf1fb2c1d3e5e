"""Prompts that begin alike: computed once, held once, in the blocks of a paged cache."""

from __future__ import annotations

import torch
from torch import Tensor

from variants.decoder import Decoder
from variants.slots.paged_cache import PagedCache


@torch.inference_mode()
def prefill_shared(decoder: Decoder, tokens: Tensor) -> tuple[Tensor, int]:
    """As `decoder.prefill`, but a prefix that the pool holds is shared and only the rest is computed.

    tokens [B,P] int64 -> logits [B,V] after the last, and how many tokens of each row were not computed. The
    last token always is: its logits are asked for. The prompt's full blocks are published.
    """
    cache = decoder.cache
    assert isinstance(cache, PagedCache)
    decoder.reset()
    decoder.length = cache.adopt(tokens[:, :-1])
    held = decoder.length
    logits = decoder.extend(tokens[:, held:])[:, -1]
    cache.publish(tokens)
    return logits, held
