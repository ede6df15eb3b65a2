"""What `simulate.py` shows: which clusters are simulated, their tables, and the figure."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scaling import Card, Case
from benchmarks.simulate_model import (
    Cluster,
    Rates,
    broadcast_s,
    calls_a_batch,
    demand,
    fluid,
    full_link_nodes,
    full_shard_nodes,
)
from benchmarks.simulate_sampling import Law, batches, distance, effective_members, excess_variance, variance, worth

NODES = (1, 3, 10, 30, 100, 300, 1000)
LINKS = (10.0, 25.0, 100.0, 400.0)
PICKS, GROUP = 8, 10
AS_BUILT, PICKED = "as built", f"{PICKS} picks, one census"
DESIGNS = {
    "one shard for all": Cluster(shards="one"),
    AS_BUILT: Cluster(),
    "one census": Cluster(reports=False),
    "half from the own shard, one census": Cluster(reports=False, local=0.5),
    f"groups of {GROUP} nodes": Cluster(group=GROUP),
    PICKED: Cluster(picks=PICKS, reports=False),
    f"{PICKED}, one member a card": Cluster(picks=PICKS, reports=False, members=1),
}
LINK_NODES, SPREAD_NODES = 16, 16
LINK_CASES = {
    "×4, 96 %, 1 card": Cluster(),
    "×1, 96 %, 1 card": Cluster(case=Case(1, 0.96)),
    "×4, 96 %, 8 cards": Cluster(cards=8),
}
SPREADS = {
    "all on the learner's node": Cluster(),
    "on 1 other node": Cluster(spread=1),
    "on 4, one after the other": Cluster(spread=4, tree=False),
    "on 4, passed on": Cluster(spread=4),
    "on 8, passed on": Cluster(spread=8),
    "all on the learner's node, PBT and checkpoints every minute": Cluster(pbt_s=60, checkpoint_s=60),
}
Row = dict[str, Any]


def scenarios(nodes: Sequence[int] = NODES) -> dict[str, Cluster]:
    """Everything that is simulated, by name."""
    found = {f"{name} | {count}": replace(plan, nodes=count) for count in nodes for name, plan in DESIGNS.items()}
    for name, plan in LINK_CASES.items():
        for link in LINKS:
            for packed in (True, False):
                key = f"{name} | {link:g} | {'compressed' if packed else 'raw'}"
                found[key] = replace(
                    plan, nodes=LINK_NODES, link_gbit=link, compressed=packed, picks=PICKS, reports=False
                )
    for name, plan in SPREADS.items():
        found[name] = replace(plan, nodes=SPREAD_NODES, picks=PICKS, reports=False)
    return found


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def percent(share: float) -> str:
    """For a cell.

    >>> percent(0.0654), percent(0.998)
    ('7 %', '100 %')
    """
    return f"{100 * share:.0f} %"


def needs(card: Card, rates: Rates) -> str:
    """Of a node among many, if its cards never wait: on paper."""
    rows = []
    for name, plan in LINK_CASES.items():
        many = replace(plan, nodes=1000)
        small, large = (demand(replace(many, compressed=packed), card, rates) for packed in (True, False))
        rows.append(
            [
                name,
                f"{small.updates:.1f}",
                f"{small.drawn:,.0f}",
                f"{small.in_bytes / 1e6:,.0f}",
                f"{small.gbit:.2f}",
                f"{large.in_bytes / 1e6:,.0f}",
                f"{large.gbit:.1f}",
            ]
        )
    head = ["a node", "batches/s", "unrolls/s drawn", "MB/s each way", "Gbit/s", "raw: MB/s", "Gbit/s"]
    return table(head, rows)


def single(card: Card, rates: Rates) -> str:
    """How many nodes one shard for all could feed: on paper."""
    rows = []
    for packed in (True, False):
        plan = Cluster(shards="one", compressed=packed)
        links = [f"{full_link_nodes(replace(plan, link_gbit=link), card, rates):,.0f}" for link in LINKS]
        rows.append(["compressed" if packed else "raw", f"{full_shard_nodes(plan, card, rates):.0f}", *links])
    return table(
        ["one shard feeds, in nodes", "by its process", *(f"by a link of {link:g} Gbit/s" for link in LINKS)], rows
    )


def by_nodes(rows: dict[str, Row], nodes: Sequence[int] = NODES) -> str:
    """The runtime as it is."""
    lines = []
    for count in nodes:
        row = rows[f"{AS_BUILT} | {count}"]
        cells = [f"{count:,}", f"{9 * count:,}", f"{row['frames']:,.0f}", percent(row["of_ideal"]), row["limit"]]
        cells += [percent(row["busy"][name]) for name in ("card", "emulators", "learner", "shard", "link in")]
        cells += [f"{row['calls']:,.0f}", f"{row['draw_ms']:,.0f}", f"{row['peak_mb']:.2f}", f"{row['lag']:.1f}"]
        lines.append(cells)
    head = ["nodes", "members", "training frames/s a node", "of one card that never waits", "limit"]
    head += ["card busy", "emulators", "learners' processes", "shard", "link"]
    return table([*head, "calls/s to a shard", "ms a draw", "MB waiting for a link", "lag, updates"], lines)


def by_design(rows: dict[str, Row], nodes: Sequence[int] = NODES) -> str:
    """What would be better: share of cards that never wait, by nodes."""
    lines = []
    for name, plan in DESIGNS.items():
        found = [rows[f"{name} | {count}"] for count in nodes]
        calls = f"{calls_a_batch(replace(plan, nodes=nodes[-1])):.0f}"
        lines.append([name, *(percent(row["of_ideal"]) for row in found), found[-1]["limit"], calls])
    head = [
        "replay",
        *(f"{count:,}" for count in nodes),
        f"limit at {nodes[-1]:,}",
        f"gathers a batch at {nodes[-1]:,}",
    ]
    return table(head, lines)


def by_link(rows: dict[str, Row]) -> str:
    """With and without compression."""
    lines = []
    for name in LINK_CASES:
        for form in ("compressed", "raw"):
            found = [rows[f"{name} | {link:g} | {form}"] for link in LINKS]
            cells = [f"{percent(row['of_ideal'])}, {row['limit']}" for row in found]
            lines.append([name, form, f"{found[-1]['gbit']:.2f}", *cells])
    return table(["a node", "unrolls", "Gbit/s used at 400", *(f"{link:g} Gbit/s" for link in LINKS)], lines)


def by_spread(rows: dict[str, Row], rates: Rates) -> str:
    """Where the runners are."""
    lines = []
    for name, plan in SPREADS.items():
        row, alone = rows[name], 1e3 * broadcast_s(plan, rates)
        lines.append([name, percent(row["of_ideal"]), f"{row['gbit']:.2f}", f"{alone:.0f}", f"{row['lag']:.1f}"])
    return table(["runners", "of ideal", "Gbit/s into a node", "ms to the last, idle network", "lag, updates"], lines)


def locality(shards: int = 64, members: int = 9, count: int = 4000) -> str:
    """What a local share does, by formula and drawn."""
    lines = []
    for local in (0.0, 0.1, 0.25, 0.5, 0.9):
        law = Law(shards, 123, local=local)
        held = batches(law, count, np.random.default_rng(0)).sum(axis=0) / (count * 123)
        drawn = 0.5 * float(np.abs(held - 1 / shards).sum())
        lines.append(
            [
                percent(local),
                percent((1 - local) * (1 - 1 / shards)),
                f"{100 * law.shares(0)[0]:.1f} %",
                f"{100 * held[0]:.1f} %",
                f"{distance(law):.3f}",
                f"{drawn:.3f}",
                f"{effective_members(law, members):.0f}",
                f"{members / (held**2).sum():.0f}",
                percent(worth(law)),
            ]
        )
    head = [
        "local share",
        "traffic",
        "own node's share",
        "drawn",
        "distance from uniform",
        "drawn",
        "effective members",
    ]
    return table([*head, "drawn", "left after weights"], lines)


def subsets(shards: int = 128, count: int = 4096) -> str:
    """What few shards a batch cost, by formula and drawn."""
    lines, spans = [], (1, 16, 64)
    base = {span: 1 / shards * (1 - 1 / shards) / 123 / span for span in spans}
    for name, law, rotating in (
        ("uniform", Law(shards, 123), False),
        *((f"{picks} picks", Law(shards, 123, picks=picks), False) for picks in (32, 8, 2)),
        *((f"{picks} picks in rotation", Law(shards, 123, picks=picks), True) for picks in (32, 8, 2)),
    ):
        held = batches(law, count, np.random.default_rng(0), rotating=rotating)
        mean = float(np.abs(held.mean(axis=0) / 123 - 1 / shards).max() * shards)
        cells = [f"{variance(held, span) / base[span]:.2f}" for span in spans]
        formula = "" if rotating else f"{excess_variance(law):.2f}"
        lines.append([name, f"{(held > 0).sum(axis=1).mean():.1f}", percent(mean), formula, *cells])
    head = ["a batch's 123 unrolls", "shards asked", f"largest error of a shard's share over {count:,} batches"]
    return table(
        [*head, "variance, formula", *(f"over {span} batch{'es' if span > 1 else ''}" for span in spans)], lines
    )


def figure(rows: dict[str, Row], path: Path, card: Card, rates: Rates) -> None:
    """Four panels: throughput, what is busy, bandwidth, and the cost of few shards or local draws."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    shown, axes = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    _throughput(axes[0, 0], rows, card, rates)
    _busy(axes[0, 1], rows)
    _bandwidth(axes[1, 0], card, rates)
    _mixture(axes[1, 1])
    path.parent.mkdir(parents=True, exist_ok=True)
    shown.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(shown)


