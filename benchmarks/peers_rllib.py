"""Environment steps a second of RLlib's IMPALA on one machine, to stand beside our own on a cluster of one node.

RLlib holds gymnasium back, so it has a virtual environment of its own and this file imports nothing of ours:

    python -m venv /elsewhere && /elsewhere/bin/pip install 'ray[rllib]==2.60.0' torch
    /elsewhere/bin/python benchmarks/peers_rllib.py --seconds 30 --runners 1 --slots 16

Steps are those that were sampled and trained on, counted from the second report on: the first holds the start. IMPALA learns from each
step once, and has no replay; its default network is two layers of 256.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

UNROLL, BATCH_UNROLLS = 20, 32
REPORT_S = 5.0
SAMPLED, TRAINED = "num_env_steps_sampled_lifetime", "num_module_steps_trained_lifetime"


def parsed() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--runners", type=int, default=1)
    parser.add_argument("--slots", type=int, default=16, help="environments of a runner")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def algorithm(asked: argparse.Namespace) -> Any:
    """IMPALA as RLlib builds it, the learner in the driver's process."""
    from ray.rllib.algorithms.impala import IMPALAConfig  # noqa: PLC0415

    config = IMPALAConfig().environment(asked.env).learners(num_learners=0)
    config = config.env_runners(
        num_env_runners=asked.runners, num_envs_per_env_runner=asked.slots, rollout_fragment_length=UNROLL
    )
    config = config.training(train_batch_size_per_learner=UNROLL * BATCH_UNROLLS)
    return config.reporting(min_time_s_per_iteration=REPORT_S).build_algo()


def counted(result: dict[str, Any]) -> tuple[float, float] | None:
    """Steps sampled and trained so far; None as long as there are none."""
    sampled = result.get("env_runners", {}).get(SAMPLED)
    trained = result.get("learners", {}).get("default_policy", {}).get(TRAINED)
    return None if sampled is None or trained is None else (float(sampled), float(trained))


def main() -> None:
    """Entry."""
    import ray  # noqa: PLC0415

    asked = parsed()
    ray.init(address="local", include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    agent = algorithm(asked)
    first: tuple[float, tuple[float, float]] | None = None
    while True:
        found, now = counted(agent.train()), time.perf_counter()
        if found is None:
            continue
        if first is None:
            first = now, found
        elif now - first[0] >= asked.seconds:
            break
    seconds = now - first[0]
    rates = [(new - old) / seconds for new, old in zip(found, first[1], strict=True)]
    agent.stop()
    row = {
        "agent": f"RLlib IMPALA {ray.__version__}",
        "env": asked.env,
        "runners": asked.runners,
        "slots": asked.slots,
        "seconds": round(seconds, 1),
        "sampled_steps_per_second": round(rates[0], 1),
        "trained_steps_per_second": round(rates[1], 1),
    }
    print(json.dumps(row))
    if asked.json:
        asked.json.write_text(json.dumps(row, indent=2) + "\n")


if __name__ == "__main__":
    main()
