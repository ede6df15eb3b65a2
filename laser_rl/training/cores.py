"""Cores of the machine, shared by the processes of a sweep."""

import os

from laser_rl.training.settings import SweepConfig


def cores_of_each(processes: int) -> int:
    """How many cores each of so many processes has, rounded up: processes that learn leave theirs to the emulators of others.

    >>> cores_of_each(10**6)
    1
    """
    return -(-len(os.sched_getaffinity(0)) // processes)


def within(sweep: SweepConfig, cores: int) -> SweepConfig:
    """For one of several processes: emulators that would take all cores of the machine have so many threads, or workers.

    >>> environment = within(SweepConfig(grid={"seed": (0, 1)}), 2).base.environment
    >>> environment.atari.threads, environment.workers
    (2, 2)
    """
    environment = sweep.base.environment
    atari = environment.atari.model_copy(update={"threads": environment.atari.threads or cores})
    workers = environment.workers or min(cores, environment.slots)
    environment = environment.model_copy(update={"atari": atari, "workers": workers})
    return sweep.model_copy(update={"base": sweep.base.model_copy(update={"environment": environment})})
