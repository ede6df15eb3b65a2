"""A cluster of 1 to 1,000 nodes with one shared replay, simulated event by event from what was measured on one.

    python -m benchmarks.simulate one --nodes 64 --link-gbit 10 --no-compressed
    python -m benchmarks.simulate all --keep FILE.json --figure FILE.png     # all tables, about ten minutes
    python -m benchmarks.simulate tables --kept FILE.json                    # the same tables from a kept file

No cluster of that size was there: see docs/scaling.md for what is measured, what is assumed, and against what the simulation is held.
The model is in `simulate_model`, `simulate_events` and `simulate_network`, the laws of drawing in `simulate_sampling`.
"""

import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from benchmarks import simulate_report
from benchmarks.scaling import Card
from benchmarks.simulate_events import Outcome, Simulation
from benchmarks.simulate_model import Cluster, Rates, fluid
from laser_rl.errors import ConfigError

KEPT = Path(__file__).parent / "results" / "2026-11-16-simulation.json"
FEW, LONG_S, SHORT_S = 10, 5.0, 2.0  # with few nodes few updates are counted: those run longer


def seconds_of(cluster: Cluster) -> float:
    """How long to count."""
    return LONG_S if cluster.nodes <= FEW else SHORT_S


def simulated(cluster: Cluster, card: Card | None = None, rates: Rates | None = None, seed: int = 0) -> dict[str, Any]:
    """An outcome as a record."""
    found: Outcome = Simulation(cluster, card, rates, seed).run(seconds=seconds_of(cluster))
    return {**asdict(found), "limit": found.limit}


def one(
    cluster: Annotated[Cluster, tyro.conf.arg(name="")] = Cluster(),  # noqa: B008
    rates: Annotated[Rates, tyro.conf.arg(name="")] = Rates(),  # noqa: B008
    training_frames: float | None = None,
    emulator_steps: float | None = None,
    seed: int = 0,
) -> None:
    """Simulate one cluster and print what came out, beside what is expected on paper.

    Args:
        cluster: its machines, and how its replay is drawn from.
        rates: of shards, learners' processes and messages.
        training_frames: a second that the members of a card make together; as measured.
        emulator_steps: a second on 16 cores; as measured.
        seed: of all draws.
    """
    card = Card() if training_frames is None else Card(together=((cluster.case, training_frames),))
    card = card if emulator_steps is None else replace(card, steps=emulator_steps)
    found = simulated(cluster, card, rates, seed)
    limits = fluid(cluster, card, rates)
    for name in ("frames", "calls", "draw_ms", "lag", "gbit", "peak_mb", "cores"):
        print(f"{name:12} {found[name]:12,.2f}")
    print(f"{'of ideal':12} {found['of_ideal']:12.3f}   on paper {limits['card'] / max(limits.values()):.3f}")
    for name, share in found["busy"].items():
        paper = limits[name] / max(limits.values())
        print(f"{name:12} {share:12.3f}   on paper {paper:.3f}{'   <- limit' if name == found['limit'] else ''}")


def everything(keep: Path = KEPT, figure: Path | None = None) -> None:
    """Simulate all clusters of docs/scaling.md, keep the rows, print the tables, draw the figure."""
    rows, plans = {}, simulate_report.scenarios()
    for at, (name, plan) in enumerate(plans.items()):
        begin = time.perf_counter()
        rows[name] = {key: _short(value) for key, value in simulated(plan).items()}
        print(f"{at + 1} of {len(plans)}: {name}, {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
    keep.write_text(json.dumps(rows, indent=1) + "\n")
    from_kept(keep, figure)


def from_kept(kept: Path = KEPT, figure: Path | None = None) -> None:
    """The tables, and the figure, from rows that were kept."""
    rows = json.loads(kept.read_text())
    print(simulate_report.tables(rows, Card(), Rates()))
    if figure is not None:
        simulate_report.figure(rows, figure, Card(), Rates())


def _short(value: Any) -> Any:
    """Six digits are enough, and the same on every machine."""
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def main() -> None:
    """Entry."""
    try:
        tyro.extras.subcommand_cli_from_dict({"one": one, "all": everything, "tables": from_kept}, description=__doc__)
    except (ConfigError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
