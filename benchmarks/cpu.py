"""What a run costs on one core: our single-file example, the package and stable-baselines3's PPO at the same work, in turns.

    python -m benchmarks.cpu peers --csv benchmarks/results/2026-11-20-cpu-peers.csv    # or: make bench-peers

The same work: as many environment steps, as many updates, as many rows in each, one network for policy and value, Adam. LASER learns
from each row about eight times, by replay; PPO too, by eight epochs. Each run has a process of its own with one thread, and trains for a
short while before the clock begins: imports and first calls are not counted. Sides take turns, and ratios are within a round.
"""

import argparse
import contextlib
import csv
import io
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
ARMS = ("example", "package", "sb3")


class Task(NamedTuple):
    """One row of the table."""

    id: str
    steps: int
    slots: int
    batch: int  # unrolls of 20 steps; one in eight is online
    hidden: int
    epochs: int = 8
    pictures: bool = False


TASKS = {
    "cartpole": Task("CartPole-v1", 25_000, 4, 8, 64),
    "deepsea": Task("laser/DeepSea-10", 25_000, 4, 8, 64),
    "minatar": Task("MinAtar/Breakout-v1", 25_600, 16, 32, 128, pictures=True),
}
UNROLL, FRACTION, RATE, CHANNELS = 20, 0.875, 2e-3, 16


def gymnasium_id(name: str) -> str:
    """The task under an id that every side can make; ours are not registered."""
    import gymnasium  # noqa: PLC0415

    if name.startswith("laser/"):
        from laser_rl.envs.puzzles import task_of  # noqa: PLC0415
        from laser_rl.envs.tasks import TaskEnv  # noqa: PLC0415

        gymnasium.register(name, entry_point=lambda **_: TaskEnv(task_of(name, {})))
    elif name.startswith("MinAtar/"):
        from laser_rl.envs.construct import constructor  # noqa: PLC0415

        made = f"laser/{name.replace('/', '-')}"
        gymnasium.register(made, entry_point=lambda **_: constructor(name, {})())
        return made
    return name


def example(task: Task) -> Callable[[int], int]:
    """The single file; for pictures its network is exchanged for the convolution that the others have, and nothing else."""
    import torch  # noqa: PLC0415

    sys.path.insert(0, str(ROOT / "examples"))
    import single_file_laser as single  # noqa: PLC0415

    name = gymnasium_id(task.id)
    if task.pictures:
        from torch import nn  # noqa: PLC0415

        class Network(nn.Module):
            def __init__(self, inputs: int, actions: int, hidden: int) -> None:
                super().__init__()
                planes = inputs // 100
                self.shape = (10, 10, planes) if _last(name) else (planes, 10, 10)
                self.convolution, self.linear = nn.Conv2d(planes, CHANNELS, 3), nn.Linear(64 * CHANNELS, hidden)
                self.policy, self.value = nn.Linear(hidden, actions), nn.Linear(hidden, 1)

            def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                picture = observation.reshape(-1, *self.shape)
                picture = picture.permute(0, 3, 1, 2) if _last(name) else picture
                x = torch.relu(self.linear(torch.relu(self.convolution(picture)).flatten(1)))
                x = x.unflatten(0, observation.shape[:-1])
                return self.policy(x), self.value(x).squeeze(-1)

        single.Network = Network
    settings = single.Settings(
        env=name,
        slots=task.slots,
        unroll=UNROLL,
        batch=task.batch,
        replay_fraction=FRACTION,
        learning_rate=RATE,
        hidden=task.hidden,
    )
    updates = 0

    class Learner(single.Learner):
        def learn(self) -> None:
            nonlocal updates
            super().learn()
            updates = self.updates

    single.Learner = Learner

    def run(steps: int) -> int:
        single.train(single.dataclasses.replace(settings, steps=steps))
        return updates

    return run


def _last(name: str) -> bool:
    import gymnasium  # noqa: PLC0415

    shape = gymnasium.make(name).observation_space.shape
    return shape is not None and shape[0] == shape[1]


def package(task: Task) -> Callable[[int], int]:
    """`LASER(env).learn(steps)` with the example's settings."""
    from laser_rl.api import LASER  # noqa: PLC0415

    settings = {
        "run.threads": 1,
        "run.device": "cpu",
        "run.runtime": "serial",
        "environment.slots": task.slots,
        "loss.unroll_steps": UNROLL,
        "loss.batch_unrolls": task.batch,
        "loss.trust_bound": 0.03,
        "loss.reward_scale": 0.1,
        "loss.entropy_cost": 0.0,
        "replay.fraction": FRACTION,
        "replay.capacity_steps": 100_000,
        "optimiser.learning_rate": RATE,
        "optimiser.schedule": "constant",
        "network.hidden": (task.hidden,) if task.pictures else (task.hidden, task.hidden),
    }

    def run(steps: int) -> int:
        with contextlib.closing(LASER(task.id, **settings, **{"run.steps": steps})) as agent:
            agent.learn(steps)
            return int(agent.member.learner.version)

    return run


