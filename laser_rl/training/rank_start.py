"""From a configuration to the other ranks of its learner, or to why there cannot be any."""

import sys
from collections.abc import Callable

import torch

from laser_rl.agent.relevance import require_splittable
from laser_rl.config import Config
from laser_rl.envs.records import EnvironmentSpec
from laser_rl.errors import ConfigError
from laser_rl.networks.build import TorsoSource, family_of
from laser_rl.training.ranks import Ranks
from laser_rl.training.shared_batches import BatchPlan
from laser_rl.types import UnrollLayout

CRATES = 3  # the most that a runtime has going round


def start_ranks(
    config: Config,
    spec: EnvironmentSpec,
    layout: UnrollLayout,
    device: torch.device,
    *,
    torso: TorsoSource | None = None,
    sources: int = 1,
) -> Ranks | None:
    """The other ranks of a configuration's learner, ready to learn; None if there are none. ConfigError where there cannot be any."""
    count = config.run.devices
    if count == 1:
        return None
    devices = devices_of(device, count)
    require_splittable(family_of(spec.action), config.loss, count)
    reference = None if torso is None else reference_of(torso)
    if torso is not None and reference is None:
        raise ConfigError(
            f"run.devices is {count}, so other processes build the network as well, and cannot import {torso!r}; hand in a class or a "
            "function of a module (not of the script itself, no lambda, no instance), or use run.devices 1"
        )
    plan = BatchPlan(layout, config.loss.batch_unrolls, CRATES, stacked=device.type != "cuda")
    return Ranks(config, spec, plan, devices, torso=reference, sources=sources)


def devices_of(first: torch.device, count: int) -> list[torch.device]:
    """From the first on; on a CPU all have the same.

    >>> devices_of(torch.device("cpu"), 2)
    [device(type='cpu'), device(type='cpu')]
    """
    if first.type != "cuda":
        return [first] * count
    begin, there = first.index or 0, torch.cuda.device_count()
    if begin + count > there:
        raise ConfigError(
            f"run.devices is {count}, from cuda:{begin} on, but torch sees {there} GPUs here; use --run.devices {max(1, there - begin)}"
        )
    return [torch.device("cuda", number) for number in range(begin, begin + count)]


def reference_of(torso: Callable[..., object] | torch.nn.Module) -> str | None:
    """What a user's torso is called where another process can import it, "module:name"; None where it cannot.

    >>> reference_of(torch.nn.Linear)
    'torch.nn.modules.linear:Linear'
    >>> reference_of(lambda shape: None)
    """
    module, name = getattr(torso, "__module__", ""), getattr(torso, "__qualname__", "")
    found: object = sys.modules.get(module)
    if isinstance(torso, torch.nn.Module) or module == "__main__" or found is None:
        return None
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is torso else None
