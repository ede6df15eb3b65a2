"""The cluster in events: members draw, shards answer, links carry, cards learn, emulators act.

A draw goes its way through queues: the learner's process asks one shard after the other; a shard's process looks up and copies; the link
of its node sends; the link of the learner's node receives; the learner's process unpacks. With a batch and online unrolls at
hand a member waits for its card, which makes one update at a time at the measured rate. Every queue is first come, first served.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from benchmarks.scaling import BATCH, ROWS, Card
from benchmarks.simulate_model import Cluster, Rates, emulator_steps, turn_s, unroll_bytes, unroll_updates, update_s
from benchmarks.simulate_network import OUTSIDE, Network
from benchmarks.simulate_sampling import Law

Act = Callable[[float, "Member"], None]


@dataclass
class Member:
    """One agent and its process."""

    node: int
    card: int
    free_s: float = 0.0  # its process, from then on
    busy_s: float = 0.0
    ready: int = 0  # batches
    online: deque[int] = field(
        default_factory=deque
    )  # sets of new unrolls, by the version that acted when they were finished
    queued: bool = False  # for its card, or on it
    updates: int = 0
    acting: int = 0  # version that its runners elsewhere have
    asked_s: float = -1e9  # when it last asked what shards hold


@dataclass(frozen=True)
class Outcome:
    """Of the time after the warm-up. Shares are those of the mean node, but for `shard`, the busiest.

    Attributes:
        frames: training frames a second of a node.
        of_ideal: that, of what its cards could do if they never waited.
        busy: by what: card, emulators, shard, out and in (links), learner (the processes of the members).
        calls: a second to a shard, reports too.
        draw_ms: from a draw's request to the filled batch, mean.
        lag: updates between acting at the first row of an online unroll and learning from it, mean.
        gbit: into a node.
        peak_mb: most bytes that waited for one link in: what the switch before it would have to hold.
        cores: of a node: emulators, shard, learners' processes.
        out_bytes: over all links, with what is still on its way.
        in_bytes: likewise.
    """

    frames: float
    of_ideal: float
    busy: dict[str, float]
    calls: float
    draw_ms: float
    lag: float
    gbit: float
    peak_mb: float
    cores: float
    out_bytes: float
    in_bytes: float

    @property
    def limit(self) -> str:
        """What is busiest."""
        return max(self.busy, key=lambda name: self.busy[name])


class Simulation:
    """Of one cluster; the same seed gives the same numbers.

    >>> one = Simulation(Cluster(nodes=1)).run(seconds=3.0)
    >>> one.limit, round(one.of_ideal, 1)
    ('card', 1.0)
    """

    def __init__(self, cluster: Cluster, card: Card | None = None, rates: Rates | None = None, seed: int = 0) -> None:
        self.cluster, self.rates = cluster, rates or Rates()
        self.network = Network(cluster, self.rates)
        self._random = np.random.default_rng(seed)
        self._cards: list[deque[Member]] = [deque() for _ in range(cluster.nodes * cluster.cards)]
        self._learning = [False] * len(self._cards)
        self.members = [
            Member(at // cluster.cards, at) for at in range(len(self._cards)) for _ in range(cluster.members)
        ]
        self._card = card or Card()
        self._update_s = update_s(cluster, self._card)
        self._set_s = cluster.case.new_steps / emulator_steps(cluster, self._card, self.rates)
        self._emulators = np.zeros(cluster.nodes)  # of a node: free from then on
        self._count = dict.fromkeys(("updates", "draws", "draw_s", "lag", "acted"), 0.0)

    def run(self, warm_s: float = 0.0, seconds: float = 2.0) -> Outcome:
        """Warm up, at least until every draw that may be under way has had its turn, then count for so long."""
        turn = turn_s(self.cluster, self._card, self.rates)
        warm_s = max(warm_s, 1.25 * turn)
        self._start(turn)
        self.network.until(warm_s)
        self.network.reset()
        for member in self.members:
            member.busy_s = 0.0
        self._count = dict.fromkeys(self._count, 0.0)
        self.network.until(warm_s + seconds)
        return self._outcome(seconds)

    def _start(self, turn: float) -> None:
        """Draws begin over the time that they take in the long run: all at once would be a wave that goes on and on."""
        cluster, random = self.cluster, self._random
        beside: tuple[tuple[bool, float, Act], ...] = (
            (cluster.spread > 0, cluster.publish_s, self._publish),
            (cluster.pbt_s > 0, cluster.pbt_s, self._exploit),
            (cluster.checkpoint_s > 0, cluster.checkpoint_s, self._checkpoint),
        )
        for member in self.members:
            for first in (self._draw,) * (cluster.ahead + 1) + (self._act,) * cluster.room:
                self.network.at(float(random.random()) * turn, partial(_with, first, member))
            for wanted, period, what in beside:
                if wanted and cluster.nodes > 1:
                    self._every(float(random.random()) * period, period, what, member)

    def _every(self, begin: float, period: float, what: Act, member: Member) -> None:
        def again(now: float) -> None:
            what(now, member)
            self.network.at(now + period, again)

        self.network.at(begin, again)

    def _nodes_of(self, member: Member) -> tuple[int, int]:
        """That share a replay with it: from, to before."""
        group = self.cluster.group_nodes
        first = member.node // group * group
        return first, min(first + group, self.cluster.nodes)

    def _draw(self, now: float, member: Member) -> None:
        """Ask for the replayed unrolls of a batch."""
        cluster, network = self.cluster, self.network
        first, end = (0, 1) if cluster.shards == "one" else self._nodes_of(member)
        law = Law(end - first, cluster.counts.replayed, cluster.picks, cluster.local)
        shards, counts = law.draw(member.node - first, self._random)
        begin, spent = max(now, member.free_s), len(shards) * network.ask_s
        sent = begin + network.ask_s * np.arange(1.0, len(shards) + 1)
        if cluster.reports and now - member.asked_s >= self.rates.refresh_s:
            member.asked_s = now
            spent += (end - first) * self.rates.report_learner_s
            network.report(first, end)
        member.free_s, member.busy_s = begin + spent, member.busy_s + spent
        calls = len(shards)
        network.gather(sent, shards + first, counts, member.node, lambda then: self._take_up(then, now, member, calls))

    def _take_up(self, now: float, asked: float, member: Member, calls: int) -> None:
        """All answers are there: unpack them."""
        each = self.rates.unroll_learner_s if self.cluster.compressed else self.rates.raw_learner_s
        spent = calls * self.network.ask_s + self.cluster.counts.replayed * each
        member.free_s, member.busy_s = max(now, member.free_s) + spent, member.busy_s + spent
        self._count["draws"] += 1
        self._count["draw_s"] += member.free_s - asked
        self.network.at(member.free_s, partial(_with, self._filled, member))

    def _filled(self, now: float, member: Member) -> None:
        member.ready += 1
        self._queue(now, member)

    def _act(self, now: float, member: Member) -> None:
        """A set of online unrolls, after those that others of the node wait for."""
        done = max(now, float(self._emulators[member.node])) + self._set_s
        self._emulators[member.node] = done
        self.network.at(done, partial(_with, self._acted, member))

    def _acted(self, now: float, member: Member) -> None:
        member.online.append(member.acting if self.cluster.spread else member.updates)
        self._count["acted"] += 1
        home = 0 if self.cluster.shards == "one" else member.node
        self.network.insert(now, member.node, home, self.cluster.counts.online)
        self._queue(now, member)

    def _queue(self, now: float, member: Member) -> None:
        """For the card, if there is all that an update needs."""
        if member.ready and member.online and not member.queued:
            member.queued = True
            self._cards[member.card].append(member)
            self._learn(now, member.card)

    def _learn(self, now: float, card: int) -> None:
        if self._learning[card] or not self._cards[card]:
            return
        member = self._cards[card].popleft()
        self._learning[card] = True
        member.ready -= 1
        self._count["lag"] += member.updates - member.online.popleft() + unroll_updates(self.cluster)
        self._draw(now, member)
        self._act(now, member)
        self.network.at(now + self._update_s, partial(_with, self._learned, member))

    def _learned(self, now: float, member: Member) -> None:
        member.updates += 1
        member.queued = self._learning[member.card] = False
        self._count["updates"] += 1
        self._queue(now, member)
        self._learn(now, member.card)

    # What sits beside the ring

    def _publish(self, now: float, member: Member) -> None:
        """Parameters to the nodes of its other runners: one after the other, or passed on by those who have them."""
        nodes, version = self.cluster.nodes, member.updates
        targets = [(member.node + at) % nodes for at in range(1, min(self.cluster.spread, nodes - 1) + 1)]
        size, left = dict(self.rates.parameter_bytes)[self.cluster.case.width], [len(targets)]

        def pass_on(then: float, holder: int) -> None:
            if targets:
                target = targets.pop(0)
                self.network.transfer(then, holder, target, size, lambda later: arrived(later, holder, target))

        def arrived(then: float, holder: int, target: int) -> None:
            left[0] -= 1
            if not left[0]:
                member.acting = version
            for one in (holder, target) if self.cluster.tree else (holder,):
                pass_on(then, one)

        pass_on(now, member.node)

    def _state_bytes(self) -> float:
        return self.rates.state_factor * dict(self.rates.parameter_bytes)[self.cluster.case.width]

    def _exploit(self, now: float, member: Member) -> None:
        """The state of a member of another node comes."""
        donor = (member.node + 1 + int(self._random.integers(self.cluster.nodes - 1))) % self.cluster.nodes
        self.network.transfer(now, donor, member.node, self._state_bytes())

    def _checkpoint(self, now: float, member: Member) -> None:
        """State and new unrolls leave the cluster."""
        new = self.cluster.checkpoint_s / (self._update_s * self.cluster.members) * self.cluster.counts.online
        self.network.transfer(
            now, member.node, OUTSIDE, self._state_bytes() + new * unroll_bytes(self.cluster, self.rates)
        )

    def _outcome(self, seconds: float) -> Outcome:
        cluster, network, count = self.cluster, self.network, self._count
        processes = cluster.cards * cluster.members
        busy = {
            "card": count["updates"] * self._update_s / seconds / len(self._cards),
            "emulators": count["acted"] * self._set_s / seconds / cluster.nodes,
            "shard": float(network.shards.served_s.max()) / seconds,
            "link out": float(network.out.served_s.max()) / seconds,
            "link in": float(network.into.served_s.max()) / seconds,
            "learner": sum(member.busy_s for member in self.members) / seconds / len(self.members),
        }
        cores = busy["emulators"] * (cluster.cores * cluster.cards - self.rates.shard_cores)
        cores += float(network.shards.served_s.mean()) / seconds + busy["learner"] * processes
        frames = count["updates"] * BATCH * ROWS / seconds / cluster.nodes
        return Outcome(
            frames=frames,
            of_ideal=frames * self._update_s / (cluster.cards * BATCH * ROWS),
            busy={name: min(1.0, share) for name, share in busy.items()},
            calls=network.calls / seconds / (1 if cluster.shards == "one" else cluster.nodes),
            draw_ms=1e3 * count["draw_s"] / max(count["draws"], 1),
            lag=count["lag"] / max(count["updates"], 1),
            gbit=float(network.into.served_s.mean()) / seconds * cluster.link_gbit,
            peak_mb=network.into.longest_s / network.byte_s / 1e6,
            cores=cores,
            out_bytes=network.out_bytes,
            in_bytes=network.in_bytes,
        )


def _with(what: Act, member: Member, now: float) -> None:
    what(now, member)