def _throughput(axis: Any, rows: dict[str, Row], card: Card, rates: Rates) -> None:
    shown = [name for name, plan in DESIGNS.items() if plan.members > 1]
    for at, name in enumerate(shown):
        # Two of them lie on each other: the later ones are smaller.
        size, simulated = 10 - at, [100 * rows[f"{name} | {count}"]["of_ideal"] for count in NODES]
        axis.plot(NODES, simulated, "o-", color=f"C{at}", markersize=size, label=name)
        limits = [fluid(replace(DESIGNS[name], nodes=count), card, rates) for count in NODES]
        axis.plot(NODES, [100 * one["card"] / max(one.values()) for one in limits], ":", color=f"C{at}")
    axis.set(ylabel="% of cards that never wait", ylim=(0, 108), title="Throughput a node (dotted: on paper)")
    _by_nodes(axis, "lower left")


def _busy(axis: Any, rows: dict[str, Row]) -> None:
    for at, name in enumerate(rows[f"{AS_BUILT} | 1"]["busy"]):
        shares = [100 * rows[f"{AS_BUILT} | {count}"]["busy"][name] for count in NODES]
        axis.plot(NODES, shares, "o-", markersize=10 - at, label=name)
    axis.set(ylabel="% busy", ylim=(-3, 108), title="As built: what is busy")
    _by_nodes(axis, "center right")


