"""A member's place in the cluster: its placement group, its coordinator, its learner and its runners."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from laser_rl.cluster.calls import Answer, AnswerLost, Backoff, heartbeat, kill, ray, start_actor
from laser_rl.cluster.coordinator import MemberCoordinator
from laser_rl.cluster.learner_actor import MemberHost
from laser_rl.cluster.nodes import Shares
from laser_rl.cluster.runner import ActorEnded, ActorStart, Runner
from laser_rl.errors import ConfigError
from laser_rl.training.process_handle import MOST_RESTARTS, ProcessDied

log = logging.getLogger("laser_rl.training")
PLACE_S = 120.0
KILLED = -9
SHOWN = 2000  # characters of an error


class SupervisedActor:
    """A learner or a runner, seen from the supervisor; `launch` starts its actor, given the number of its life.

    It works in one call of `run`; in lock-step the supervisor calls it many times instead, and it does not run.
    """

    def __init__(self, name: str, launch: Callable[[int], Any], *, runs: bool = True) -> None:
        self.name, self._launch, self._runs = name, launch, runs
        self.life, self.deaths, self._waits = 0, Backoff(), False
        self._begin()

    def _begin(self) -> None:
        self._waits = False
        self.actor = self._launch(self.life)
        self._answer: Answer[ActorEnded] | None = Answer(self.actor.run.remote()) if self._runs else None

    def ended(self) -> ActorEnded | None:
        """How it ended; None while it runs, or will."""
        if self._waits:
            if self.deaths.pause_s() <= 0:
                self._begin()
            return None
        if self._answer is None or not self._answer.done():
            return None
        try:
            return self._answer.result(0.0)
        except AnswerLost as error:
            return ActorEnded(KILLED, str(error))

    def restart(self, ended: ActorEnded, steps: int) -> None:
        """Begin another life; `ProcessDied` if it dies again and again before its member has made a step.

        The first time at once, then later and later: Ray takes half a minute to see that a node is gone, and places actors there till then.
        """
        self.deaths.count(steps)
        if self.deaths.in_a_row > MOST_RESTARTS or ended.status == ConfigError.exit_status:
            raise ProcessDied(
                f"{self.name} ended with status {ended.status}, {self.deaths.in_a_row} times without a step of its member in between: "
                f"{ended.error[-SHOWN:].strip()}; 'laser resume' goes on from the last checkpoint"
            )
        last_line = next(iter(ended.error.strip().splitlines()[-1:]), "no error")
        log.warning("%s ended with status %s; it is started again (%s)", self.name, ended.status, last_line)
        kill(self.actor)
        self.life += 1
        self._waits = True
        self.ended()  # starts it, unless it has to wait


class MemberPlacement:
    """Places a coordinator at once, a learner and runners with `begin`, and replaces what dies.

    Args:
        run: what all actors of the run have in common.
        member: its number.
        shares: what each of its actors reserves.
        start: returns where a member goes on; called whenever an actor of it is started.
    """

    def __init__(self, run: ActorStart, member: int, shares: Shares, start: Callable[[int], ActorStart]) -> None:
        self._run, self.member, self._start = run, member, start
        self.actors: list[SupervisedActor] = []  # the learner and then the runners, once they have begun
        self._lives = 0  # of all that ever were here, so that no life has an earlier one's name
        self._deaths = Backoff()  # of coordinators
        self.over = False
        self._place(shares)

    @property
    def learner(self) -> SupervisedActor:
        """The learner, once it has started."""
        return self.actors[0]

    @property
    def runners(self) -> list[SupervisedActor]:
        """The runners, once they have started."""
        return self.actors[1:]

    def _place(self, shares: Shares) -> None:
        """Reserve room: a bundle for the learner and one for each runner, spread over the nodes. Then start the coordinator."""
        ray()
        from ray.util import placement_group  # noqa: PLC0415

        self._shares, each = shares, {"CPU": shares.cpus}
        learner = each | ({"GPU": shares.gpus} if shares.gpus else {})
        self._group = placement_group([learner, *[each] * self._run.runners], strategy="SPREAD")
        if not self._group.wait(PLACE_S):
            raise ConfigError(
                f"the cluster has had no room for member {self.member} in {PLACE_S:.0f} s: each of its actors needs "
                f"{shares}; look at 'ray status': other jobs may hold the rest"
            )
        self._start_coordinator()

    def _strategy(self, bundle: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: PLC0415

        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)

    def _start_coordinator(self) -> None:
        room = max(2, self._run.runners, self._run.sweep.configs[self.member].run.queued_updates)
        self.coordinator = start_actor(MemberCoordinator, room, strategy=self._strategy(0))
        self._heartbeat = heartbeat(self.coordinator)

    def begin(self) -> None:
        """Start learner and runners."""
        runs = not self._run.in_step
        self.actors = [SupervisedActor(f"the learner of member {self.member}", self._learner, runs=runs)]
        for number in range(self._run.runners):
            name = f"runner {number} of member {self.member}"
            self.actors.append(SupervisedActor(name, partial(self._runner, number), runs=runs))

    def _learner(self, life: int) -> Any:
        return self._start_actor(MemberHost, self._started(life), 0, self._shares.gpus)

    def _runner(self, number: int, life: int) -> Any:
        return self._start_actor(Runner, replace(self._started(life), runner=number, state=b""), 1 + number, 0.0)

    def _start_actor(self, kind: type, start: ActorStart, bundle: int, gpus: float) -> Any:
        return start_actor(kind, start, strategy=self._strategy(bundle), cpus=self._shares.cpus, num_gpus=gpus)

    def _started(self, life: int) -> ActorStart:
        threads = max(1, int(self._shares.cpus))
        start, life = self._start(self.member), self._lives + life
        return replace(start, coordinator=self.coordinator, life=life, threads=threads)

    def look(self, steps: int) -> list[tuple[str, bool]]:
        """Replace what is gone. A coordinator takes its learner and its runners with it.

        Returns:
            What that was, each with True if the updates since the member was last published are gone, too.
        """
        if self.over or not self.actors:
            return []
        self._heartbeat.poll()
        if self._heartbeat.gone:
            self._deaths.count(steps)
            if self._deaths.in_a_row > MOST_RESTARTS:
                raise ProcessDied(
                    f"the coordinator of member {self.member} died {self._deaths.in_a_row} times without a step in between; "
                    "look at the logs of the cluster, then go on from the last checkpoint with 'laser resume'"
                )
            self.begin_again()
            return [(f"the coordinator of member {self.member}", True)]
        ended = self.learner.ended()
        if ended is not None and ended.status == 0:
            self.over = True
            self.end()
            return []
        lost = []
        for actor in self.actors:
            ended = actor.ended()
            if ended is not None and ended.status != 0:  # a runner ends with 0 when its learner has told it that it may
                actor.restart(ended, steps)
                lost.append((actor.name, actor is self.learner))
        return lost

    def begin_again(self, shares: Shares | None = None) -> None:
        """Start everything anew, in another group if other shares are given."""
        self._lives += 1 + max(actor.life for actor in self.actors)
        self.end()
        kill(self.coordinator)
        if shares is None:
            self._start_coordinator()
        else:
            self._remove()
            self._place(shares)
        self.begin()

    def end(self) -> None:
        """End learner and runners."""
        for actor in self.actors:
            kill(actor.actor)

    def leave(self) -> None:
        """End everything."""
        self.end()
        self._remove()

    def _remove(self) -> None:
        """Remove the group, with all actors in it."""
        from ray.util import remove_placement_group  # noqa: PLC0415

        remove_placement_group(self._group)
