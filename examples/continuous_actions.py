"""Real-valued actions: Pendulum-v1 with the recipe `pendulum`, which is what LASER takes for it.

The policy is a Gaussian whose samples are squashed into the bounds of the action space; KL(π ‖ implied policy) is estimated from samples
of π. A pendulum that hangs costs about 1,200 an episode, one that stands about 150.
"""

import argparse

from laser_rl import LASER


def main() -> None:
    """Train in stretches, evaluate after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150_000)
    parser.add_argument("--stretches", type=int, default=10)
    arguments = parser.parse_args()
    agent = LASER("Pendulum-v1", recipe="pendulum", seed=1)
    print(f"policy: {agent.member.learner.family}")
    print(f"untrained: mean {agent.evaluate(episodes=20).mean:.0f}")
    for _ in range(arguments.stretches):
        agent.learn(arguments.steps // arguments.stretches, total=arguments.steps)
        result = agent.evaluate(episodes=20)
        low, high = result.ci95
        print(f"step {agent.steps:6d}: mean {result.mean:.0f}, 95 % interval {low:.0f} to {high:.0f}", flush=True)
    agent.close()


if __name__ == "__main__":
    main()