def _bandwidth(axis: Any, card: Card, rates: Rates) -> None:
    for at, (name, plan) in enumerate(LINK_CASES.items()):
        for packed, style in ((True, "-"), (False, "--")):
            gbit = [demand(replace(plan, nodes=count, compressed=packed), card, rates).gbit for count in NODES[1:]]
            axis.plot(NODES[1:], gbit, style, color=f"C{at}", label=f"{name}, {'compressed' if packed else 'raw'}")
    for link in LINKS:
        axis.axhline(link, color="0.6", linewidth=0.8)
        axis.text(NODES[-1], link * 1.06, f"{link:g} Gbit/s", fontsize=8, color="0.4", ha="right")
    axis.set(yscale="log", ylim=(0.003, 800), ylabel="Gbit/s into a node", title="What the replay needs of a link")
    _by_nodes(axis, "lower right")


def _by_nodes(axis: Any, legend: str) -> None:
    axis.set(xscale="log", xlabel="nodes")
    axis.set_xticks(NODES, [f"{count:,}" for count in NODES])
    axis.minorticks_off()
    axis.legend(fontsize=7, loc=legend)


def _mixture(axis: Any, shards: int = 128, count: int = 4096) -> None:
    spans = [1, 2, 4, 8, 16, 32, 64]
    cases: dict[str, Callable[[], Any]] = {
        "uniform": lambda: batches(Law(shards, 123), count, np.random.default_rng(0)),
        "8 picks": lambda: batches(Law(shards, 123, picks=8), count, np.random.default_rng(0)),
        "8 picks in rotation": lambda: batches(
            Law(shards, 123, picks=8), count, np.random.default_rng(0), rotating=True
        ),
    }
    for name, make in cases.items():
        held = make()
        axis.plot(spans, [shards * np.sqrt(variance(held, span)) * 100 for span in spans], "o-", label=name)
    axis.set(xscale="log", yscale="log", xlabel="batches in a row", ylabel="% standard deviation of a shard's share")
    axis.set_title(f"{shards} shards: how even the sources are over time")
    axis.set_xticks(spans, [str(span) for span in spans])
    axis.minorticks_off()
    axis.legend(fontsize=8)


def tables(rows: dict[str, Row], card: Card, rates: Rates) -> str:
    """All of them; docs/scaling.md shows two."""
    return "\n\n".join(
        [
            needs(card, rates),
            by_nodes(rows),
            by_design(rows),
            single(card, rates),
            by_link(rows),
            by_spread(rows, rates),
            locality(),
            subsets(),
        ]
    )
