"""What a recorded step must not do, checked without a GPU.

A replay runs no Python and waits for no device value: a step that reads one back (`.item()`, `.tolist()`,
a boolean test) or whose shapes depend on data cannot be recorded. CUDA says so with error 900 and no name;
here the operation is named, on any device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from variants.errors import one_line


class CaptureError(RuntimeError):
    """The step cannot be recorded; the message names the operation."""


def refuse_host_sync(func: Any) -> None:
    """Raises CaptureError if this ATen operation needs a value from the device."""
    if torch.Tag.data_dependent_output in func.tags:
        raise CaptureError(f"{func.name()} needs a value from the device, so the step cannot be replayed")


# calls that copy data to the host without an ATen operation
PAST_THE_DISPATCHER = ("tolist", "numpy", "__array__")


ON_DATA = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)


class _HostCopies(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in PAST_THE_DISPATCHER:
            raise CaptureError(f"Tensor.{name} copies data to the host, so the step cannot be replayed")
        return func(*args, **(kwargs or {}))


class _HostSyncs(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        refuse_host_sync(func)
        return func(*args, **(kwargs or {}))


def check_capturable(step: Callable[[Tensor], Tensor], token: Tensor, restore: Callable[[], None]) -> None:
    """Run one step under the rules of a capture. Raises CaptureError naming what breaks them.

    Two passes: calls and dispatched operations show what reads data back; shapes that depend on data show
    on tensors without data.
    """
    try:
        with _HostCopies(), _HostSyncs():  # type: ignore[no-untyped-call]
            step(token)
    finally:
        restore()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            step(token)
    except CaptureError:
        raise
    except Exception as error:
        depends = isinstance(error, ON_DATA)
        what = "a shape or a branch in the step depends on data" if depends else "not known without data"
        raise CaptureError(f"{what}: {one_line(error)}") from error
    finally:
        restore()
