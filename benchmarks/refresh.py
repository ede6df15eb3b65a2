"""What it costs to refresh the states of replayed unrolls, and how fresh they are: two ways, against no refresh at all.

    python -m benchmarks.refresh [--device cuda]
    python -m benchmarks.refresh --graphs FILE.csv      # on a card: an update launched operation by operation, and as one CUDA graph

"carried": the learner keeps the state that its own forward pass reached at the end of the unroll (what the package does). "second pass":
after the update the new parameters run over the unroll once more, as a separate replayer would. Both are compared with updates on the same
batches that carry nothing, interleaved, so that a busy machine is busy for all of them. Freshness: the distance between the state that a
lane starts from and the one that the present parameters give when they run the episode from its first row, relative to its size.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.recurrent import write
from laser_rl import LASER
from laser_rl.agent.memory_state import Recurrent
from laser_rl.replay.memory_layout import DeviceBatch
from laser_rl.training.build import Member, batch_of
from laser_rl.types import Batch, Inputs

CASES = {
    "vector, LSTM 64, T 10": (
        "laser/TMaze-2,laser/TMaze-5,laser/TMaze-15,laser/TMaze-40",
        "cartpole",
        {
            "network.memory": "lstm",
            "network.memory_size": 64,
            "loss.unroll_steps": 10,
            "loss.batch_unrolls": 64,
            "environment.slots": 16,
        },
    ),
    "grid, PreCo 128, T 20": ("suite:grid", "laser-multitask", {}),
    "grid, IMPALA-deep, PreCo 256, T 79": (
        "suite:grid",
        "laser-multitask",
        {"network.torso": "impala", "network.memory_size": 256, "loss.unroll_steps": 79, "loss.batch_unrolls": 16},
    ),
}

# Only for `--graphs`.
ON_CARDS = {
    "first person, IMPALA-deep bf16, PreCo 256, T 20": (
        "suite:doom",
        "laser-multitask",
        {"network.torso": "impala", "network.memory_size": 256, "network.precision": "bf16", "environment.slots": 28},
    ),
}
LARGE = "grid, IMPALA-deep, PreCo 256, T 79"


class Nothing(Recurrent):
    """Starts every column from what the batch says."""

    def unroll(self, batch: Batch):  # noqa: D102
        output, _ = self._network(batch.inputs, batch.state, auxiliary=self._network.pixel_control is not None)
        return output, batch


class SecondPass(Recurrent):
    """The state that is carried comes from another pass with the parameters after the update."""

    def again(self, batch: Batch, start: torch.Tensor) -> None:
        """Over rows 0 to T-1."""
        rows = Inputs(*(part[:-1] for part in batch.inputs))
        with torch.no_grad():
            self._carried = self._network(rows, start)[1][-1]


def synchronised(device: torch.device) -> float:
    """Now, once the device has caught up."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def measure(name: str, device: str, updates: int) -> dict[str, float]:
    """Median seconds of each, and the freshness of both."""
    environment, recipe, settings = CASES[name]
    more = {
        "run.device": device,
        "run.graphs": False,
        "run.log_every_updates": 10**6,
    }  # a graph would hold one of the ways
    agent = LASER(environment, recipe=recipe, **{**settings, **more})
    agent.learn(10_000)
    member, learner = agent.member, agent.member.learner
    kept, batch = learner.state_dict(), batch_of(member)
    carried, second, nothing = learner.recurrent, SecondPass(learner.network), Nothing(learner.network)
    times: dict[str, list[float]] = {name: [] for name in ("nothing", "carried", "second pass", "forward")}
    while len(times["forward"]) < updates:
        taken = member.actor.step()
        if taken.unrolls is None:
            continue
        member.mixer.offer(taken.unrolls)
        while member.mixer.ready():
            member.mixer.fill(batch)
            here = DeviceBatch(member.layout, batch, learner.device).copy_from(batch)
            for way, recurrent in (("nothing", nothing), ("carried", carried), ("second pass", second)):
                learner.recurrent = recurrent
                start = second._carried if len(second._lost) else here.state  # noqa: SLF001
                begin = synchronised(learner.device)
                learner.update(here, progress=0.0)
                if isinstance(recurrent, SecondPass):
                    second.again(here, torch.where(here.carried[:, None], start, here.state))
                times[way].append(synchronised(learner.device) - begin)
            begin = synchronised(learner.device)
            with torch.no_grad():
                learner.network(here.inputs, here.state)
            times["forward"].append(synchronised(learner.device) - begin)
    learner.load_state_dict(kept.tensors, kept.numbers)
    agent.close()
    return {way: statistics.median(found) for way, found in times.items()}


def batches_of(member: Member, count: int) -> list[DeviceBatch]:
    """Batches of play, on the learner's device."""
    batch, found = batch_of(member), list[DeviceBatch]()
    while len(found) < count:
        taken = member.actor.step()
        if taken.unrolls is None:
            continue
        member.mixer.offer(taken.unrolls)
        while member.mixer.ready():
            member.mixer.fill(batch)
            found.append(DeviceBatch(member.layout, batch, member.learner.device).copy_from(batch))
    return found


