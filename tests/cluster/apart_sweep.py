"""A sweep on the cluster at an address, for `test_apart`: python -m tests.cluster.apart_sweep ADDRESS FOLDER in-step|reaches."""

import json
import sys
from pathlib import Path

from laser_rl import Sweep
from laser_rl.training.settings import ClusterSettings
from tests.cluster.sweeps import finished, hashes, small_sweep

IN_STEP = {"run.steps": 300, "checkpoint_every_steps": 0, "capacity_steps": 400}
GRID = {"learning_rate": [1e-3, 2e-3, 3e-3]}


def in_step_config():
    return small_sweep(runtime="serial", **IN_STEP)


def main():
    address, folder, what = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    if what == "in-step":
        found = hashes(finished(in_step_config(), folder, ClusterSettings(address)))
    else:
        result = Sweep("CartPole-v1", grid=GRID, cluster=address, cluster_runners=2, run_dir=folder, seed=3).run(25_000)
        found = [member.evaluation.mean for member in result.members]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
