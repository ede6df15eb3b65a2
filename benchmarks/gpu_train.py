"""What a card makes of LASER: the train step alone, a whole run on Breakout, and a sweep of members that share one replay.

    python benchmarks/gpu_train.py                                   # the step, ×1 and ×4, beside eager PyTorch
    python benchmarks/gpu_train.py --compile --profile kernels.txt   # also torch.compile, and where the time of ours goes
    python benchmarks/gpu_train.py --widths 4 --end-to-end 120       # acting, replay and learning together
    python benchmarks/gpu_train.py --widths 4 --members 9 --seconds 120
    python benchmarks/gpu_train.py --smoke                           # seconds on a CPU: only that everything runs

A batch is 128 × 20 observations of 84×84×4, which are already on the card. Everything is compared within one run: with an eager step of
a typical IMPALA code (`gpu_baseline.py`), with the card's own bf16 product of two 8192² matrices, and with its copy of 1 GiB.
All numbers also go, with date and hardware, into a JSON file (`--json`; in benchmarks/results if left out, but for a smoke).
"""

import argparse
import gc
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.gpu_baseline import Baseline, Unrolls, Variant, generous
from benchmarks.gpu_measure import (
    Card,
    Work,
    card_of,
    forget_memory,
    least_bytes,
    peak_memory,
    sustained,
    times_of,
    where,
    work_of,
)
from benchmarks.gpu_runs import Alone, end_to_end, members
from laser_rl import recipes
from laser_rl.agent.learner import Learner
from laser_rl.config import Config, override
from laser_rl.disk import write_json
from laser_rl.envs.records import DiscreteActions, EnvironmentSpec, ObservationSpec
from laser_rl.networks.build import family_of
from laser_rl.replay.memory_layout import DeviceBatch, allocate
from laser_rl.training.build import build_learner, device_of, layout_of
from laser_rl.types import Batch

RESULTS = Path(__file__).parent / "results"
ACTIONS = 4
SPEC = EnvironmentSpec("Breakout", ObservationSpec((1, 84, 84), "uint8", 1 / 255), DiscreteActions(ACTIONS))
BASELINES: dict[str, Variant] = {
    "eager fp32 (tf32)": "fp32",
    "eager bf16 channels-last autocast": "bf16",
    "torch.compile bf16": "compiled",
}
OURS, OURS_EAGER = "ours", "ours, no graphs"
WARM_UPS = 8  # more than a graph's capture needs
Numbers = dict[str, Any]


def config_of(asked: argparse.Namespace, width: int, **more: Any) -> Config:
    """The recipe `atari` with this network and batch."""
    settings = {
        "network.width": width,
        "loss.batch_unrolls": asked.batch,
        "loss.unroll_steps": asked.observations - 1,
        "run.device": asked.device,
    }
    return override(recipes.atari(), {**settings, **more})


