"""Callbacks: watch a run, keep its numbers, end it; then save the agent, load it and play."""

import argparse
import tempfile
from pathlib import Path

import gymnasium

from laser_rl import LASER


class Until:
    """Called at every row of metrics; keeps the curve and ends the run at a mean return of the last 100 episodes.

    A callback is any function of one argument. That has `step`, `update`, `kind` ("train" or "evaluation") and `values`, numbers by name;
    returning False ends the run.
    """

    def __init__(self, goal: float) -> None:
        self.goal, self.curve = goal, []

    def __call__(self, progress) -> bool:
        """Whether to go on."""
        mean = progress.values.get("return_mean")  # not there before the first episode has ended
        if progress.kind != "train" or mean is None:
            return True
        self.curve.append((progress.step, mean))
        print(f"step {progress.step:6d}  mean return {mean:6.1f}  trusted {progress.values['acceptance']:4.0%}")
        return mean < self.goal


def main() -> None:
    """Train up to a return; play one episode with what was saved."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--goal", type=float, default=100.0)
    arguments = parser.parse_args()
    until = Until(arguments.goal)
    agent = LASER("CartPole-v1", seed=1, log_every_updates=20).learn(arguments.steps, callback=until)
    reached = any(mean >= arguments.goal for _, mean in until.curve)
    print(f"{'reached' if reached else 'did not reach'} {arguments.goal:g} within {agent.steps} steps")
    with tempfile.TemporaryDirectory() as folder:
        path = agent.save(Path(folder) / "cartpole.laser")  # safetensors: loading it runs no code
        agent.close()
        loaded = LASER.load(path)
        env, state, done, total = gymnasium.make("CartPole-v1"), None, False, 0.0
        observation, _ = env.reset(seed=7)
        while not done:
            action, state = loaded.predict(observation, state, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, done = total + reward, terminated or truncated
        print(f"the loaded agent balances for {total:g} steps")
        loaded.close()


if __name__ == "__main__":
    main()
