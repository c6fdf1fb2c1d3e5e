"""Logits that transformers computed for one seeded model: the reference itself is held to them.

Whatever reference and variants have in common - the modules, the order of operations, their constants - no
comparison of the two can find. The model is the stressed one, so that the norms' epsilon, the kind of GELU
and the softmax count; its weights are float32, and the logits are those of GPT2LMHeadModel in float64.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from profiling.gate.evidence import Errors, Mismatch
from profiling.gate.oracle import Oracle
from profiling.gate.stress import STEPS, small_config, stressed
from variants.config import PRESETS
from variants.model import GPT
from variants.slots.kv import AS_PRECISION
from variants.slots.precision import FLOAT32

# of the texts of `known_model`, as `asked` picks them; tests/test_known.py computes them anew
LOGITS = (
    (3.69941086, -25.77985597, 12.43492609, -27.29383973, -3.49310812, -7.12604667),
    (7.08503445, -27.08777321, 20.99230136, -3.90742448, -9.83896436, -1.91381212),
    (16.85045200, -21.91541026, 3.82493902, -13.41558345, -3.03634416, 8.93761405),
)
# relative to their scale: the weights are drawn in float32, whose last digits differ between machines
TOLERANCE = 1e-4


def known_model() -> tuple[GPT, list[Tensor]]:
    """A GPT-2 of two layers, and the texts [1,T] with values that are small, of large mean, and outliers."""
    model, scenes = stressed(small_config(PRESETS["gpt2"]), batch=1, seed=0)
    return model, [scene.text for scene in scenes[:3]]


def asked(logits: Tensor) -> Tensor:
    """logits [1,T,V] -> [STEPS]: one entry, another one at each of the last positions."""
    last = logits[0, -STEPS:]
    return last.gather(1, torch.arange(3, last.size(1), 29)[:STEPS, None])[:, 0]


@cache
def _off() -> float:
    """Root mean square of what the reference differs by, relative to the scale; computed once."""
    model, texts = known_model()
    reference = Oracle(model, FLOAT32, AS_PRECISION, batch=1)
    ours = torch.cat([asked(reference.logits(text)) for text in texts])
    errors = Errors.of(ours, torch.tensor(LOGITS, dtype=torch.float64).flatten())
    return errors.rms / errors.scale


def hold_reference() -> None:
    """Raises Mismatch where the reference does not give these logits."""
    if not _off() <= TOLERANCE:
        raise Mismatch(
            "the reference itself is wrong: for a known model its logits differ from those of transformers "
            f"by {_off():.2g} of their scale, {TOLERANCE:g} is allowed"
        )