def with_graphs(name: str, updates: int) -> dict[str, float | str]:
    """Milliseconds of an update in turns (medians), and how far the parameters are apart after the same updates."""
    from laser_rl.cuda.graphs import CudaGraphs  # noqa: PLC0415 - a CPU has none

    environment, recipe, settings = (CASES | ON_CARDS)[name]
    more = {"run.device": "cuda", "run.log_every_updates": 10**6}
    with LASER(environment, recipe=recipe, **{**settings, **more}) as agent:
        agent.learn(10_000)
        learner = agent.member.learner
        batches, kept = batches_of(agent.member, 8), learner.state_dict()
        times: dict[bool, list[float]] = {False: [], True: []}
        ends: dict[bool, torch.Tensor] = {}
        for turn in range(6):
            graphs = turn % 2 == 1
            learner.load_state_dict(kept.tensors, kept.numbers)
            learner.launch_with(CudaGraphs(learner.device), graphs=graphs)
            for number in range(8 + updates):  # the first ones compile, tune and record
                begin = synchronised(learner.device)
                learner.update(batches[number % len(batches)], progress=0.0)
                if number >= 8:
                    times[graphs].append(synchronised(learner.device) - begin)
                if number == 15:  # both after the same ones
                    ends[graphs] = learner.flat.value.clone()
        apart = (ends[True] - ends[False]).abs().max() / ends[False].abs().max()
    one, other = (1e3 * statistics.median(times[graphs]) for graphs in (False, True))
    return {"network": name, "launched_ms": one, "graph_ms": other, "factor": one / other, "apart": float(apart)}


def freshness(second_pass: bool, updates: int, seed: int = 0) -> tuple[float, float]:
    """Relative distance of a lane's state from the exact one after several unrolls: mean over lanes, and the 90th percentile."""
    environment, recipe, settings = CASES["vector, LSTM 64, T 10"]
    agent = LASER(
        environment,
        recipe=recipe,
        **{**settings, "run.device": "cpu", "run.seed": seed, "optimiser.schedule": "constant"},
    )
    agent.learn(30_000)
    member, learner = agent.member, agent.member.learner
    if second_pass:
        learner.recurrent = SecondPass(learner.network)
    recurrent, batch, found = learner.recurrent, batch_of(member), list[float]()
    history: dict[int, list[Inputs]] = {}
    while updates:
        taken = member.actor.step()
        if taken.unrolls is None:
            continue
        member.mixer.offer(taken.unrolls)
        while member.mixer.ready() and updates:
            member.mixer.fill(batch)
            updates -= 1
            start = recurrent._carried.clone() if len(recurrent._lost) else batch.state  # noqa: SLF001
            start = torch.where(batch.carried[:, None], start, batch.state)
            for column in torch.nonzero(~batch.online)[:, 0].tolist():
                own = Inputs(*(part[:, column : column + 1].clone() for part in batch.inputs))
                if not batch.carried[column]:
                    history[column] = []
                elif history.get(column):
                    before = Inputs(
                        *(torch.cat([part[:-1] for part in parts]) for parts in zip(*history[column], strict=True))
                    )
                    with torch.no_grad():
                        exact = learner.network(before, learner.network.initial_state(1))[1][-1, 0]
                    found.append(float((start[column] - exact).norm() / exact.norm().clamp(min=1e-6)))
                if column in history:  # seen from its beginning
                    history[column].append(own)
            learner.update(batch, progress=0.0)
            if isinstance(recurrent, SecondPass):
                recurrent.again(batch, start)
    agent.close()
    return float(np.mean(found)), float(np.percentile(found, 90))


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--graphs", type=Path, metavar="FILE")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.graphs is not None:
        rows = []
        for name in CASES | ON_CARDS:
            rows.append(
                {"card": torch.cuda.get_device_name(), "torch": torch.__version__, **with_graphs(name, asked.updates)}
            )
            print(rows[-1], flush=True)
            write(asked.graphs, rows)
        return
    share: Callable[[float], str] = lambda x: f"{100 * x:+.1f} %"  # noqa: E731
    print(
        "| network | update, ms | forward pass, share of it | carried costs | second pass costs |\n|---|---|---|---|---|"
    )
    for name in CASES:
        if name == LARGE and asked.device == "cpu":
            continue  # minutes for every update
        found = measure(name, asked.device, asked.updates)
        base = found["nothing"]
        costs = [share(found[way] / base - 1) for way in ("carried", "second pass")]
        print(
            f"| {name} | {1e3 * base:.1f} | {100 * found['forward'] / base:.0f} % | {costs[0]} | {costs[1]} |",
            flush=True,
        )
    print("\n| state | distance from the exact one, mean | 90th percentile |\n|---|---|---|")
    for way in (False, True):
        mean, high = freshness(way, 4 * asked.updates)
        print(f"| {'second pass' if way else 'carried'} | {mean:.4f} | {high:.4f} |", flush=True)


if __name__ == "__main__":
    main()