def sb3(task: Task) -> Callable[[int], int]:
    """PPO with as many updates of as many rows: a rollout of four batches, each learned from in eight epochs."""
    import torch  # noqa: PLC0415
    from stable_baselines3 import PPO  # noqa: PLC0415
    from stable_baselines3.common.env_util import make_vec_env  # noqa: PLC0415
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415

    name, rows = gymnasium_id(task.id), UNROLL * task.batch

    class Torso(BaseFeaturesExtractor):
        def __init__(self, space: Any) -> None:
            super().__init__(space, task.hidden)
            size, self.last = int(torch.tensor(space.shape).prod()), task.pictures and space.shape[0] == space.shape[1]
            planes = size // 100
            layers: list[nn.Module] = [nn.Conv2d(planes, CHANNELS, 3), nn.ReLU(), nn.Flatten()]
            layers += [nn.Linear(64 * CHANNELS, task.hidden), nn.ReLU()]
            if not task.pictures:
                layers = [nn.Flatten(), nn.Linear(size, task.hidden), nn.Tanh()]
                layers += [nn.Linear(task.hidden, task.hidden), nn.Tanh()]
            self.layers = nn.Sequential(*layers)

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            seen = observation.float().permute(0, 3, 1, 2) if self.last else observation.float()
            out: torch.Tensor = self.layers(seen)
            return out

    def run(steps: int) -> int:
        envs = make_vec_env(name, n_envs=task.slots, seed=0)
        model = PPO(
            "MlpPolicy",
            envs,
            n_steps=4 * rows // task.slots,
            batch_size=rows,
            n_epochs=task.epochs,
            learning_rate=RATE,
            device="cpu",
            policy_kwargs={"features_extractor_class": Torso, "net_arch": [], "normalize_images": False},
        )
        model.learn(steps)
        envs.close()
        return 4 * model._n_updates  # noqa: SLF001 - it counts epochs, of four updates each

    return run


SIDES: dict[str, Callable[[Task], Callable[[int], int]]] = {"example": example, "package": package, "sb3": sb3}


def one(task: str, arm: str, steps: int) -> dict[str, Any]:
    """Train twice in this process, and time the second."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    run = SIDES[arm](TASKS[task])
    with contextlib.redirect_stdout(io.StringIO()):
        run(4 * UNROLL * TASKS[task].batch)
        begin, cpu = time.perf_counter(), time.process_time()
        updates = run(steps)
    seconds, busy = time.perf_counter() - begin, time.process_time() - cpu
    return {"seconds": round(seconds, 3), "cpu_seconds": round(busy, 3), "updates": updates}


def alone(*words: str) -> dict[str, Any]:
    """The same in a process of its own."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    found = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, **threads, "PYTHONPATH": found, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "benchmarks.cpu", "one", *words]
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    if ended.returncode:
        raise SystemExit(ended.stderr)
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer


def peers(tasks: list[str], arms: list[str], rounds: int) -> list[dict[str, Any]]:
    """All rounds of each task, the sides in turns; the side that begins changes from round to round."""
    rows = []
    for task in tasks:
        steps = TASKS[task].steps
        for turn in range(rounds):
            order = [arms[(turn + i) % len(arms)] for i in range(len(arms))]
            for arm in order:
                rows.append({"task": task, "arm": arm, "round": turn, "steps": steps, **alone(task, arm, str(steps))})
                print(json.dumps(rows[-1]), flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Medians, and the medians of the ratios within a round."""
    lines = ["| task | steps | side | updates | seconds | of the example |", "|---|---|---|---|---|---|"]
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        base = {row["round"]: float(row["seconds"]) for row in mine if row["arm"] == "example"}
        for arm in ARMS:
            runs = [row for row in mine if row["arm"] == arm]
            if not runs:
                continue
            ratio = statistics.median(float(row["seconds"]) / base[row["round"]] for row in runs) if base else 0.0
            seconds = statistics.median(float(row["seconds"]) for row in runs)
            lines.append(
                f"| {task} | {int(runs[0]['steps']):,} | {arm} | {runs[0]['updates']} | {seconds:.2f} | {ratio:.2f} |"
            )
    return "\n".join(lines)


def keep(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """As CSV, for `performance_report`."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """All sides, or one run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    all_of = commands.add_parser("peers")
    all_of.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    all_of.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    all_of.add_argument("--rounds", type=int, default=3)
    all_of.add_argument("--csv", type=Path)
    single = commands.add_parser("one")
    for name in ("task", "arm"):
        single.add_argument(name)
    single.add_argument("steps", type=int)
    arguments = parser.parse_args()
    if arguments.command == "one":
        print(json.dumps(one(arguments.task, arguments.arm, arguments.steps)))
        return
    rows = peers(arguments.tasks, arguments.arms, arguments.rounds)
    print(table(rows))
    if arguments.csv:
        keep(rows, arguments.csv)


if __name__ == "__main__":
    main()
