"""Checks of other people's code alone: of what a plug-in calls right, and of what another process times."""

from __future__ import annotations

import torch

from profiling.gate.checks import Check, Parts, same_text
from profiling.gate.evidence import LOGITS, Errors, Evidence, Mismatch
from profiling.gate.trial import Trial
from variants.backends.plugin import Elsewhere, NotAnswered, PluginTrunk, process_of
from variants.decoder import Decoder

# Of the scale of the logits: what other weights of four bits may move them by. Logits of another function are
# off by more than their scale.
NEAR = 0.5


@torch.inference_mode()
def reference(trial: Trial) -> Parts:
    """What a plug-in calls right is the function of the model that it was given."""
    plugin, text = trial.decoder.modules, trial.text[:, : trial.warm]
    assert isinstance(plugin, PluginTrunk)
    return [Evidence({LOGITS: Errors.of(plugin.reference(text), trial.truth.logits(text))})]


def timed_tokens(trial: Trial) -> Parts:
    """What a process writes while it is timed is the reference's greedy text."""
    engine, prompt = _elsewhere(trial), trial.prompt
    told = engine.timed(prompt, 1, trial.steps - 1)
    if engine.unproven:
        raise NotAnswered(engine.unproven)
    text = torch.cat([prompt, torch.tensor([told.tokens])], dim=1)
    start = prompt.size(1)
    same_text(text, start, trial.truth.logits(text, position=start - 1), trial.tie)
    return []


@torch.inference_mode()
def near(trial: Trial) -> Parts:
    """Logits of weights stored in a way of its own lie near the reference's: it is no other function."""
    engine, decoder, fed = _elsewhere(trial), trial.decoder, trial.after_prompt(trial.forced)
    if not engine.gives_logits:
        raise NotAnswered("it gives no logits")
    logits = [decoder.prefill(trial.prompt), *(decoder.step(token) for token in fed.split(1, dim=1))]
    text = torch.cat([trial.prompt, fed], dim=1)
    right = trial.truth.logits(text, position=trial.prompt.size(1) - 1)
    errors = Errors.of(torch.stack(logits, dim=1), right)
    if not errors.rms <= NEAR * errors.scale:
        raise Mismatch(f"logits are off by {errors.rms:.2g} (rms), at a scale of {errors.scale:.2g}")
    return []


def _elsewhere(trial: Trial) -> Elsewhere:
    engine = process_of(trial.decoder.modules)
    assert engine is not None
    return engine


PLUGIN: dict[str, Check] = {"reference": reference}
ELSEWHERE: dict[str, Check] = {"timed tokens": timed_tokens}
OWN_WEIGHTS: dict[str, Check] = {**ELSEWHERE, "near": near}


def checks_of(decoder: Decoder) -> dict[str, Check]:
    """The checks that go before all others where the code is somebody else's."""
    if engine := process_of(decoder.modules):
        return OWN_WEIGHTS if engine.unproven else ELSEWHERE
    return PLUGIN if isinstance(decoder.modules, PluginTrunk) else {}
