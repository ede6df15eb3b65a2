"""Where the actors of a run live: which nodes the cluster has, what each actor reserves of them, and the place of each member."""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from laser_rl.cluster.calls import Answer, AnswerLost, Backoff, kill, ray, start_actor
from laser_rl.cluster.learner_actor import LearnerActor
from laser_rl.cluster.runner import ActorEnded, ActorStart, Runner
from laser_rl.errors import ConfigError, UserError
from laser_rl.training.process_handle import MOST_RESTARTS, ProcessDied

log = logging.getLogger("laser_rl.training")
PLACE_S = 120.0
KILLED = -9
SHOWN = 2000  # characters of an error
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
        return [node["NodeID"] for node in self._found]

    def resource(self, name: str) -> list[float]:
        """How much each node has: "CPU", "GPU", or bytes of "memory" as Ray counts them."""
        return [float(node["Resources"].get(name, 0.0)) for node in self._found]

    @property
    def head_is_lost(self) -> bool:
        return time.monotonic() - self._heard > HEAD_S

    def close(self) -> None:
        """End the thread, without waiting for it: it may be waiting for a head that is gone."""
        self._over.set()

    def _alive(self) -> list[dict[str, Any]]:
        return sorted((node for node in ray().nodes() if node["Alive"]), key=lambda node: str(node["NodeID"]))

    def _run(self) -> None:
        while not self._over.wait(0.5):
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
    """A core each; less where there are fewer cores than actors, so that all of them run. Given are those of each node."""
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
        raise ConfigError(f"device {device!r} is asked for, but no node of the cluster has a GPU; use --run.device cpu")
    on_a_card = -(-members // cards) if cards else 0
    return Shares(_floored(1 / many), _floored(1 / on_a_card) if cards else 0.0)


def _floored(share: float) -> float:
    """Ray counts in ten-thousandths; rounded up, the last would find no room."""
    return math.floor(share * 10_000) / 10_000


class SupervisedActor:
    """A learner or a runner, seen from the supervisor; `launch` starts its actor, given the number of its life (None: not yet)."""

    def __init__(self, name: str, launch: Callable[[int], Any], *, runs: bool = True) -> None:
        self.name, self._launch, self._runs = name, launch, runs
        self.life, self.deaths = 0, Backoff()
        self.actor: Any = None  # None while it waits to be started
        self._answer: Answer[ActorEnded] | None = None
        self.ended()  # starts it

    def ended(self) -> ActorEnded | None:
        """How it ended; None while it runs, or will. Starts it if that is due."""
        if self.actor is None and self.deaths.pause_s() <= 0:
            self.actor = self._launch(self.life)
            runs = self._runs and self.actor is not None
            self._answer = Answer(self.actor.run.remote()) if runs else None
        if self._answer is None or not self._answer.done():
            return None
        try:
            return self._answer.result(0.0)
        except AnswerLost as error:
            return ActorEnded(KILLED, str(error))

    def restart(self, ended: ActorEnded, steps: int) -> None:
        """Begin another life, see `Backoff`; `ProcessDied` if it dies again and again before its member has made a step."""
        self.deaths.count(steps)
        if self.deaths.in_a_row > MOST_RESTARTS or ended.status == ConfigError.exit_status:
            raise ProcessDied(
                f"{self.name} ended with status {ended.status}, {self.deaths.in_a_row} times without a step of its member in between: "
                f"{ended.error[-SHOWN:].strip()}; 'laser resume' goes on from the last checkpoint"
            )
        last_line = next(iter(ended.error.strip().splitlines()[-1:]), "no error")
        log.warning("%s ended with status %s; it is started again (%s)", self.name, ended.status, last_line)
        self.begin_again()

    def begin_again(self) -> None:
        """End this life; the next look begins another one, if that is due."""
        kill(self.actor)
        self.life += 1
        self.actor = self._answer = None


class MemberPlacement:
    """Reserves room at once, places a learner and runners with `begin`, and replaces what dies.

    Whenever an actor is started, `start` says where its member goes on; `connect` is told of every new learner.
    """

    def __init__(
        self,
        run: ActorStart,
        member: int,
        shares: Shares,
        start: Callable[[int], ActorStart],
        connect: Callable[[int, Any], None],
    ) -> None:
        self._run, self.member, self._start, self._connect = run, member, start, connect
        self.actors: list[SupervisedActor] = []  # the learner and then the runners, once they have begun
        self.over = False
        self._place(shares)

    @property
    def learner(self) -> SupervisedActor:
        return self.actors[0]

    @property
    def runners(self) -> list[SupervisedActor]:
        return self.actors[1:]

    @property
    def ended(self) -> bool:
        return self.over or self.learner.ended() is not None

    def _place(self, shares: Shares) -> None:
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

    def begin(self) -> None:
        runs = not self._run.in_step
        self.actors = [SupervisedActor(f"the learner of member {self.member}", self._launch_learner, runs=runs)]
        for number in range(self._run.runners):
            name = f"runner {number} of member {self.member}"
            self.actors.append(SupervisedActor(name, partial(self._launch_runner, number), runs=runs))

    def _launch_learner(self, life: int) -> Any:
        groups, start = LearnerActor.threads(self._run.runners), replace(self._start(self.member), life=life)
        learner = self._launch(LearnerActor, start, 0, num_gpus=self._shares.gpus, concurrency_groups=groups)
        self._connect(self.member, learner)
        return learner

    def _launch_runner(self, number: int, life: int) -> Any:
        if self.learner.actor is None:
            return None
        own = {"life": life, "runner": number, "state": b"", "learner": self.learner.actor}
        return self._launch(Runner, replace(self._start(self.member), **own), 1 + number)

    def _launch(self, kind: type, start: ActorStart, bundle: int, **options: Any) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: PLC0415

        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        start = replace(start, threads=max(1, int(self._shares.cpus)))
        return start_actor(kind, start, strategy=strategy, cpus=self._shares.cpus, **options)

    def look(self, steps: int) -> list[str]:
        """Replace what is gone; a learner takes its runners with it. Returns what it was."""
        if self.over or not self.actors:
            return []
        ended = self.learner.ended()
        if ended is not None and ended.status == 0:
            self.over = True
            self.end()
            return []
        if ended is not None:
            self.learner.restart(ended, steps)
            for runner in self.runners:
                runner.begin_again()
            return [self.learner.name]
        lost = []
        for runner in self.runners:
            ended = runner.ended()
            if ended is not None and ended.status != 0:  # it ends with 0 when its learner has told it that it may
                runner.restart(ended, steps)
                lost.append(runner.name)
        return lost

    def begin_again(self, shares: Shares) -> None:
        self.leave()
        for actor in self.actors:
            actor.begin_again()
        self._place(shares)

    def end(self) -> None:
        for actor in self.actors:
            kill(actor.actor)

    def leave(self) -> None:
        self.end()
        from ray.util import remove_placement_group  # noqa: PLC0415

        remove_placement_group(self._group)
