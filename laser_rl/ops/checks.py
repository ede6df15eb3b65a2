"""Returns, losses, trust region, memories and families refuse bad tensors; that costs nothing inside the training step.

Each of these functions asks `active()` once and validates only if it says yes. It says no while `torch.compile` traces (so a compiled
step contains no check at all) and inside `unchecked()` (one look-up of a context variable for each call, no look at any tensor).
"""

from contextvars import ContextVar

import torch
from torch import Tensor

from laser_rl.errors import UserError

_ACTIVE: ContextVar[bool] = ContextVar("laser_rl_checks_active", default=True)


class InputError(UserError, ValueError):
    """An argument of a public function is wrong; the message says what was expected, what came and what to do."""


def active() -> bool:
    """Whether public functions look at their input now."""
    return not torch.compiler.is_compiling() and _ACTIVE.get()


class unchecked:  # noqa: N801 - a function to its callers; `contextmanager` takes four times as long, at every step of an actor
    """Switch the checks off for the calling thread, as an eager training step does around its loss.

    >>> from laser_rl.ops import checks
    >>> with checks.unchecked():
    ...     checks.active()
    False
    """

    def __enter__(self) -> None:
        self._token = _ACTIVE.set(False)

    def __exit__(self, *error: object) -> None:
        _ACTIVE.reset(self._token)


def require(holds: bool, message: str) -> None:
    """Raise `InputError(message)` unless `holds`."""
    if not holds:
        raise InputError(message)


def rows(learnable: Tensor, **tensors: Tensor) -> None:
    """`learnable` is a mask [T, B], neither dimension empty; the others are floats of its shape, finite where it is true."""
    got = tuple(learnable.shape)
    require(learnable.ndim == 2 and 0 not in got, f"the mask has shape {got}, expected rows [T, B]")  # noqa: PLR2004
    boolean(learnable=learnable)
    same_shape(learnable=learnable, **tensors)
    numbers(learnable, **tensors)


def numbers(where: Tensor | None = None, **tensors: Tensor) -> None:
    """All tensors are floats, and finite (in the rows that `where` marks, if given)."""
    floating(**tensors)
    finite(where, **tensors)


def same_shape(**tensors: Tensor) -> None:
    """All tensors have the shape of the first one."""
    (first, reference), *others = tensors.items()
    for name, tensor in others:
        got, expected = tuple(tensor.shape), tuple(reference.shape)
        require(
            got == expected, f"{name} has shape {got}, expected {expected} like {first}; inputs are time-major, [T, B]"
        )


def floating(**tensors: Tensor) -> None:
    """All tensors are float32 or float64: returns and losses are not computed in half precision."""
    for name, tensor in tensors.items():
        right = tensor.dtype in {torch.float32, torch.float64}
        require(right, f"{name} is {tensor.dtype}, expected torch.float32 or torch.float64; call {name}.float() first")


def boolean(**tensors: Tensor) -> None:
    """All tensors are masks."""
    for name, tensor in tensors.items():
        right = tensor.dtype == torch.bool
        require(right, f"{name} is {tensor.dtype}, expected torch.bool; compare or call {name}.bool()")


def indices(size: int, **tensors: Tensor) -> None:
    """All tensors are integers in [0, size)."""
    for name, tensor in tensors.items():
        integral = not tensor.is_floating_point() and tensor.dtype != torch.bool
        require(integral, f"{name} is {tensor.dtype}, expected integers; call {name}.long() first")
        low, high = int(tensor.min()), int(tensor.max())
        require(low >= 0 and high < size, f"{name} runs from {low} to {high}, expected 0 to {size - 1}")


def finite(where: Tensor | None = None, **tensors: Tensor) -> None:
    """No NaN and no infinity, in the rows that `where` marks (all rows if it is None)."""
    for name, tensor in tensors.items():
        bad = ~tensor.isfinite() if where is None else ~tensor.isfinite() & where
        count = int(bad.sum())
        if count:
            place = tuple(int(index) for index in bad.nonzero()[0])
            raise InputError(
                f"{name} has {count} entries that are not finite, the first at {place} ({tensor[place].item()}); "
                "find what produced them, they would spread through every target before them"
            )
