"""Keeps one shard on every node: starts them, sees which are lost, replaces them, and tells everybody."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from laser_rl.cluster.actors import RayShard, nodes_alive, start_shard
from laser_rl.cluster.channels import post_roster
from laser_rl.cluster.client import Answer, AnswerLost, ShardLost
from laser_rl.cluster.shard import ShardPlan, ShardReport

log = logging.getLogger("laser_rl.training")
LOOK_S = 1.0  # between two reports of a shard
REFILL_S = 600.0  # reading segments back, gigabytes of them
STEADY_S = 60.0  # a shard that dies sooner than this may do so again: too little memory, a node that is going
MOST_PAUSE_S = 60.0  # before a replacement; the first comes at once


@dataclass
class _Kept:
    shard: RayShard
    asked: Answer[ShardReport] | None = None
    last: float = 0.0
    report: ShardReport | None = None  # the newest
    begun: float = 0.0
    died: str = ""  # of what


@dataclass
class _Place:
    """A node whose shards die soon after they were started."""

    deaths: int = 0  # in a row
    due: float = 0.0  # not before this another one is started


@dataclass(frozen=True)
class Lost:
    """A shard that is gone, as it was last known."""

    number: int
    where: str
    unrolls: int
    by: str  # what became of its place: a shard with which number, or nobody


class ShardSupervisor:
    """For the supervisor of a run; used by one thread, which calls `look` now and then.

    Args:
        plan: of each shard; its number is that of the first one. Capacity and budget are those of one shard.
        desk: of the run, where everybody finds the roster.
        nodes: who is to have a shard; those alive, if nothing is given.
        run_dir: with the segments of `save`, if a replacement is to begin with those instead of empty.
    """

    def __init__(
        self,
        plan: ShardPlan,
        desk: Any,
        *,
        nodes: Callable[[], Sequence[str]] = nodes_alive,
        run_dir: str | None = None,
    ) -> None:
        self._plan, self._desk, self._nodes, self._run_dir = plan, desk, nodes, run_dir
        self._number = plan.number
        self._kept: dict[str, _Kept] = {}  # by node
        self._saved: dict[
            str, tuple[int, Mapping[str, Any]]
        ] = {}  # by node: number of the shard that wrote, and its state
        self._places: dict[str, _Place] = {}
        self.lost: list[Lost] = []
        for node in nodes():
            self._start(node)
        self._post()

    @property
    def shards(self) -> list[RayShard]:
        """Those that are not known to be lost."""
        return [kept.shard for kept in self._kept.values()]

    def reports(self) -> list[ShardReport]:
        """The newest that have come; for status and metrics."""
        return [kept.report for kept in self._kept.values() if kept.report is not None]

    def look(self) -> list[Lost]:
        """Take up what the shards have said, replace the lost ones, give new nodes a shard. Waits for nobody but a refill.

        A shard that dies soon after it was started is replaced later and later: starting one costs seconds of a core.
        """
        alive = set(self._nodes())
        found = [node for node, kept in self._kept.items() if node not in alive or not self._lives(kept)]
        gone = [(node, self._kept.pop(node)) for node in found]
        for node, kept in gone:
            self._defer(node, kept)
        new = [node for node in self._nodes() if node not in self._kept and self._due(node)]
        for node in new:
            self._start(node)
        lost = [self._mourned(node, kept) for node, kept in gone]
        self.lost += lost
        if lost or new:
            self._post()
        return lost

    def save(self, run_dir: str, timeout_s: float) -> dict[str, Any]:
        """All shards write their segments; what `load` needs, as JSON. A shard that is lost meanwhile is left out."""
        asked = [(node, kept.shard, kept.shard.save(run_dir)) for node, kept in self._kept.items()]
        states, deadline = {}, time.monotonic() + timeout_s
        for node, shard, answer in asked:
            try:
                state = answer.result(max(0.0, deadline - time.monotonic()))
            except AnswerLost:
                continue
            except TimeoutError:
                raise TimeoutError(
                    f"shard {shard.number} of the replay on {shard.where} has not written its unrolls in {timeout_s:.0f} s; "
                    "look at the disk of that node, or checkpoint more seldom"
                ) from None
            states[str(shard.number)] = state
            self._saved[node] = shard.number, state
        return states

    def load(self, run_dir: str, states: Mapping[str, Mapping[str, Any]]) -> int:
        """Fill the shards, which must be empty, with those of a checkpoint in turn; how many unrolls came back.

        With fewer nodes than before, what was in the shards too many is left out, and said.
        """
        kept = list(self._kept.values())
        both = list(zip(kept, sorted(states.items(), key=lambda item: int(item[0])), strict=False))
        if len(states) > len(kept):
            log.warning(
                "the checkpoint has %d shards of the replay, there are %d nodes: the others are left out",
                len(states),
                len(kept),
            )
        answers = [one.shard.load(run_dir, state, int(number)) for one, (number, state) in both]
        return sum(answer.result(REFILL_S) for answer in answers)

    def move(self, desk: Any) -> None:
        """Everybody finds the roster at this desk from now on."""
        self._desk = desk
        self._post()

    def close(self) -> None:
        """End all shards."""
        for kept in self._kept.values():
            kept.shard.kill()
        self._kept.clear()

    def _start(self, node: str) -> None:
        shard = start_shard(replace(self._plan, number=self._number), node)
        self._number += 1
        self._kept[node] = _Kept(shard, begun=time.monotonic())
        if self._run_dir is not None and node in self._saved:
            number, state = self._saved[node]
            try:
                unrolls = shard.load(self._run_dir, state, number).result(REFILL_S)
            except (AnswerLost, TimeoutError):
                log.warning(
                    "shard %d of the replay on %s could not be refilled; it begins empty", shard.number, shard.where
                )
            else:
                log.warning(
                    "shard %d of the replay on %s begins with %d unrolls of the last checkpoint",
                    shard.number,
                    shard.where,
                    unrolls,
                )

    def _defer(self, node: str, kept: _Kept) -> None:
        place, now = self._places.setdefault(node, _Place()), time.monotonic()
        place.deaths = place.deaths + 1 if now - kept.begun < STEADY_S else 1
        pause_s = (
            float(2 ** min(place.deaths - 1, 10)) if place.deaths > 1 else 0.0
        )  # a day of deaths would be too great a power
        place.due = now + min(MOST_PAUSE_S, pause_s)

    def _due(self, node: str) -> bool:
        return node not in self._places or time.monotonic() >= self._places[node].due

    def _lives(self, kept: _Kept) -> bool:
        if kept.asked is not None and kept.asked.done():
            try:
                kept.report = kept.asked.result(0.0)
            except ShardLost as error:
                kept.died = str(error)
                return False
            except (AnswerLost, TimeoutError):
                pass  # it lives, and will be asked again
            kept.asked = None
        if kept.asked is None and time.monotonic() - kept.last >= LOOK_S:
            kept.asked, kept.last = kept.shard.report(), time.monotonic()
        return True

    def _mourned(self, node: str, kept: _Kept) -> Lost:
        first, end = (0, 0) if kept.report is None else kept.report.span
        by = f"shard {self._kept[node].shard.number}" if node in self._kept else "nobody: its node is gone"
        if not self._due(node) and node in self._nodes():
            place = self._places[node]
            by = f"another in {place.due - time.monotonic():.0f} s, after {place.deaths} in a row died soon"
        lost = Lost(kept.shard.number, kept.shard.where, end - first, by)
        log.warning(
            "shard %d of the replay on %s is lost with about %s unrolls; its place is taken by %s%s",
            lost.number, lost.where, f"{lost.unrolls:,}", lost.by, f" ({kept.died})" if kept.died else "",
        )  # fmt: skip
        return lost

    def _post(self) -> None:
        post_roster(self._desk, self.shards)
