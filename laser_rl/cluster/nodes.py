"""Which nodes the cluster has, looked at in a thread: the head may not answer, and whoever waits for it hears of nothing else."""

import threading
import time
from collections.abc import Sequence
from typing import Any

from laser_rl.cluster.ray_import import ray
from laser_rl.errors import UserError

EVERY_S = 0.5
HEAD_S = 30.0  # after which a head that does not answer is taken for dead; Ray itself ends this process after 60


class HeadLost(UserError):
    """The head of the cluster is gone."""

    exit_status = 4


class NodeWatch:
    """The nodes alive as last heard.

    >>> watch = NodeWatch(lambda: [{"NodeID": "b", "Alive": True, "Resources": {"CPU": 4.0}}, {"NodeID": "a", "Alive": False}])
    >>> watch.nodes(), watch.cpus(), watch.close()
    (['b'], [4.0], None)
    """

    def __init__(self, look: Any = None) -> None:
        self._look = look or (lambda: ray().nodes())
        self._found: list[dict[str, Any]] = self._alive()
        self._heard, self._over = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="nodes", daemon=True)
        self._thread.start()

    def nodes(self) -> Sequence[str]:
        """Their ids, in an order that stays."""
        return [node["NodeID"] for node in self._found]

    def cpus(self) -> list[float]:
        """Of each."""
        return self._resource("CPU")

    def gpus(self) -> list[float]:
        """Of each."""
        return self._resource("GPU")

    def memory(self) -> list[float]:
        """Bytes of each, as Ray counts them."""
        return self._resource("memory")

    @property
    def head_is_lost(self) -> bool:
        """Whether nothing was heard for too long."""
        return time.monotonic() - self._heard > HEAD_S

    def close(self) -> None:
        """The thread ends by itself; it may be waiting for a head that is gone."""
        self._over.set()

    def _resource(self, name: str) -> list[float]:
        return [float(node["Resources"].get(name, 0.0)) for node in self._found]

    def _alive(self) -> list[dict[str, Any]]:
        return sorted((node for node in self._look() if node["Alive"]), key=lambda node: str(node["NodeID"]))

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            try:
                found = self._alive()
            except Exception:  # noqa: S112 - whatever Ray raises then; the age of what was heard tells
                continue
            self._found, self._heard = found, time.monotonic()
