"""Backend of somebody else: an object with `prefill`, `step` and `reference`, over the model it is given.

It is named by `PATH.py:NAME`, or installed under the entry-point group `decode_floor.variants`. Nothing of it
is imported before a decoder of it is built, and nothing without being asked for by name. Torch-free itself.

The engines of `profiling.peers` are such objects too, each with a process of its own: see `Elsewhere`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from variants.backends.backend import (
    Backend,
    BackendOption,
    keep_settings,
    nothing_ahead,
    shared_settings,
    stored_anyhow,
)
from variants.option import Option, anywhere
from variants.slots.cache import CONCAT, Cache, Window
from variants.slots.kv import AS_PRECISION

if TYPE_CHECKING:
    from torch import Tensor

    from variants.model import Model
    from variants.slots.mask import Where

GROUP = "decode_floor.variants"
FILE = ".py:"  # between the path of a file and the name in it


class Plugin(Protocol):
    """What `NAME(model, batch, capacity)` gives. Logits are of the model's vocabulary V, of a float type.

    By choice it answers more: `extend(tokens [B,T]) -> [B,T,V]` after what it holds; `rewind(n)` to its first
    n tokens; `load(tokens [B,n], kv)` with keys and values [B,Hkv,n,D] of every layer; `buffers()`, the
    weights that a step reads from end to end, where they are not the model's. What it lacks is not proven.
    """

    def prefill(self, tokens: Tensor) -> Tensor:
        """tokens [B,P] int64 -> logits [B,V] after the last; whatever it held before is forgotten."""
        ...

    def step(self, token: Tensor) -> Tensor:
        """token [B,1] int64, which is overwritten later -> logits [B,V]."""
        ...

    def reference(self, tokens: Tensor) -> Tensor:
        """tokens [B,T] int64 -> logits [B,T,V] of every position, whatever it holds: what is right."""
        ...


class Told(NamedTuple):
    """What a process tells of its greedy steps: ms of the prefill and of each timed step, and the token that
    each pass gave, from the prefill's to the last step's, untimed steps among them.
    """

    first_ms: float
    steps_ms: list[float]
    tokens: list[int]


class Elsewhere(Protocol):
    """A plug-in of one row with a process of its own, which times its steps where they run.

    It knows no `reference`, is neither traced nor asked for single steps, and is built at full size alone.
    """

    about: str  # version and settings
    gives_logits: bool  # else it answers `timed` alone, and raises NotAnswered
    unproven: str  # why its logits are not those of weights that are known here; empty where they are

    def prefill(self, tokens: Tensor) -> Tensor:
        """See `Plugin`."""
        ...

    def step(self, token: Tensor) -> Tensor:
        """See `Plugin`."""
        ...

    def timed(self, tokens: Tensor, warm_up: int, steps: int) -> Told:
        """A prefill of tokens [1,P] int64, then greedy steps: `warm_up` untimed, `steps` timed."""
        ...

    def step_bytes(self, context: int) -> int:
        """Bytes of weights and cache that a step at this context must read, as it stores them."""
        ...


class NotAnswered(Exception):
    """What was asked for needs a method that a plug-in may lack; the message names it."""


@dataclass(frozen=True)
class Source:
    """Where a plug-in is: its rung's name, the text that names it, and how it is imported.

    `elsewhere`: what is made of it is of `Elsewhere`.
    """

    name: str
    at: str
    load: Callable[[], Any]
    why_not: Callable[[str], str | None] = anywhere
    elsewhere: bool = False


def in_file(text: str) -> Source:
    """The plug-in of `PATH.py:NAME`. Nothing is read yet."""
    path, _, name = text.rpartition(":")
    return Source(name, f"{Path(path).name}:{name}", lambda: getattr(_module(Path(path).resolve()), name))


def installed() -> dict[str, Source]:
    """Those of installed packages, by name. Their metadata are read, nothing is imported."""
    from importlib.metadata import entry_points  # slow, and mostly not needed

    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return {point.name: Source(point.name, point.value, point.load) for point in points}


@cache
def _module(path: Path) -> Any:
    """The file as a module of its own name, executed once."""
    spec = importlib.util.spec_from_file_location(f"decode_floor_plugin_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses of the file look themselves up there
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True, kw_only=True, eq=False)
class PluginOption(BackendOption):
    """The backend that a source gives."""

    source: Source

    def trunk(self, model: Model, batch: int, capacity: int) -> PluginTrunk:
        """Imports it, for `batch` rows of at most `capacity` tokens. Raises whatever it raises, RuntimeError
        where it changes what all rungs share."""
        shared, weights = shared_settings(), _weights(model)
        made = _called(lambda: self.source.load()(model, batch, capacity))
        keep_settings(shared)
        if _weights(model) != weights:
            raise RuntimeError("it changed the model's weights, which all rungs share; it needs its own copy")
        return PluginTrunk(made, model, batch, made if self.source.elsewhere else None)


def _called(method: Callable[..., Any], *given: Any) -> Any:
    """What it answers. It may end itself, but not the run: that is a RuntimeError."""
    try:
        return method(*given)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise RuntimeError(f"it ended the program with {str(error) or type(error).__name__}") from None


def _weights(model: Model) -> list[tuple[object, ...]]:
    """By which a change of them is seen: of each where it lies, its type and its sum."""
    stored = [*model.parameters(), *model.buffers()]
    return [(t.data_ptr(), t.dtype, t.detach().sum().item()) for t in stored]


def plugin_option(source: Source) -> PluginOption:
    """It brings everything but the executor; the model's weights are what it is given."""
    return PluginOption(
        name=source.at,
        build=lambda trunk, precision: trunk,
        begin=nothing_ahead,
        owns=("cache", "mask", "head", "attention"),
        caches=(CONCAT,),
        kvs=(AS_PRECISION,),
        why_not_stored=stored_anyhow,
        attends_to_bucket=False,
        moves=(),
        why_not=source.why_not,
        source=source,
    )


