"""A sweep on a cluster: who exists, where, and what happens when something is lost.

The supervisor is the process that the user started. It owns the run directory. Learners and runners are actors, one placement group a
member; members meet at desks, and the replay lies in shards. Nothing here is restarted by Ray: what a restart means only we know.
"""

import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from laser_rl.checkpoint import Loaded, Mended
from laser_rl.cluster.actors import RayAnswer
from laser_rl.cluster.channels import CALL_S
from laser_rl.cluster.client import AnswerLost, awaited
from laser_rl.cluster.nodes import HeadLost, NodeWatch
from laser_rl.cluster.placement import Begin, Common, Heartbeat, LostPart, MemberPlacement
from laser_rl.cluster.ray_import import placed, ray
from laser_rl.cluster.replays import Replays
from laser_rl.cluster.resources import shares_of
from laser_rl.cluster.run_coordinator import Collected, RunCoordinator
from laser_rl.cluster.runner import AT_ONCE
from laser_rl.config import override
from laser_rl.metrics.rows import Sink, Value
from laser_rl.replay.mixer import Counts
from laser_rl.training.budget import Budget
from laser_rl.training.build_group import build_parts, one_layout
from laser_rl.training.cluster_settings import ClusterSettings
from laser_rl.training.directory import RunDirectory, Written
from laser_rl.training.files import command_for
from laser_rl.training.member_training import Callback, MemberTraining
from laser_rl.training.pbt import Exploit
from laser_rl.training.settings import SweepConfig
from laser_rl.training.shared_state import parsed, published
from laser_rl.training.supervisor import STOP_S, SweepSupervisor, order_of, spent_s
from laser_rl.training.trainer import TURNS_AHEAD

log = logging.getLogger("laser_rl.training")
LOOK_S = 0.2


class Known:
    """Every member as the supervisor last heard of it; see `supervision.States`."""

    def __init__(self, members: int) -> None:
        self.members, self.steps = members, np.zeros(members, np.int64)
        self.updates = np.zeros(members, np.int64)  # as rows said
        self._states: dict[int, bytes] = {}

    def get(self, member: int) -> bytes | None:
        """The newest state."""
        return self._states.get(member)

    def put(self, member: int, data: bytes) -> None:
        """A newer one."""
        self._states[member] = data