def batch_of(config: Config, device: torch.device) -> Batch:
    """Random pictures with a few ends of episodes; behaviour near uniform, as a new policy is. It came the way that real ones come."""
    layout, generator = layout_of(SPEC, family_of(SPEC.action), config), torch.Generator().manual_seed(0)
    batch = allocate(layout, config.loss.batch_unrolls, stacked=False)
    batch.observation.copy_(torch.randint(0, 256, batch.observation.shape, dtype=torch.uint8, generator=generator))
    batch.action.copy_(torch.randint(0, ACTIONS, batch.action.shape, generator=generator))
    batch.reward.copy_((torch.rand(batch.reward.shape, generator=generator) < 0.1).float())
    batch.behaviour.copy_(0.1 * torch.randn(batch.behaviour.shape, generator=generator))
    batch.terminated.copy_(torch.rand(batch.terminated.shape, generator=generator) < 0.01)
    batch.is_transition.fill_(True)
    batch.weight.fill_(1.0)
    batch.online[: max(1, config.loss.batch_unrolls // 8)] = True
    return DeviceBatch(layout, batch, device).copy_from(batch)


def plain(batch: Batch, discount: float) -> Unrolls:
    """The same batch for the baseline."""
    return Unrolls(
        batch.observation.contiguous(),
        batch.action,
        batch.reward,
        discount * (~batch.terminated).float(),
        batch.behaviour,
    )


class Way(NamedTuple):
    """One way to make a step."""

    name: str
    make: Callable[[], Callable[[], Any]]  # called when its turn comes: each has the card for itself
    bf16: bool
    surroundings: Callable[[], AbstractContextManager[None]]


def ways(asked: argparse.Namespace, width: int, device: torch.device) -> list[Way]:
    """All that are compared, on one batch."""
    config = config_of(asked, width)
    batch = batch_of(config, device)
    unrolls = plain(batch, config.loss.discount)

    def baseline(variant: Variant) -> Callable[[], Any]:
        learner = Baseline(width, ACTIONS, device, variant)
        return lambda: learner.update(unrolls)

    def ours(*, graphs: bool) -> Callable[[], Any]:
        learner = build_learner(override(config, {"run.graphs": graphs}), SPEC, None)
        return lambda: learner.update(batch, progress=0.0)

    found = [
        Way(name, partial(baseline, variant), variant != "fp32", generous)
        for name, variant in BASELINES.items()
        if asked.baselines and (variant != "compiled" or asked.compile)
    ]
    found.append(Way(OURS_EAGER, partial(ours, graphs=False), True, nullcontext))
    if device.type == "cuda":
        found.append(Way(OURS, partial(ours, graphs=True), True, nullcontext))
    return found


def measured(asked: argparse.Namespace, width: int, device: torch.device, card: Card) -> list[Numbers]:
    """A row for each way to make a step."""
    work, observations = work_of(width, ACTIONS), asked.batch * asked.observations
    rows = []
    for way in ways(asked, width, device):
        gc.collect()
        forget_memory(device)
        with way.surroundings():
            spent = times_of(way.make(), device, repeats=asked.repeats, warm_ups=asked.warm_ups)
        memory = peak_memory(device)
        rates = rates_of(work, observations, spent.median, card, bf16=way.bf16)
        times = {"ms": spent.median, "ms_mean": spent.mean, "ms_slowest": spent.slowest}
        rows.append({"width": width, "step": way.name, **times, **rates, **memory._asdict()})
    return rows


def rates_of(work: Work, observations: int, ms: float, card: Card, *, bf16: bool) -> Numbers:
    """What a step of `ms` milliseconds comes to."""
    tflops = observations * work.operations / (1e9 * ms)
    moved = least_bytes(work, observations, bf16=bf16)
    return {
        "frames_per_second": 1e3 * observations / ms,
        "tflops": tflops,
        "share_of_matrix_rate": tflops / card.matrix_tflops,
        "least_bytes": moved,
        "share_of_copy_rate": moved / (1e6 * ms) / card.copy_gb_s,
    }


def table_of(rows: list[Numbers], card: Card) -> Table:
    """As it is printed."""
    title = f"train step; this card: {card.matrix_tflops:,.0f} TFLOP/s bf16, {card.copy_gb_s:,.0f} GB/s"
    caption = (
        "operations: 3 × forward of convolutions and linear layers. Least bytes: inputs, outputs and gradients of convolutions, "
        "linear layers and pools once a pass, and the optimiser's vectors; a program moves more. Memory: peak allocated."
    )
    table = Table(title=title, caption=caption)
    for name in (
        "width",
        "step",
        "ms",
        "training frames/s",
        "TFLOP/s",
        "of bf16 rate",
        "least GB",
        "of copy rate",
        "memory GB",
    ):
        table.add_column(name, justify="left" if name == "step" else "right")
    for row in rows:
        memory = "–" if row["allocated"] is None else f"{row['allocated'] / 1e9:.2f}"
        table.add_row(
            f"×{row['width']}",
            row["step"],
            f"{row['ms']:.2f}",
            f"{row['frames_per_second']:,.0f}",
            f"{row['tflops']:.1f}",
            f"{row['share_of_matrix_rate']:.1%}",
            f"{row['least_bytes'] / 1e9:.1f}",
            f"{row['share_of_copy_rate']:.1%}",
            memory,
        )
    return table


def profiled(asked: argparse.Namespace, width: int, device: torch.device, path: Path, console: Console) -> None:
    """Where the time of ours goes, by kernel and by kind; the whole table into a file."""
    from benchmarks.gpu_profile import profile, summary  # noqa: PLC0415 - the profiler is loaded where it is asked for

    config = config_of(asked, width, **{"run.graphs": False})  # the same kernels, each with its own launch
    learner, batch = build_learner(config, SPEC, None), batch_of(config, device)
    _warm(learner, batch, asked.warm_ups)
    kernels = profile(lambda: learner.update(batch, progress=0.0), device, steps=min(10, asked.repeats))
    place = path.with_name(f"{path.stem}-x{width}{path.suffix}")
    text = summary(kernels, f"ours, ×{width}, {asked.batch} × {asked.observations}")
    place.write_text(text.whole)
    console.print(text.short, highlight=False)
    console.print(f"top 40: {place}")


def _warm(learner: Learner, batch: Batch, count: int) -> None:
    for _ in range(count):
        learner.update(batch, progress=0.0)


def learner_alone(asked: argparse.Namespace, width: int) -> Alone:
    """Updates with nothing beside them, for seconds: a card at its limit of power is a few per cent slower than in a burst."""
    config, device = config_of(asked, width), device_of(asked.device)
    learner, batch = build_learner(config, SPEC, None), batch_of(config, device)
    ms = sustained(
        lambda: learner.update(batch, progress=0.0), device, seconds=asked.alone_seconds, warm_ups=asked.warm_ups
    )
    del learner, batch
    gc.collect()
    forget_memory(device)
    return Alone(ms)


def runs(asked: argparse.Namespace, width: int, console: Console) -> list[Numbers]:
    """The sections that act, too; compared with updates on one batch, one after the other for as long."""
    if not asked.end_to_end and not asked.members:
        return []
    noise = learner_alone(asked, width)
    small = {"replay.capacity_steps": asked.capacity, "run.log_every_s": 0.5 if asked.smoke else 2.0}
    found = []
    if asked.end_to_end:
        config = config_of(
            asked, width, **small, **{"environment.slots": asked.slots, "replay.fraction": asked.fraction}
        )
        found.append(end_to_end(config, asked.end_to_end, noise, asked.alone_seconds))
    if asked.members:
        shared = {"environment.slots": asked.member_slots, "replay.fraction": asked.member_fraction}
        config = config_of(asked, width, **small, **shared, **{"optimiser.schedule": "constant"})
        found.append(members(config, asked.members, asked.seconds, noise, asked.alone_seconds))
    for numbers in found:
        console.print(described(numbers))
    return found


def described(numbers: Numbers) -> Table:
    """A section's numbers, one a line."""
    table = Table("", "", title=numbers["section"], show_header=False)
    for name, value in numbers.items():
        if name == "section" or isinstance(value, list | dict):
            continue
        share = isinstance(value, float) and re.search("share|busy|wait|ratio", name)
        shown = (
            "–"
            if value is None
            else f"{value:.1%}"
            if share
            else f"{value:,.2f}"
            if isinstance(value, float)
            else f"{value:,}"
        )
        table.add_row(name.replace("_", " "), shown)
    return table


def parsed() -> argparse.Namespace:
    """Flags; a smoke makes everything small that was not given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+")
    parser.add_argument("--batch", type=int, help="unrolls; 128")
    parser.add_argument("--observations", type=int, help="of each unroll; 20")
    parser.add_argument("--repeats", type=int, help="steps that are timed; 30")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--compile", action="store_true", help="also torch.compile, which takes up to minutes to compile"
    )
    parser.add_argument("--no-baselines", dest="baselines", action="store_false", help="only ours")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="kernels of ours by time, FILE-xWIDTH")
    parser.add_argument("--end-to-end", type=float, default=0.0, metavar="SECONDS", help="a whole run on Breakout")
    parser.add_argument("--slots", type=int, help="of that run; 256")
    parser.add_argument("--fraction", type=float, help="replayed share of its batches; 0.875")
    parser.add_argument("--capacity", type=int, help="of its replay, in steps; 1,000,000")
    parser.add_argument("--alone-seconds", type=float, help="of updates alone, to compare with; 10")
    parser.add_argument("--members", type=int, default=0, help="a sweep of so many members, a process each")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the sweep, after its start")
    parser.add_argument("--member-slots", type=int, help="of each member; 32")
    parser.add_argument("--member-fraction", type=float, help="replayed share of their batches; 0.96")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    full = {"widths": [1, 4], "batch": 128, "observations": 20, "repeats": 30, "slots": 256, "capacity": 1_000_000}
    small = {"widths": [1], "batch": 2, "observations": 3, "repeats": 3, "slots": 4, "capacity": 2_000}
    full |= {"fraction": 0.875, "member_fraction": 0.96, "member_slots": 32, "warm_ups": WARM_UPS}
    full["alone_seconds"], small["alone_seconds"] = 10.0, 0.1
    small |= {"fraction": 0.5, "member_fraction": 0.5, "member_slots": 2, "warm_ups": 1}
    for name, value in (small if asked.smoke else full).items():
        if getattr(asked, name, None) is None:
            setattr(asked, name, value)
    return asked


def main() -> None:
    """All that was asked for."""
    asked, console = parsed(), Console(width=150)
    device = device_of(asked.device)
    card = card_of(device, smoke=asked.smoke)
    here = where(device)
    console.print(f"{here['device']}, {here['cores']} cores, torch {here['torch']}, {here['date']}", highlight=False)
    rows = [row for width in asked.widths for row in measured(asked, width, device, card)]
    console.print(table_of(rows, card))
    if asked.profile:
        for width in asked.widths:
            profiled(asked, width, device, asked.profile, console)
    gc.collect()
    forget_memory(device)
    found = [numbers for width in asked.widths for numbers in runs(asked, width, console)]
    slug = re.sub(r"[^a-z0-9]+", "-", here["device"].lower()).strip("-")
    path = asked.json or (None if asked.smoke else RESULTS / f"{here['date'][:10]}-gpu-train-{slug}.json")
    if path is not None:
        flags = {name: str(value) if isinstance(value, Path) else value for name, value in vars(asked).items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {**here, "flags": flags, "card": vars(card), "steps": rows, "runs": found})
        console.print(f"written: {path}")


if __name__ == "__main__":
    main()
