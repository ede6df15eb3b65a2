"""What the simulated cluster is made of: measured rates with their sources, the settings of a cluster, and what follows on paper.

Closed forms stand here, so that the simulation can be held against them: what a node needs, and where a link or a shard is full.
"""

from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.scaling import BATCH, CASES, ROWS, STEPS, Card, Case
from laser_rl.errors import ConfigError
from laser_rl.replay.mixer import Counts

BITS = 8
GIGA = 1e9
REPEATS = 5
Shards = Literal["one a node", "one"]


@dataclass(frozen=True)
class Rates:
    """Measured, all but the last four; each of them is a flag of `simulate.py`.

    Attributes:
        unroll_bytes: of an unroll as it is stored and sent; benchmarks/results/2026-11-16-cluster-2-cores.csv, six games.
        raw_bytes: of the same unroll without compression, 20 rows and the stack's context; the same file.
        call_shard_s: CPU of a gather at the shard, beside its unrolls; results/2026-11-16-cluster-calls-2-cores.csv.
        unroll_shard_s: CPU of the shard for one unroll of it; the same file.
        call_learner_s: CPU of a gather at the learner: asked and taken up; the same file.
        unroll_learner_s: CPU of the learner to unpack one unroll; the same file.
        report_shard_s: CPU of a shard to say what it holds; the same file.
        report_learner_s: CPU of the learner to ask; the same file.
        raw_shard_s: of a shard for one raw unroll; a batch of 128 in 4.8 ms through Ray, docs/adr/0004.
        raw_learner_s: to copy a raw unroll, at 14.2 GB/s; docs/adr/0005.
        parameter_bytes: float32 parameters of the agent by width: 5.5 M at ×4, 1.1 M at ×1.
        refresh_s: a learner asks a shard what it holds at most this often; `runtime/cluster/census.py`.
        latency_s: assumed: one way through a switch and two kernels.
        state_factor: assumed: a member's state in PBT and checkpoints, in parameters (parameters, optimiser, last good ones).
        header_bytes: assumed: what a message adds to its unrolls.
        shard_cores: assumed: cores that emulators do not get, for the shard.
    """

    unroll_bytes: float = 9_026
    raw_bytes: float = 171_520
    call_shard_s: float = 694e-6
    unroll_shard_s: float = 13.6e-6
    call_learner_s: float = 837e-6
    unroll_learner_s: float = 53.4e-6
    report_shard_s: float = 426e-6
    report_learner_s: float = 428e-6
    raw_shard_s: float = 37e-6
    raw_learner_s: float = 12e-6
    parameter_bytes: tuple[tuple[int, float], ...] = ((4, 22.1e6), (1, 4.4e6))
    refresh_s: float = 0.2
    latency_s: float = 50e-6
    state_factor: float = 3.0
    header_bytes: float = 500
    shard_cores: float = 1.0


@dataclass(frozen=True)
class Cluster:
    """A cluster and how its replay is drawn from.

    Attributes:
        nodes: machines, each with its link, its shard and its cards.
        link_gbit: of a node, each way. The switches between are assumed not to block.
        cards: of a node.
        members: on each card.
        cores: of a node, for each card.
        case: network and replay fraction.
        compressed: whether unrolls travel as they are stored.
        shards: one a node, or one for all on the first node.
        picks: a batch's replayed unrolls come from so many draws of a shard; 0: each unroll from any shard.
        local: share of the replayed unrolls that is drawn from the own node's shard.
        group: nodes that share a replay; 0: all.
        reports: whether every learner asks every shard what it holds, as `runtime/cluster` does.
        ahead: draws under way beyond the one that is needed now.
        room: sets of online unrolls that a member may have waiting.
        slots: environments of a member.
        spread: other nodes on which a member has runners too, and that need its parameters.
        tree: whether copies of parameters are passed on by those who have them.
        publish_s: between two sets of parameters for runners elsewhere.
        pbt_s: between two copies of a member from another node; 0: none.
        checkpoint_s: between two checkpoints to a store outside; 0: none.
    """

    nodes: int = 1
    link_gbit: float = 25.0
    cards: int = 1
    members: int = 9
    cores: int = 16
    case: Case = CASES[0]
    compressed: bool = True
    shards: Shards = "one a node"
    picks: int = 0
    local: float = 0.0
    group: int = 0
    reports: bool = True
    ahead: int = 2
    room: int = 2
    slots: int = 64
    spread: int = 0
    tree: bool = True
    publish_s: float = 1.0
    pbt_s: float = 0.0
    checkpoint_s: float = 0.0

    def __post_init__(self) -> None:
        counts = min(self.nodes, self.cards, self.members, self.cores, self.slots, self.room)
        if counts < 1 or min(self.picks, self.group, self.ahead, self.spread) < 0:
            raise ConfigError(
                "expected at least one node, card, member, core, slot and set of room, and no negative number; see --help"
            )
        if (
            not 0 <= self.local <= 1
            or min(self.link_gbit, self.publish_s) <= 0
            or min(self.pbt_s, self.checkpoint_s) < 0
        ):
            raise ConfigError("expected a local share from 0 to 1, a link and times of more than 0; see --help")

    @property
    def group_nodes(self) -> int:
        """Of one replay.

        >>> Cluster(nodes=100).group_nodes, Cluster(nodes=100, group=10).group_nodes
        (100, 10)
        """
        return min(self.group, self.nodes) if self.group else self.nodes

    @property
    def counts(self) -> Counts:
        """Online and replayed unrolls of a batch."""
        return Counts.of(BATCH, self.case.fraction)


