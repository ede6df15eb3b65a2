"""Which nodes the cluster has, and what each actor reserves of them."""

import math
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from laser_rl.cluster.calls import ray
from laser_rl.errors import ConfigError, UserError

EVERY_S = 0.5
HEAD_S = 30.0  # after which a head that does not answer is taken for dead; Ray itself ends this process after 60
MOST_A_CORE = 64  # actors


class HeadLost(UserError):
    """The head of the cluster is gone."""

    exit_status = 4


class NodeWatch:
    """The nodes alive, asked for in a thread: a caller of a head that does not answer would hear of nothing else."""

    def __init__(self) -> None:
        self._found = self._alive()
        self._heard, self._over = time.monotonic(), threading.Event()
        threading.Thread(target=self._run, name="nodes", daemon=True).start()

    def nodes(self) -> Sequence[str]:
        """Their ids, in an order that stays."""
        return [node["NodeID"] for node in self._found]

    def resource(self, name: str) -> list[float]:
        """How much each node has: "CPU", "GPU", or bytes of "memory" as Ray counts them."""
        return [float(node["Resources"].get(name, 0.0)) for node in self._found]

    @property
    def head_is_lost(self) -> bool:
        """True if the head has not answered for too long."""
        return time.monotonic() - self._heard > HEAD_S

    def close(self) -> None:
        """End the thread, without waiting for it: it may be waiting for a head that is gone."""
        self._over.set()

    def _alive(self) -> list[dict[str, Any]]:
        return sorted((node for node in ray().nodes() if node["Alive"]), key=lambda node: str(node["NodeID"]))

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            try:
                found = self._alive()
            except Exception:  # noqa: S112 - whatever Ray raises then; the age of what was heard tells
                continue
            self._found, self._heard = found, time.monotonic()


class Shares(NamedTuple):
    """What one actor reserves."""

    cpus: float
    gpus: float  # of a learner; 0 without GPUs


def shares_of(cpus: Sequence[float], gpus: Sequence[float], *, members: int, runners: int, device: str) -> Shares:
    """A core each; less where there are fewer cores than actors, so that all of them run, as processes do on one machine.

    Given are the cores and the cards of each node.

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


def _floored(share: float) -> float:
    """Ray counts in ten-thousandths; rounded up, the last would find no room."""
    return math.floor(share * 10_000) / 10_000
