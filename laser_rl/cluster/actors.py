"""The one place where Ray actors are made, and what others hold of them."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from laser_rl.cluster.client import Answer, AnswerLost, ShardLost
from laser_rl.cluster.local_shard import LocalShardReader
from laser_rl.cluster.member_coordinator import MemberCoordinator
from laser_rl.cluster.ray_import import placed, ray
from laser_rl.cluster.shard import Gathered, Receipt, Shard, ShardPlan, ShardReport
from laser_rl.replay.encoded_unrolls import EncodedUnrolls
from laser_rl.replay.lending import LentBlock
from laser_rl.replay.shared import Ids

Result = TypeVar("Result")
INSERT, GATHER, WATCH = "insert", "gather", "watch"
# Threads of a shard. Inserts are in order, and a gather must not wait for a compressed batch of another learner.
THREADS = {INSERT: 1, GATHER: 2, WATCH: 1}


class RayAnswer(Generic[Result]):
    """An `Answer` that comes from a Ray actor. To ask whether it is there costs no call."""

    def __init__(self, reference: Any) -> None:
        self._future = reference.future()

    def done(self) -> bool:
        """Whether `result` would not wait."""
        return bool(self._future.done())

    def result(self, timeout: float) -> Result:
        """See `Answer`."""
        try:
            result: Result = self._future.result(timeout)
        except TimeoutError:
            raise
        except ray().exceptions.RayError as error:
            raise _named(error) from None
        return result


def _named(error: Exception) -> Exception:
    """What an error of Ray's means to us: a shard is gone, an answer is gone, or the error is what the method raised."""
    errors, said = ray().exceptions, str(error).splitlines()[0] if str(error) else repr(error)
    if isinstance(
        error, (errors.ActorDiedError, errors.ActorUnschedulableError)
    ):  # also if its node died before it began
        return ShardLost(said)
    if isinstance(error, (errors.RayActorError, errors.ObjectLostError, errors.RaySystemError, errors.NodeDiedError)):
        return AnswerLost(said)
    return error


class RayShard:
    """A shard in a cluster, a `ShardClient`. Can be sent to other processes.

    Args:
        actor: made by `start_shard`.
        plan: of the shard.
        node: id of its node.
        where: address of its node, for messages.
    """

    def __init__(self, actor: Any, plan: ShardPlan, node: str, where: str) -> None:
        self.actor, self.plan, self.node, self.where = actor, plan, node, where
        self.number, self.capacity = plan.number, plan.capacity
        # Not a method of ours: in a cycle the memory of a lost shard would stay mapped until the next collection.
        self._window = LocalShardReader(
            plan.layout, f"shard {self.number} of the replay", functools.partial(_lend, actor)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return RayShard, (self.actor, self.plan, self.node, self.where)

    @functools.cached_property
    def near(self) -> bool:
        """Whether it is on the node of this process."""
        return bool(ray().get_runtime_context().get_node_id() == self.node)

    def from_afar(self) -> "RayShard":
        """The same as processes of other nodes see it: every gather is a call. For measurements."""
        far = RayShard(self.actor, self.plan, self.node, self.where)
        far.near = False
        return far

    def open(self, stream: str, number: int) -> RayAnswer[int]:
        """See `Shard`, as for all of them."""
        return self._call(self.actor.open, INSERT, stream, number)

    def insert(self, stream: str, number: int, parcel: EncodedUnrolls) -> RayAnswer[Receipt]:
        """Deliver."""
        return self._call(self.actor.insert, INSERT, stream, number, parcel)

    def gather(self, ids: Ids) -> Answer[Gathered]:
        """Copies of unrolls; from a shard of this node without a call."""
        read = self._window.gather(ids) if self.near else None
        return self._call(self.actor.gather, GATHER, ids) if read is None else read

    def report(self) -> RayAnswer[ShardReport]:
        """About itself."""
        return self._call(self.actor.report, WATCH)

    def save(self, run_dir: str) -> RayAnswer[dict[str, Any]]:
        """Write segments."""
        return self._call(self.actor.save, WATCH, run_dir)

    def load(self, run_dir: str, state: Mapping[str, Any], number: int) -> RayAnswer[int]:
        """Begin with segments."""
        return self._call(self.actor.load, INSERT, run_dir, dict(state), number)

    def kill(self) -> None:
        """End it, with all that it holds."""
        ray().kill(self.actor, no_restart=True)

    def _call(self, method: Any, group: str, *arguments: Any) -> RayAnswer[Any]:
        return RayAnswer(method.options(concurrency_group=group).remote(*arguments))


def _lend(actor: Any) -> RayAnswer[LentBlock]:
    return RayAnswer(actor.lend.options(concurrency_group=WATCH).remote())


def start_shard(plan: ShardPlan, node: str, *, cpus: float = 0.0) -> RayShard:
    """A shard on a node. It is never restarted by Ray: an empty one under the old number would be taken for what it was.

    Args:
        plan: of the shard; a replacement needs a number of its own.
        node: id of the node, as in `ray.nodes()`.
        cpus: to reserve; copying and looking up takes a small part of a core.
    """
    where = next((one["NodeManagerAddress"] for one in _nodes() if one["NodeID"] == node), "an unknown node")
    actor = (
        ray()
        .remote(concurrency_groups=THREADS)(Shard)
        .options(
            num_cpus=cpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=placed(node),
        )
        .remote(plan)
    )
    return RayShard(actor, plan, node, f"{where} (node {node[:8]})")


def start_desk(room: int = 4, *, node: str | None = None, name: str | None = None) -> Any:
    """A `MemberCoordinator` as an actor: for the `ports`.

    Args:
        room: deliveries that may wait for the learner.
        node: id of the node; wherever there is room, if none is given.
        name: so that others can find it with `ray.get_actor`.
    """
    options: dict[str, Any] = {} if name is None else {"name": name}
    if node is not None:
        options["scheduling_strategy"] = placed(node)
    return (
        ray().remote(MemberCoordinator).options(num_cpus=0, max_restarts=0, max_task_retries=0, **options).remote(room)
    )


def nodes_alive() -> Sequence[str]:
    """Ids of the nodes of the cluster, in an order that stays."""
    return sorted(node["NodeID"] for node in _nodes() if node["Alive"])


def _nodes() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ray().nodes()
    return found
