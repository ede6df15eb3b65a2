"""One learner on several devices: what two processes of this machine gain, measured; and what GPUs would, as a calculation.

    python benchmarks/data_parallel.py calculate              # the table of docs/guides/multi-gpu.md; nothing is measured
    python benchmarks/data_parallel.py measure --rounds 5     # one process against two on this machine's cores, in turn

A measurement of two processes on a CPU says that sharing batches and meeting in an update work and what they cost there. It says nothing
about GPUs: gloo over loopback is another thing than NCCL over NVLink. Only one GPU was at hand, so nothing was measured on two.
"""

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

import torch

from laser_rl import recipes
from laser_rl.config import override
from laser_rl.gpu_streams import own_stream
from laser_rl.training.build import Member, learn
from laser_rl.training.build_group import build_group
from laser_rl.training.member_group import PinnedBatch
from laser_rl.training.settings import SweepConfig
from laser_rl.types import Batch

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Assumed:
    """What the calculation goes by; every field is a flag.

    Attributes:
        parameters: of the network; ×4 with 18 actions.
        step_ms: an update of 128 unrolls at ×4 on one H200, without graphs (benchmarks/README.md, measured).
        fixed_ms: of that what does not shrink with the batch: the optimiser reads and writes 26 vectors of the parameters' size at
            4.8 TB/s (calculated).
        floor_ms: below which the host, which launches without graphs, would be the limit: an update at ×1 without graphs, of which the
            card's part is 10.2 ms (ADR 0020, measured; the host's own part is at most that, so this is pessimistic).
        bus_gb_s: of an all-reduce over NVLink; 450 GB/s in each direction is the hardware's, about half of it what is assumed of
            messages of tens of megabytes (not measured).
        meeting_us: of each small sum (not measured).
        meetings: small sums in an update.
    """

    parameters: int = 5_522_259
    step_ms: float = 30.4
    fixed_ms: float = 0.12
    floor_ms: float = 11.6
    bus_gb_s: float = 200.0
    meeting_us: float = 30.0
    meetings: int = 5


def reduce_ms(devices: int, assumed: Assumed) -> float:
    """A ring passes 2(n − 1)/n of the gradient through each link.

    >>> round(reduce_ms(2, Assumed(parameters=25_000_000, bus_gb_s=100.0)), 6)
    1.0
    """
    return 2 * (devices - 1) / devices * assumed.parameters * FLOAT_BYTES / assumed.bus_gb_s * 1e-6


def step_ms(devices: int, batches: float, assumed: Assumed) -> float:
    """An update of `batches` times 128 unrolls, shared by so many devices.

    >>> step_ms(1, 1, Assumed())
    30.4
    """
    work = (assumed.step_ms - assumed.fixed_ms) * batches / devices + assumed.fixed_ms
    if devices == 1:
        return work
    return max(work, assumed.floor_ms) + reduce_ms(devices, assumed) + 1e-3 * assumed.meeting_us * assumed.meetings


def table(assumed: Assumed) -> str:
    """Markdown: the same batch over more devices, and a batch that grows with them."""
    lines = [
        (
            "| GPUs | sum of the gradient, ms | the same batch of 128: ms an update | times one GPU "
            "| 128 unrolls each: ms an update | times one GPU |"
        ),
        "|---|---|---|---|---|---|",
    ]
    for devices in (1, 2, 4, 8):
        same, grown = step_ms(devices, 1, assumed), step_ms(devices, devices, assumed)
        gain, more = step_ms(1, 1, assumed) / same, devices * step_ms(1, 1, assumed) / grown
        reduced = 0.0 if devices == 1 else reduce_ms(devices, assumed)
        lines.append(f"| {devices} | {reduced:.2f} | {same:.1f} | {gain:.2f} | {grown:.1f} | {more:.2f} |")
    return "\n".join(lines)


@contextmanager
def built(devices: int, columns: int, width: int) -> Iterator[Member]:
    """A member with two layers of this width, one thread a process."""
    settings = {
        "run.device": "cpu",
        "run.devices": devices,
        "run.threads": 1,
        "batch_unrolls": columns,
        "fraction": 0.875,
        "capacity_steps": 4_000,
        "hidden": (width, width),
    }
    sweep = SweepConfig(base=override(recipes.cartpole("laser/Catch"), settings))
    [member] = build_group(sweep).members
    try:
        yield member
    finally:
        member.close()


def random_batch(batch: Batch) -> None:
    """Anything will do; every step is learned from."""
    generator = torch.Generator().manual_seed(0)
    batch.observation.copy_(torch.rand(batch.observation.shape, generator=generator))
    batch.reward.copy_(torch.randn(batch.reward.shape, generator=generator))
    for always in (batch.is_transition, batch.online):
        always.fill_(value=True)
    batch.weight.fill_(1.0)


def seconds(member: Member, crate: PinnedBatch, updates: int) -> float:
    """Of one update."""
    begin = time.perf_counter()
    for _ in range(updates):
        crate.fill(lambda batch: None)
        with crate.read() as batch:
            learn(member, batch, progress=0.0)
    return (time.perf_counter() - begin) / updates


def measure(columns: int, width: int, rounds: int, updates: int) -> str:
    """One process and two, in turn within one run: what a busy machine does, it does to both."""
    with built(1, columns, width) as one, built(2, columns, width) as two:
        members = [(one, PinnedBatch.of(one, own_stream(one.learner.device, "uploading"))) for one in (one, two)]
        for member, crate in members:
            crate.fill(random_batch)
            seconds(member, crate, 3)
        found = [[seconds(member, crate, updates) for member, crate in members] for _ in range(rounds)]
        size = one.learner.flat.value.numel()
    times = [statistics.median(column) * 1e3 for column in zip(*found, strict=True)]
    ratios = sorted(alone / both for alone, both in found)
    return (
        f"{columns} unrolls of {one.layout.steps} steps, {size:,} parameters, one thread a process, "
        f"median of {rounds} rounds of {updates} updates:\n"
        f"one process {times[0]:.1f} ms an update, two {times[1]:.1f} ms; {statistics.median(ratios):.2f} times as fast "
        f"(from {ratios[0]:.2f} to {ratios[-1]:.2f})"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one or the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    calculate = kinds.add_parser("calculate")
    for field in fields(Assumed):
        kind = int if isinstance(field.default, int) else float
        calculate.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)
    measured = kinds.add_parser("measure")
    for name, default in (("columns", 64), ("width", 1024), ("rounds", 5), ("updates", 10)):
        measured.add_argument(f"--{name}", type=int, default=default)
    asked = vars(parser.parse_args(arguments))
    print(table(Assumed(**asked)) if asked.pop("kind") == "calculate" else measure(**asked))


if __name__ == "__main__":
    main()