def runs_elsewhere(backend: Option) -> bool:
    """Whether this backend is a plug-in with a process of its own, see `Elsewhere`."""
    return isinstance(backend, PluginOption) and backend.source.elsewhere


def process_of(trunk: object) -> Elsewhere | None:
    """The plug-in of this trunk, where it has a process of its own."""
    return trunk.elsewhere if isinstance(trunk, PluginTrunk) else None


class PluginTrunk(Backend):
    """A plug-in as a decoder's trunk, cache and backend; every answer's shape is looked at."""

    def __init__(self, plugin: Any, model: Model, batch: int, elsewhere: Elsewhere | None) -> None:
        """`elsewhere`: the plug-in, where it is one. Raises TypeError where a method is missing."""
        for name in ("prefill", "step", *(() if elsewhere else ("reference",))):
            if not callable(getattr(plugin, name, None)):
                raise TypeError(f"{type(plugin).__name__} has no method {name}")
        self.plugin, self.model, self.batch, self.elsewhere = plugin, model, batch, elsewhere
        self.shared, self.cache = shared_settings(), PluginCache(self)

    def answers(self, method: str) -> bool:
        """Whether the plug-in has this method."""
        return callable(getattr(self.plugin, method, None))

    def needs(self, method: str) -> Callable[..., Any]:
        """The method. Raises NotAnswered where the plug-in lacks it."""
        if not self.answers(method):
            raise NotAnswered(f"it has no {method}")
        return partial(_called, getattr(self.plugin, method))

    def forward(self, tokens: Tensor, every: bool) -> Tensor:
        if not every and self.cache.held() == 0:
            logits = self._answer("prefill", tokens.clone(), self.batch)[:, None]
        else:
            logits = self._answer("extend", tokens.clone(), *tokens.shape)
        keep_settings(self.shared)  # also by the steps before, which are timed and not looked at themselves
        self.cache.length += tokens.size(1)
        return logits.clone()  # its next answer may lie in the same buffer

    def step(self, token: Tensor) -> Tensor:
        logits = self._answer("step", token, self.batch)
        self.cache.length += 1
        token.copy_(logits.argmax(dim=-1, keepdim=True))
        return logits

    def reference(self, tokens: Tensor) -> Tensor:
        """What it calls right: tokens [B,T] -> logits [B,T,V]."""
        return self._answer("reference", tokens.clone(), *tokens.shape)

    def weights(self) -> list[Tensor] | None:
        """What `buffers` says that a step reads; None where it does not say."""
        return list(self.plugin.buffers()) if self.answers("buffers") else None

    def _answer(self, method: str, tokens: Tensor, *shape: int) -> Tensor:
        """Raises TypeError for an answer that is no floating tensor of this shape, then V, on the device."""
        logits: Tensor = self.needs(method)(tokens)
        expected = (*shape, self.model.config.vocab_size)
        answered = tuple(getattr(logits, "shape", ())), getattr(logits, "device", None)
        if answered != (expected, tokens.device) or not logits.is_floating_point():
            what = f"{list(answered[0])} on {answered[1]}" if answered[1] else type(logits).__name__
            raise TypeError(f"{method} answered {what}, expected logits {list(expected)} on {tokens.device}")
        return logits


class PluginCache(Cache):
    """What a plug-in holds, as far as can be seen from outside: how many tokens it was fed."""

    slots = 0

    def __init__(self, trunk: PluginTrunk) -> None:
        self.trunk, self.length = trunk, 0
        self.kv: list[tuple[Tensor, Tensor]] = []

    def begin(self, tokens: Tensor) -> Window:
        import torch

        self.kv, n = [], tokens.size(1)
        return Window(tokens, torch.arange(n, device=tokens.device), slice(0, n), n)

    def append(self, layer: int, k: Tensor, v: Tensor, where: Where) -> tuple[Tensor, Tensor]:
        self.kv.append((k, v))
        return k, v

    def advance(self, tokens: Tensor) -> None:
        """What was appended is handed over; a plug-in that takes no keys reads the text itself."""
        if self.trunk.answers("load"):
            self.trunk.needs("load")(tokens, self.kv)
            self.length += tokens.size(1)
        else:
            self.trunk.forward(tokens, every=False)

    def rewind(self, n: int) -> None:
        """Nothing is asked of a plug-in that starts anew: its prefill forgets."""
        if 0 < n < self.length:
            self.trunk.needs("rewind")(n)
        self.length = n

    def held(self) -> int:
        return self.length

    def contents(self, layer: int, n: int) -> tuple[Tensor, Tensor]:
        raise NotAnswered("it shows no keys and values")

    def buffers(self) -> list[Tensor]:
        return []
