"""What a variant is: an option in each of the decoder's slots, one slot away from its parent.

Torch-free, so that `--help` and `--list` stay fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from variants.backends.backend import MODULES, BackendOption
from variants.executors.executor import EAGER, ExecutorOption
from variants.option import Option, declared
from variants.slots.attention import WRITTEN_OUT, AttentionOption
from variants.slots.cache import NONE, CacheOption
from variants.slots.head import ALL, HeadOption
from variants.slots.kv import AS_PRECISION, KvOption
from variants.slots.mask import PER_LAYER, MaskOption
from variants.slots.pages import DEFAULT, PagesOption
from variants.slots.precision import FLOAT32, PrecisionOption


@dataclass(frozen=True)
class Variant:
    """An option of every slot, by default those of the articles' decoder without a cache.

    `removes` says what the changed slot should take out of a step. Raises ValueError for a pair of options
    that do not go together.
    """

    name: str
    removes: str
    cache: CacheOption = NONE
    mask: MaskOption = PER_LAYER
    head: HeadOption = ALL
    attention: AttentionOption = WRITTEN_OUT
    precision: PrecisionOption = FLOAT32
    kv: KvOption = AS_PRECISION
    pages: PagesOption = DEFAULT
    executor: ExecutorOption = EAGER
    backend: BackendOption = MODULES
    parent: Variant | None = None

    def __post_init__(self) -> None:
        for slot, kind in SLOTS.items():
            if not isinstance(self.slot(slot), kind):
                raise ValueError(f"{self.name}: {slot} takes a {kind.__name__}, not {self.slot(slot)!r}")
        cache, kv, backend = self.cache, self.kv, self.backend
        if self.executor.needs_fixed_shape and not cache.fixed_shape:
            raise ValueError(
                f"{self.name}: executor {self.executor.name!r} needs a step of fixed shape, which cache "
                f"{cache.name!r} does not give"
            )
        if kv.caches and cache not in kv.caches:
            raise ValueError(
                f"{self.name}: kv {kv.name!r} is written for cache {_either(kv.caches)}, not {cache.name!r}"
            )
        if (backend.caches and cache not in backend.caches) or (backend.kvs and kv not in backend.kvs):
            raise ValueError(
                f"{self.name}: backend {backend.name!r} reads cache {_either(backend.caches)} stored "
                f"{_either(backend.kvs)}, not cache {cache.name!r} stored {kv.name!r}"
            )

    @property
    def fixed_shape(self) -> bool:
        """Whether a step's tensors have the same shape at every context."""
        return self.cache.fixed_shape

    def slot(self, name: str) -> Option:
        """The option of this slot."""
        option: Option = getattr(self, name)
        return option

    def then(self, name: str, removes: str, **change: Option) -> Variant:
        """The variant one slot further. Raises ValueError unless exactly one slot really changes."""
        if len(change) != 1 or any(self.slot(slot) is option for slot, option in change.items()):
            raise ValueError(f"{name}: a rung changes exactly one slot of {self.name}, got {change}")
        return replace(self, name=name, removes=removes, parent=self, **change)  # type: ignore[arg-type]

    @property
    def difference(self) -> tuple[str, str, str] | None:
        """(slot, before, after) against the parent by name, computed and never described by hand."""
        if self.parent is None:
            return None
        ((slot, before, after),) = (
            (slot, self.parent.slot(slot).name, self.slot(slot).name)
            for slot in SLOTS
            if self.parent.slot(slot) is not self.slot(slot)
        )
        return slot, before, after

    @property
    def owned_slots(self) -> tuple[str, ...]:
        """Slots that the backend fills itself."""
        return self.backend.owns

    def why_not(self, device: str) -> str | None:
        """None where the variant runs on this kind of device ("cpu", "cuda", "mps"), else the reason.

        Of several reasons the first from the backend upwards.
        """
        reasons = (self.slot(slot).why_not(device) for slot in reversed(SLOTS))
        reason = next((reason for reason in reasons if reason), None)
        return reason or self.backend.why_not_stored(device, self.cache, self.kv)

    def ancestors(self) -> Iterator[Variant]:
        """Parent first, root last."""
        variant = self.parent
        while variant is not None:
            yield variant
            variant = variant.parent


def _either(options: tuple[Option, ...] | None) -> str:
    return " or ".join(repr(option.name) for option in options or ())


# slot -> the kind of its options
SLOTS: dict[str, type[Option]] = {
    field.name: type(field.default) for field in fields(Variant) if isinstance(field.default, Option)
}


def option_named(slot: str, name: str) -> Option | None:
    """The option that a record calls so; None where this version has none of that name."""
    return declared(SLOTS[slot]).get(name) if slot in SLOTS else None
