"""Where the time of a run on one core goes: CPU microseconds of each part, a step, for the tasks of `benchmarks.cpu`.

python -m benchmarks.cpu_parts --csv FILE
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.cpu import TASKS, UNROLL, keep, package
from laser_rl.agent import learner
from laser_rl.agent.actor import Actor
from laser_rl.agent.dense import Dense
from laser_rl.agent.memory_state import Recurrent
from laser_rl.agent.parameters import Optimiser
from laser_rl.agent.policy import Policy
from laser_rl.envs.slot import SerialEnvironments
from laser_rl.envs.tasks import TaskEnvironments
from laser_rl.replay.mixer import Mixer

# Where each part begins, and its name; a part within another is taken from that.
WATCHED: list[tuple[Any, str, str, str | None]] = [
    (Actor, "step", "recording rows", None),
    (Policy, "act", "policy", "recording rows"),
    (SerialEnvironments, "step", "environments", "recording rows"),
    (TaskEnvironments, "step", "environments", "recording rows"),
    (Mixer, "offer", "into the replay", None),
    (Mixer, "fill", "batches", None),
    (learner.Learner, "update", "statistics and rest of an update", None),
    (Recurrent, "unroll", "forward", "statistics and rest of an update"),
    (Dense, "forward", "forward", "statistics and rest of an update"),
    (learner, "laser_loss", "loss", "statistics and rest of an update"),
    (learner, "numpy_loss", "loss", "statistics and rest of an update"),
    (torch.autograd, "grad", "backward", "statistics and rest of an update"),
    (Dense, "backward", "backward", "statistics and rest of an update"),
    (Optimiser, "step", "optimiser", "statistics and rest of an update"),
]
PARTS = tuple(dict.fromkeys(name for _, _, name, _ in WATCHED))


def watch(seconds: Counter[str], place: Any, function: str, part: str, around: str | None) -> None:
    """Count the CPU seconds of a function for its part."""
    plain: Callable[..., Any] = getattr(place, function)

    def timed(*arguments: Any, **named: Any) -> Any:
        begin = time.thread_time()
        try:
            return plain(*arguments, **named)
        finally:
            spent = time.thread_time() - begin
            seconds[part] += spent
            if around is not None:
                seconds[around] -= spent

    setattr(place, function, timed)


def main() -> None:
    """All tasks, in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seconds, rows = Counter[str](), []
    for watched in WATCHED:
        watch(seconds, *watched)
    for name, task in TASKS.items():
        run = package(task)
        run(4 * UNROLL * task.batch)
        seconds.clear()
        begin = time.thread_time()
        run(task.steps // 2)
        whole = time.thread_time() - begin
        seconds["all else"] = whole - sum(seconds[part] for part in PARTS)
        for part in (*PARTS, "all else"):
            cost = 1e6 * seconds[part] / (task.steps // 2)
            rows.append(
                {"task": name, "part": part, "us_a_step": round(cost, 2), "share": round(seconds[part] / whole, 3)}
            )
            print(rows[-1])
    if arguments.csv:
        keep(rows, arguments.csv)


if __name__ == "__main__":
    main()
