"""Checkpoints that a release has written, kept as they are: every later release has to load them.

A folder is named for the formats of manifests and of replay segments. In it, `mlp` and `lstm` are run directories of single agents, `sweep`
of three members with population based training, and `agent.safetensors` is a file of `LASER.save`. Beside each, what its network says to
rows that are stored with it. Files of a format are never changed: `python -m tests.golden.make` makes those of a new one.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from laser_rl.checkpoint import manifest, segments
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.types import Inputs

FOLDER = Path(__file__).parent
RUNS = {"mlp": None, "lstm": None, "sweep": 3}  # how many members
EXPECTED = "expected.json"


def folder_of_now() -> Path:
    """Where the files of the present formats belong."""
    return FOLDER / f"format-{manifest.FORMAT}.{segments.FORMAT}"


def folders() -> list[Path]:
    """Of all formats that ever were, oldest first."""
    return sorted(FOLDER.glob("format-*"))


class Rounded(TorchDispatchMode):
    """Every operation in double precision, its result rounded to single.

    So the order in which a processor adds up does not show, and logits are the same bits on any machine.
    """

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        options = options or {}
        if operation.is_view or operation._schema.is_mutable:
            return operation(*arguments, **options)
        exact = torch.utils._pytree.tree_map(_double, (arguments, options))
        return torch.utils._pytree.tree_map(_single, operation(*exact[0], **exact[1]))


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.dtype == torch.float32 else value


def _single(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.float64 else value


def rows_for(shape: tuple[int, ...], actions: int, seed: int) -> dict[str, Any]:
    """Four rows of three slots, among them a first one in the middle, as JSON keeps them."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "observation": torch.randn(4, 3, *shape, generator=generator).tolist(),
        "is_first": [[True] * 3, [False] * 3, [False, True, False], [False] * 3],
        "last_action": torch.randint(actions, (4, 3), generator=generator).tolist(),
        "last_reward": torch.randn(4, 3, generator=generator).tolist(),
    }


def inputs_of(rows: dict[str, Any]) -> Inputs:
    """Rows as a network takes them."""
    return Inputs(
        torch.tensor(rows["observation"]),
        torch.tensor(rows["is_first"]),
        torch.tensor(rows["last_action"]),
        torch.tensor(rows["last_reward"]),
    )


@torch.no_grad()
def answer(network: AgentNetwork, rows: dict[str, Any], *, rounded: bool = True) -> dict[str, Tensor]:
    """Logits, values and last states: on any machine the same, or, not `rounded`, as this one computes them."""
    inputs, state = inputs_of(rows), network.initial_state(3)
    if rounded:
        with Rounded():
            output, states = network(inputs, state)
    else:
        output, states = network(inputs, state)
    return {"logits": output.policy, "values": output.value, "states": states[-1]}


def expected(folder: Path) -> list[dict[str, Any]]:
    """What was stored beside a run: a record for each member, one for a single agent."""
    return json.loads((folder / EXPECTED).read_text())["members"]
