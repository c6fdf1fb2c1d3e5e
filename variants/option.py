"""What an option of a slot is: one object that carries everything that is said of it. Torch-free.

The kind of a slot (`CacheOption`, `MaskOption`, ...) stands in the slot's file and adds what matters there;
its options stand below it. None of the facts has a default, so an option that lacks one cannot be made. What
is built imports torch when it is built: names and facts are read where torch is not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar


@dataclass(frozen=True)
class Move:
    """What changing a slot to an option must or must not move, against the parent.

    `short` and `long` are the step at the smallest and largest context, `ttft` the time to the first token.
    """

    quantity: Literal["short", "long", "ttft"]
    matters: bool
    why: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Option:
    """What is said of every option; `why_not` gives the reason why it cannot run on a kind of device."""

    name: str
    moves: tuple[Move, ...]
    why_not: Callable[[str], str | None]


Kind = TypeVar("Kind", bound=Option)


def anywhere(device: str) -> None:
    """The `why_not` of an option that runs on every device."""


def declared(kind: type[Kind]) -> dict[str, Kind]:
    """The options of this kind by name: those that stand in its file, in their order.

    Raises ValueError where two of them have one name.
    """
    options = [value for value in vars(sys.modules[kind.__module__]).values() if isinstance(value, kind)]
    by_name = {option.name: option for option in options}
    if len(by_name) < len(options):
        raise ValueError(f"two options of {kind.__name__} have one name: {[o.name for o in options]}")
    return by_name
