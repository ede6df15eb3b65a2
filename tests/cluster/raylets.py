"""Three Ray nodes on this machine, started once for all tests that need them; actors and shards without Ray."""

import atexit
import collections
import concurrent.futures
import functools
import importlib.util
import os
import secrets
import time

import numpy as np
import pytest

from laser_rl.cluster.calls import ActorGone, Answer, on_node, ray, start_actor
from laser_rl.cluster.channels import RunnerInbox
from laser_rl.cluster.learner_actor import LearnerActor
from laser_rl.cluster.shard import THREADS, Shard, ShardClient
from laser_rl.replay.store import Replay

STORE_BYTES = 100 << 20
NODES = 3
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra cluster")


def require_token():
    """Authentication by a token of our own, which no file ever holds; before ray is imported."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # beside other tests, actors would hardly ever have their turn


class Raylets:
    """A cluster of several nodes; nodes can be lost, and others come."""

    def __init__(self):
        require_token()
        import ray  # noqa: PLC0415 - need not be there
        from ray.cluster_utils import Cluster  # noqa: PLC0415

        if ray.is_initialized():
            ray.shutdown()
        node = {"num_cpus": 4, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=node)
        self._node = {"num_cpus": 4, "object_store_memory": STORE_BYTES}
        self.workers = [self.cluster.add_node(**self._node) for _ in range(NODES - 1)]
        self.ray, self.lost = ray, set()
        self._join()
        self.head = ray.get_runtime_context().get_node_id()
        atexit.register(self.close)

    def _join(self):
        self.ray.init(address=self.cluster.address, log_to_driver=False, logging_level="ERROR")

    def mend(self):
        """Three nodes again, whatever a test that failed has left: its actors end with the connection that started them."""
        missing = NODES - len(self.nodes()) if self.ray.is_initialized() else 0
        if missing or not self.ray.is_initialized():
            self.ray.shutdown()
            self._join()
        for _ in range(NODES - len(self.nodes())):
            self.add()

    def nodes(self):
        """Ids of those alive, the head first: there is this process."""
        alive = [node["NodeID"] for node in self.ray.nodes() if node["Alive"] and node["NodeID"] not in self.lost]
        return sorted(alive, key=lambda node: (node != self.head, node))

    def lose(self, node):
        """Kill all processes of a node, as if it had been switched off."""
        (worker,) = [one for one in self.workers if one.node_id == node]
        self.workers.remove(worker)
        self.lost.add(node)  # Ray takes some seconds to see it
        self.cluster.remove_node(worker, allow_graceful=False)

    def add(self):
        """Another node; its id."""
        before = set(self.nodes())
        self.workers.append(self.cluster.add_node(**self._node))
        deadline = time.monotonic() + 60
        while not (new := set(self.nodes()) - before):
            assert time.monotonic() < deadline, "the new node did not come"
            time.sleep(0.1)
        return new.pop()

    def close(self):
        if self.ray.is_initialized():
            self.ray.shutdown()
        self.cluster.shutdown()


@functools.cache
def _raylets():
    return Raylets()


def three_raylets():
    """The cluster of all tests, with all its nodes."""
    raylets = _raylets()
    raylets.mend()
    return raylets


def start_inbox(room, layout):
    """The inbox of a learner's actor on Ray, on the node of this process."""
    home = on_node(ray().get_runtime_context().get_node_id())
    return start_actor(RunnerInbox, room, layout, strategy=home, concurrency_groups=LearnerActor.threads(3))


class NearActor:
    """An object in threads of this process, called as a Ray actor is called."""

    def __init__(self, of):
        self._of, self._pool = of, concurrent.futures.ThreadPoolExecutor(16)

    def __getattr__(self, name):
        method = getattr(self._of, name)
        return _Method(lambda _, *given: self._pool.submit(method, *given))


class _Method:
    def __init__(self, call, group=None):
        self._call, self._group = call, group

    def options(self, concurrency_group):
        return _Method(self._call, concurrency_group)

    def remote(self, *arguments):
        return Reference(self._call(self._group, *arguments))


class Reference:
    """What a call of a Ray actor returns."""

    def __init__(self, future):
        self._future = future

    def future(self):
        return self._future


class NearShard(ShardClient):
    """A shard in threads of this process, called for every gather until it is lent; `lose` is the death of its process.

    `calls` are those made, by method.
    """

    mapped = None

    def __init__(self, plan):
        self.shard, self.calls, self._gone = Shard(plan), collections.Counter(), False
        self._pools = {group: concurrent.futures.ThreadPoolExecutor(count) for group, count in THREADS.items()}
        super().__init__(None, plan, "node", "this node")

    def _call(self, method, group, *arguments):
        self.calls[method] += 1
        return Answer(Reference(self._pools[group].submit(self._carry_out, method, arguments)))

    def _carry_out(self, method, arguments):
        found = None if self._gone else getattr(self.shard, method)(*arguments)
        if self._gone:  # also if it was carried out
            raise ActorGone(f"shard {self.number} is gone")
        return found

    def lose(self):
        self._gone = True

    def lend(self):
        """Let readers map its memory from now on."""
        self.mapped = Replay.attach(self.plan.layout, self.shard.lend())

    def span(self):
        return self.shard.report().span

    def held(self):
        """All that it holds, oldest first."""
        return self.shard._store.export(np.arange(*self.span()))


def send(shard, encoded, stream="s", number=0):
    """Put unrolls into a shard as a delivery of a stream, its first if no number is given."""
    assert shard.insert(stream, number, encoded).result(60.0)


class NearRay:
    """What the ports use of the module ray, in this process."""

    @staticmethod
    def put(array):
        future = concurrent.futures.Future()
        kept = array.copy()
        kept.flags.writeable = False
        future.set_result(kept)
        return Reference(future)