class ClusterSupervisor(SweepSupervisor):
    """The supervisor's view of a sweep on a cluster that has been joined.

    Args:
        sweep: all values.
        directory: of the sweep.
        cluster: how it is used.
        sinks: what else gets the rows of the members.
        callbacks: see `Progress`.
    """

    def __init__(
        self,
        sweep: SweepConfig,
        directory: RunDirectory,
        cluster: ClusterSettings,
        *,
        sinks: Sequence[Sink] = (),
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.watch, members = NodeWatch(), len(sweep.settings)
        self._cluster, self.in_step = cluster, sweep.base.run.runtime == "serial"
        self._home = ray().get_runtime_context().get_node_id()
        base = sweep.base
        _, layout = one_layout(dict(enumerate(sweep.configs)), base.environment.id)
        replayed = any(Counts.of(c.loss.batch_unrolls, c.replay.fraction).replayed for c in sweep.configs)
        self._shared = sweep.share == "shared"
        self._common = Common(
            _with_own_card(sweep), layout, cluster.runners, _slack(sweep, cluster.runners), self.in_step
        )
        self.known = Known(members)
        self.seats: list[MemberPlacement] = []
        self.replays: Replays | None = None
        self.losses: list[str] = []
        self._new_ledger()
        try:
            self._shares = self._fitting()
            self.seats = [
                MemberPlacement(n, self._common, self._shares, self._begin, self._on_desk) for n in range(members)
            ]
            if replayed:
                desks = [self.ledger] if self._shared else [seat.desk for seat in self.seats]
                self.replays = Replays(sweep, layout, self.watch, desks, directory, in_step=self.in_step)
            here = sweep.model_copy(update={"base": override(base, {"run.device": "cpu"})})
            stores = None if self.replays is None else self.replays.views(members)
            parts = build_parts(here, stores=stores)
            super().__init__(sweep, directory, parts, self.known, sinks=sinks, callbacks=callbacks)
            loaded = self._go_on()
            if loaded is None:
                self._begin_anew()
            self._plan_save()
            self.budget = Budget(base.run.budget_minutes, spent_s=spent_s(loaded))
            self.ledger.go_on.remote(self.known.steps.tolist())
            for seat in self.seats:
                seat.sit()
        except BaseException:
            self._kill_all()
            raise

    def _begin_anew(self) -> None:
        if self.replays is not None:
            self.replays.warm_start(self.known.members)
        for number in range(self.known.members):
            fresh = MemberTraining(self.parts.member(number, None))  # type: ignore[arg-type]  # nobody acts here
            self.known.put(number, published(fresh))

    def _fitting(self) -> Any:
        """The shares with which everybody has room on the nodes that there are."""
        watch, members = self.watch, self.known.members
        device = self._common.sweep.base.run.device
        return shares_of(watch.cpus(), watch.gpus(), members=members, runners=self._common.runners, device=device)

    def _new_ledger(self) -> None:
        """The desk of the run, where the supervisor is: they live and die together."""
        options = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": placed(self._home)}
        self.ledger = ray().remote(RunCoordinator).options(**options).remote(self.known.steps.tolist())
        self._ledger_watched = Heartbeat(self.ledger)
        if self._shared and self.replays is not None:
            for keeper in self.replays.keepers:
                keeper.move(self.ledger)

    def _on_desk(self, member: int, desk: Any) -> None:
        if not self._shared and self.replays is not None:
            self.replays.keepers[member].move(desk)

    def _begin(self, member: int) -> Begin:
        state = self.known.get(member)
        assert state is not None  # noqa: S101 - all are there before anybody is started
        roster = None
        if self.replays is not None:
            roster = self.ledger if self._shared else self.seats[member].desk
        return Begin(state, int(self.known.steps[member]), self.budget.spent_s, self.ledger, roster)

    def _pause(self) -> None:
        time.sleep(LOOK_S)

    def _watch(self) -> bool:
        self._require_head()
        self.budget.tick()
        if not self._ledger_watched.lives():
            self._renew()
        over = True
        for seat in self.seats:
            for loss in seat.look(int(self.known.steps[seat.member])):
                self._lost(seat.member, loss)
            over = over and seat.over
        self._look_at_shards()
        self._make_room()
        self._collect()
        return over

    def _require_head(self) -> None:
        if self.watch.head_is_lost:
            raise HeadLost(
                "the head of the Ray cluster does not answer any more, so this run ends; start the cluster again, "
                f"then go on from the last checkpoint with: {command_for('resume', self.directory.path)}"
            )

    def _renew(self) -> None:
        """The run's desk is gone: everybody goes on from what was last collected."""
        self._new_ledger()
        self._lost(None, LostPart("the desk of the run", learner=False))
        for seat in self.seats:
            if not seat.over:
                seat.sit_again()

    def _make_room(self) -> None:
        """With a node less there may be too few cores for what everybody has reserved: then all sit down again, closer."""
        if self.in_step or not self.watch.nodes():
            return
        shares = self._fitting()
        if shares.cpus < self._shares.cpus or shares.gpus < self._shares.gpus:
            self._shares = shares
            log.warning("the cluster has fewer cores than before: every member is started again with %s", shares)
            for seat in self.seats:
                if not seat.over:
                    seat.sit_again(shares)

    def _look_at_shards(self) -> None:
        for lost in [] if self.replays is None else self.replays.look():
            what = f"{lost.unrolls:,} unrolls of shard {lost.number}"
            self._say_lost(what, {"unrolls": lost.unrolls, "by": lost.by})

    def _lost(self, member: int | None, loss: LostPart) -> None:
        values: dict[str, Value] = {}
        if member is not None and loss.learner:
            state = self.known.get(member)
            version = parsed(state).numbers["learner"]["version"] if state is not None else 0
            values["updates"] = max(0, int(self.known.updates[member]) - version)
        self._say_lost(loss.what, values)

    def _say_lost(self, what: str, values: dict[str, Value]) -> None:
        self.losses.append(what)
        log.warning("lost: %s", what)
        self._announce("lost", {"what": what, **values})

    def _collect(self, timeout_s: float = 0.0) -> None:
        """Rows, steps and states that learners have left."""
        try:
            answer: RayAnswer[Collected] = RayAnswer(self.ledger.collect.remote(timeout_s))
            found = awaited(answer, "the supervisor", "the desk of the run", CALL_S)
        except AnswerLost:
            return  # seen at the next look
        for line in found.lines:
            self.directory.log.write(line.kind, line.step, line.update, line.values)
            member = line.values.get("member", 0 if self.sweep.single else None)
            if isinstance(member, int):
                self.known.updates[member] = line.update
        self.known.steps[:] = np.maximum(self.known.steps, found.steps)
        for member, state in found.states.items():
            self.known.put(member, state)

    def _stop_all(self) -> None:
        reason = self.stop.reason
        RayAnswer[str](self.ledger.stop.remote(reason))
        deadline = time.monotonic() + STOP_S
        while time.monotonic() < deadline and (late := [seat for seat in self.seats if not self._has_ended(seat)]):
            time.sleep(LOOK_S)
            self._collect()
        for seat in late:
            log.warning("member %d has not ended in %.0f s; it is killed", seat.member, STOP_S)
            seat.end()
        self._collect()

    def _has_ended(self, seat: MemberPlacement) -> bool:
        return seat.over or seat.learner is None or seat.learner.ended() is not None

    def _kill_all(self) -> None:
        self.watch.close()
        if self.watch.head_is_lost:
            return  # nobody would hear it
        for seat in self.seats:
            seat.leave()
        if self.replays is not None:
            self.replays.close()
        ray().kill(self.ledger, no_restart=True)

    def _tell(self, exploit: Exploit) -> None:
        state = self.known.get(exploit.donor)
        order = {"exploit": order_of(exploit), "state": [ray().put(state)]}
        self.ledger.order.remote(exploit.member, order)

    def _write_replays(self) -> Written:
        return ([], ()) if self.replays is None else self.replays.write()

    def _fill_replays(self, loaded: Loaded) -> Mended | None:
        return None if self.replays is None else self.replays.fill(loaded)


def _with_own_card(sweep: SweepConfig) -> SweepConfig:
    """An actor sees the card that it has reserved as its only one, whatever its number is."""
    if not sweep.base.run.device.startswith("cuda"):
        return sweep
    return sweep.model_copy(update={"base": override(sweep.base, {"run.device": "cuda"})})


def _slack(sweep: SweepConfig, runners: int) -> int:
    """Steps that a member may be ahead of the slowest: a few deliveries of its runners, so that nobody waits for a call to come back."""
    base = sweep.base
    slots, steps = base.environment.slots, base.loss.unroll_steps
    delivery = min(AT_ONCE, -(-slots // runners)) * steps
    return max(steps, (TURNS_AHEAD + 1) * slots, 2 * runners * delivery)
