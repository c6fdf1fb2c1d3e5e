"""What a decoder gave when it was proven, to be asked for again once it was timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from profiling.gate.evidence import Errors
from variants.decoder import Decoder

UNITS = 2.0  # of rounding, against the scale: the same code on the same input mostly gives the same bits


class KeptSteps:
    """One step at each context, entered by `load`."""

    def __init__(self, decoder: Decoder, contexts: Iterable[int], load: Callable[[int], None]) -> None:
        self.decoder, self.load = decoder, load
        self.logits = {context: self._step(context) for context in contexts}

    def why_not_again(self) -> str | None:
        """None where the same steps give what they gave before, else what differs."""
        unit = UNITS * self.decoder.variant.precision.rounding
        for context, before in self.logits.items():
            errors = Errors.of(self._step(context), before.double())
            if not errors.rms <= unit * errors.scale:
                return (
                    f"after it was timed, the step at context {context} gives other logits than when it was "
                    f"proven: they differ by {errors.rms:.2g} (rms), at a scale of {errors.scale:.2g}"
                )
        return None

    def _step(self, context: int) -> Tensor:
        """Logits [B,V], kept on the host."""
        self.load(context)
        return self.decoder.advance().cpu().clone()
