"""Who runs where: a placement group for each member, with a bundle for its learner and one for each runner, spread over the nodes."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from laser_rl.cluster.ray_import import ray
from laser_rl.errors import ConfigError

MOST_A_CORE = 64  # actors


class Shares(NamedTuple):
    """What one actor reserves."""

    cpus: float
    gpus: float  # of a learner; 0 without GPUs

    @property
    def threads(self) -> int:
        """For its computations."""
        return max(1, math.floor(self.cpus))


def shares_of(cpus: Sequence[float], gpus: Sequence[float], *, members: int, runners: int, device: str) -> Shares:
    """A core each; less where there are fewer cores than actors, so that all of them run, as processes do on one machine.

    >>> shares_of([4.0, 4.0, 4.0], [0.0, 0.0, 0.0], members=3, runners=2, device="auto")
    Shares(cpus=1.0, gpus=0.0)
    >>> shares_of([2.0], [2.0], members=9, runners=1, device="auto")  # nine of a core, five members on a card
    Shares(cpus=0.1111, gpus=0.2)
    """
    actors = members * (1 + runners)
    for many in range(1, MOST_A_CORE + 1):
        if sum(int(own * many) for own in cpus) >= actors:
            break
    else:
        raise ConfigError(
            f"{members} members with {runners} runners each are {actors} actors, the cluster has {sum(cpus):.0f} cores; "
            "use fewer members or --cluster-runners, or add nodes"
        )
    cards = 0 if device == "cpu" else int(sum(gpus))
    if device.startswith("cuda") and not cards:
        raise ConfigError(
            f"device {device!r} was asked for, but no node of the cluster has a GPU; use --run.device cpu"
        )
    on_a_card = -(-members // cards) if cards else 0
    return Shares(_floored(1 / many), _floored(1 / on_a_card) if cards else 0.0)


class Group:
    """A placement group of one member.

    Args:
        member: its number.
        runners: how many.
        shares: what each actor reserves.
    """

    def __init__(self, member: int, runners: int, shares: Shares) -> None:
        self.shares, self._member = shares, member
        learner = {"CPU": shares.cpus} | ({"GPU": shares.gpus} if shares.gpus else {})
        ray()
        from ray.util import placement_group  # noqa: PLC0415

        self._group = placement_group([learner, *({"CPU": shares.cpus} for _ in range(runners))], strategy="SPREAD")

    def wait(self, timeout_s: float) -> None:
        """Until there is room for it; ConfigError if there is none."""
        if not self._group.wait(timeout_s):
            raise ConfigError(
                f"the cluster has had no room for member {self._member} in {timeout_s:.0f} s: each of its actors needs "
                f"{self.shares}; look at 'ray status': other jobs may hold the rest"
            )

    def options(self, bundle: int) -> dict[str, Any]:
        """For an actor in a bundle: 0 is the learner's."""
        gpus = self.shares.gpus if bundle == 0 else 0.0
        return {"num_cpus": self.shares.cpus, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0} | self.beside(
            bundle
        )

    def beside(self, bundle: int) -> dict[str, Any]:
        """For an actor on the same node that reserves nothing."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: PLC0415

        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        return {"scheduling_strategy": strategy}

    def remove(self) -> None:
        """With all actors in it."""
        from ray.util import remove_placement_group  # noqa: PLC0415

        remove_placement_group(self._group)


def _floored(share: float) -> float:
    """Ray counts in ten-thousandths; rounded up, the last would find no room."""
    return math.floor(share * 10_000) / 10_000
