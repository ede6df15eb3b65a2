"""Sweeps on a cluster, for tests: small ones, and what identifies their parameters."""

import contextlib
import hashlib
import os
import signal
import time

from laser_rl.cluster.calls import ray
from laser_rl.cluster.launch import on_cluster as elsewhere
from laser_rl.cluster.launch import run_cluster
from laser_rl.training.directory import RunDirectory
from laser_rl.training.launch import train
from laser_rl.training.settings import ClusterSettings, SweepConfig
from tests.training.small import small

RATES = (5e-4, 1e-3, 4e-3)


def small_sweep(environment="laser/Catch", *, rates=RATES, share="shared", pbt=None, runtime="local", **settings):
    base = small(environment, **{"run.runtime": runtime, "capacity_steps": 6_000, **settings})
    return SweepConfig(base=base, grid={"learning_rate": list(rates)}, stack="off", share=share, pbt=pbt)


def finished(config, path, cluster=None, **more):
    """Run to the end; on a cluster if one is given."""
    directory = RunDirectory(path, config)
    try:
        return train(config, directory, sinks=[directory.log], elsewhere=cluster and elsewhere(cluster), **more)
    finally:
        directory.close()


def on_cluster(config, path, runners=1, **more):
    directory = RunDirectory(path, config)
    try:
        return run_cluster(ClusterSettings(runners=runners), config, directory, sinks=[directory.log], **more)
    finally:
        directory.close()


def hashes(end):
    """Of each member's parameters."""
    return [
        hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in one.network.parameters())).hexdigest()
        for one in end.members
    ]


def pid_of(actor):
    """Of an actor, also of one that is at work in one long call; None while it has none, or none any more."""
    ray()
    from ray._private import state  # noqa: PLC0415 - need not be there

    known = state.actors(actor._actor_id.hex())
    return known["Pid"] if known.get("State") == "ALIVE" else None


def kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def wait_until(holds, seconds, what):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
