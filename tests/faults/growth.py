"""A long run in a process of its own, and what that process holds on its way.

    python -m tests.faults.growth RUNTIME UPDATES RUN_DIR

Prints a list of [update, memory, shared memory, files, threads] as JSON.
"""

import json
import sys
from pathlib import Path

from laser_rl.training.directory import RunDirectory
from laser_rl.training.launch import prepare, run
from tests.faults.measure import held
from tests.training.small import small

SAMPLES = 100


def settings(runtime, updates):
    """The replay is full after a hundred updates; rows of metrics and checkpoints are written all the way."""
    return small(
        "laser/Catch",
        runtime=runtime,
        steps=10**9,
        unroll_steps=2,
        batch_unrolls=4,
        fraction=0.75,
        capacity_steps=200,
        hidden=(8,),
        log_every_updates=max(1, updates // SAMPLES),
        log_every_s=0.05,
        checkpoint_every_steps=updates // 4,
        evaluate_episodes=1,
    )


class Samples:
    """A callback: ends the run after so many updates."""

    def __init__(self, updates):
        self.updates, self.taken = updates, []

    def __call__(self, progress):
        """At every row of metrics."""
        last = progress.update >= self.updates
        if last or not self.taken or progress.update >= self.taken[-1][0] + self.updates / SAMPLES:
            self.taken.append((progress.update, *held()))
        return not last


def main(runtime, updates, path):
    """One run."""
    config, samples = settings(runtime, updates), Samples(updates)
    directory = RunDirectory(path, config)
    trainer = prepare(config, directory, sinks=[directory.log], callbacks=[samples])
    [member] = trainer.group.members
    try:
        run(trainer, evaluate_at_end=False)
    finally:
        member.actor.environments.close()
        directory.close()
    assert member.replay.steps == 200
    print(json.dumps(samples.taken))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