@dataclass(frozen=True)
class Demand:
    """What one node needs if its cards never wait, and what it can give; seconds, bytes, bits."""

    update_s: float
    updates: float  # a second, of all cards
    drawn: float  # unrolls a second
    in_bytes: float  # a second over the link, unrolls only
    steps_wanted: float
    steps_given: float

    @property
    def gbit(self) -> float:
        """That the link carries each way."""
        return self.in_bytes * BITS / GIGA


def unroll_bytes(cluster: Cluster, rates: Rates) -> float:
    """On the wire."""
    return rates.unroll_bytes if cluster.compressed else rates.raw_bytes


def update_s(cluster: Cluster, card: Card) -> float:
    """Of a card, as nine members made it together; one member with the card to itself made the same (77,541 training frames/s).

    >>> round(1e3 * update_s(Cluster(), Card()), 1)
    33.1
    """
    return BATCH * ROWS / card.members(cluster.case)


def emulator_steps(cluster: Cluster, card: Card, rates: Rates) -> float:
    """That the emulators of a node make in a second at most."""
    return card.steps / card.cores * (cluster.cores * cluster.cards - rates.shard_cores)


def remote_share(cluster: Cluster) -> float:
    """Of the replayed unrolls, from other nodes.

    >>> remote_share(Cluster(nodes=10)), remote_share(Cluster(nodes=10, local=0.5)), remote_share(Cluster(nodes=1))
    (0.9, 0.45, 0.0)
    """
    return (1 - cluster.local) * (1 - 1 / cluster.group_nodes)


def demand(cluster: Cluster, card: Card, rates: Rates) -> Demand:
    """Of one node.

    >>> need = demand(Cluster(nodes=1000), Card(), Rates())
    >>> round(need.drawn), round(need.gbit, 2)
    (3716, 0.27)
    """
    each = update_s(cluster, card)
    updates = cluster.cards / each
    drawn = updates * cluster.counts.replayed
    sent = drawn * remote_share(cluster) * unroll_bytes(cluster, rates)
    return Demand(each, updates, drawn, sent, updates * cluster.case.new_steps, emulator_steps(cluster, card, rates))


def calls_a_batch(cluster: Cluster) -> float:
    """Expected number of shards that a batch asks: those that at least one of its draws falls on.

    With n draws over S shards of equal fill S (1 − (1 − 1/S)ⁿ); picks are draws of shards in the same way.

    >>> [round(calls_a_batch(Cluster(nodes=nodes)), 1) for nodes in (1, 10, 100, 1000)]
    [1.0, 10.0, 71.0, 115.8]
    >>> round(calls_a_batch(Cluster(nodes=1000, picks=8)), 2)
    7.97
    """
    if cluster.shards == "one":
        return 1.0
    shards, replayed = cluster.group_nodes, cluster.counts.replayed
    draws = cluster.picks or replayed
    far = shards * (1 - (1 - (1 - cluster.local) / shards) ** draws)
    return far if cluster.local == 0 else min(shards, 1 + far)


