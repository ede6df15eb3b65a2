"""The clock: how one unbroken stream of rows becomes unrolls.

    inputs    row 0   row 1   ...   row T       T+1 rows: observation, is_first, last action, last reward
    outcomes  row 0   row 1   ...   row T-1     T rows:   action, reward, discount, behaviour, real

Row t of the outcomes answers row t of the inputs. The last input row of an unroll (from which the loss bootstraps) is the first input
row of the next; no outcome belongs to two unrolls.
"""

from typing import NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor

from laser_rl.ops import checks


class Unrolls(NamedTuple):
    """Rows of many unrolls side by side: unroll u of slot b is column u · B + b."""

    inputs: Shaped[Tensor, "T_plus_1 U *inputs"]
    outcomes: Shaped[Tensor, "T U *outcomes"]


def cut(inputs: Shaped[Tensor, "N_plus_1 B *inputs"], outcomes: Shaped[Tensor, "N B *outcomes"], steps: int) -> Unrolls:
    """Cut the streams of B slots into unrolls of `steps` steps.

    >>> import torch
    >>> unrolls = cut(torch.arange(5).reshape(5, 1), torch.arange(4).reshape(4, 1) * 10, steps=2)
    >>> unrolls.inputs.tolist()
    [[0, 2], [1, 3], [2, 4]]
    >>> unrolls.outcomes.tolist()
    [[0, 20], [10, 30]]
    """
    total = outcomes.shape[0]
    if checks.active():
        checks.require(steps > 0, f"steps is {steps}, expected at least 1")
        checks.require(
            inputs.shape[0] == total + 1,
            f"inputs have {inputs.shape[0]} rows and outcomes {total}; expected one input row more than outcomes (the bootstrap)",
        )
        checks.require(
            total > 0 and total % steps == 0,
            f"a stream of {total} steps cannot be cut into whole unrolls of {steps}; wait for {steps - total % steps} more",
        )
    starts = torch.arange(0, total, steps, device=inputs.device)
    offsets = torch.arange(steps + 1, device=inputs.device)[:, None]
    rows = starts + offsets
    return Unrolls(inputs[rows].flatten(1, 2), outcomes[rows[:-1]].flatten(1, 2))
