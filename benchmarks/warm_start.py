"""Does an old sweep's replay help a new agent?

    make demo
    python benchmarks/warm_start.py runs/demo

A single agent with the demo's settings (DeepSea 10, learning rate 0.001, seeds of its own) for 8,000 steps: with an empty replay, and
with that of the finished sweep under several bounds. Printed is the evaluation at the end, by seed; 0.99 is the optimum.
"""

import argparse
from typing import Any

import torch

from laser_rl import recipes
from laser_rl.config import override
from laser_rl.training.launch import train

VARIANTS: dict[str, dict[str, Any]] = {
    "empty replay": {},
    "b = 0.1": {"trust_bound": 0.1},
    "b = 1": {"trust_bound": 1.0},
    "every row trusted": {"trust": "off", "trust_bound": None},
}


def main() -> None:
    """All variants, five seeds each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    base = recipes.demo().configs[1]
    for name, settings in VARIANTS.items():
        source = None if name == "empty replay" else asked.run_dir
        scores = []
        for seed in range(10, 15):
            own = {"run.seed": seed, "run.steps": 8_000, "replay.start_from": source, **settings}
            evaluation = train(override(base, own)).best().evaluation
            assert evaluation is not None
            scores.append(f"{evaluation.mean:.2f}")
        print(f"{name}: {', '.join(scores)}", flush=True)


if __name__ == "__main__":
    main()