def gather_s(cluster: Cluster, rates: Rates, calls: float | None = None) -> float:
    """CPU seconds that all shards together spend on one batch."""
    each = rates.unroll_shard_s if cluster.compressed else rates.raw_shard_s
    return (calls_a_batch(cluster) if calls is None else calls) * rates.call_shard_s + cluster.counts.replayed * each


def learner_s(cluster: Cluster, rates: Rates) -> float:
    """CPU seconds that a learner spends on one batch: to ask, to be told and to unpack."""
    each = rates.unroll_learner_s if cluster.compressed else rates.raw_learner_s
    return calls_a_batch(cluster) * rates.call_learner_s + cluster.counts.replayed * each


def fluid(cluster: Cluster, card: Card, rates: Rates) -> dict[str, float]:
    """Seconds that one batch of a node takes of everything it needs, if nothing ever waited; the largest is the limit.

    A shard serves as many batches as its node makes, in pieces; a single shard serves those of all nodes.

    >>> limits = fluid(Cluster(nodes=1000), Card(), Rates())
    >>> max(limits, key=lambda name: limits[name]), round(limits["card"] / limits["shard"], 3)
    ('shard', 0.065)
    """
    need, shards = demand(cluster, card, rates), 1 if cluster.shards == "one" else cluster.group_nodes
    served = cluster.nodes if cluster.shards == "one" else 1
    sent = cluster.counts.replayed * unroll_bytes(cluster, rates) + calls_a_batch(cluster) * rates.header_bytes
    wire = sent * BITS / GIGA / cluster.link_gbit * remote_share(cluster)
    seconds = {
        "card": 1 / need.updates,
        "emulators": cluster.case.new_steps / need.steps_given,
        "link out": wire * served,
        "link in": wire,
    }
    deliveries = rates.call_shard_s + cluster.counts.online * rates.unroll_shard_s
    for _ in range(REPEATS):  # a learner that waits asks less often what shards hold
        every = max(seconds.values()) * cluster.cards * cluster.members  # between two draws of a member
        reports = shards * min(1.0, every / rates.refresh_s) if cluster.reports else 0.0
        seconds["shard"] = served * (gather_s(cluster, rates) + deliveries + reports * rates.report_shard_s)
        told = learner_s(cluster, rates) + reports * rates.report_learner_s
        seconds["learner"] = told / (cluster.cards * cluster.members)
    return seconds


def turn_s(cluster: Cluster, card: Card, rates: Rates) -> float:
    """Until every draw that a node's members may have under way has been answered once."""
    return max(fluid(cluster, card, rates).values()) * cluster.cards * cluster.members * (cluster.ahead + 1)


def full_link_nodes(cluster: Cluster, card: Card, rates: Rates) -> float:
    """Nodes that one link out of a single shard can feed: bandwidth / bytes a batch / batches a second of a node.

    >>> round(full_link_nodes(Cluster(shards="one", link_gbit=10), Card(), Rates()), 1)
    37.3
    """
    alone = demand(replace(cluster, nodes=10**9, group=0, local=0.0), card, rates)
    return cluster.link_gbit / alone.gbit


def full_shard_nodes(cluster: Cluster, card: Card, rates: Rates) -> float:
    """Nodes that the CPU of a single shard can feed."""
    return 1 / (demand(cluster, card, rates).updates * gather_s(replace(cluster, shards="one"), rates))


def unroll_updates(cluster: Cluster) -> float:
    """Updates that pass while an unroll is made: its slots take T steps each, and an update uses so many new steps.

    >>> unroll_updates(Cluster())
    12.8
    """
    return cluster.slots * STEPS / cluster.case.new_steps


def broadcast_s(cluster: Cluster, rates: Rates) -> float:
    """Until the last of `spread` other nodes has the parameters, with an idle network: one after the other, or doubling holders."""
    one = dict(rates.parameter_bytes)[cluster.case.width] * BITS / GIGA / cluster.link_gbit + rates.latency_s
    rounds = (cluster.spread).bit_length() if cluster.tree else cluster.spread
    return rounds * one
