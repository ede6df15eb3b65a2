"""Scores to compare with: of random play and of the best play, for every task of a suite; docs/results/references.csv.

    python benchmarks/references.py grid

Random play chooses uniformly among the suite's actions; one that a task does not know acts as its action 0, as in a mixture. The best play
of a MiniGrid task is a shortest way to its reward, found by breadth-first search over the exact state of the whole grid: where the agent
is and looks, what it carries, where every object is, how every door stands. It knows what an agent has to find out, so an agent comes near
its score and does not reach it. For our own T-maze both are known exactly (0 episodes). Seeds are 0, 1, 2, …; `_se` are standard errors.
"""

import argparse
import csv
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from laser_rl.envs.construct import constructor
from laser_rl.envs.puzzles import task_of
from laser_rl.envs.scores import SUITES, Reference, suite_of

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "references.csv"
COLUMNS = ("task", "random", "random_se", "best", "best_se", "random_episodes", "best_episodes", "command")
ACTIONS = 7  # of a mixture of MiniGrid's tasks
USEFUL_ACTIONS = range(6)  # the seventh does nothing in any of them
MOST_STATES = 500_000
Returns = NDArray[np.float64]
State = tuple[tuple[int, int], int, Any, tuple[Any, ...], tuple[tuple[bool, bool], ...]]


def open_task(task: Reference) -> gymnasium.Env[Any, Any]:
    """One environment, which draws nothing: nobody looks."""
    env = constructor(task.id, task.options)()
    bare: Any = env.unwrapped
    bare.gen_obs = lambda: None
    return env


def random_returns(env: gymnasium.Env[Any, Any], episodes: int) -> Iterator[float]:
    """Of uniformly random actions."""
    assert isinstance(env.action_space, gymnasium.spaces.Discrete)
    known, rng = int(env.action_space.n), np.random.default_rng(0)
    for seed in range(episodes):
        env.reset(seed=seed)
        total, ended = 0.0, False
        while not ended:
            action = int(rng.integers(ACTIONS))
            _, reward, terminated, truncated, _ = env.step(action if action < known else 0)
            total, ended = total + float(reward), terminated or truncated
        yield total


def best_returns(env: gymnasium.Env[Any, Any], episodes: int) -> Iterator[float]:
    """Of a shortest way to the reward in each episode, walked from its start."""
    for seed in range(episodes):
        env.reset(seed=seed)
        plan = shortest_plan(env.unwrapped)
        env.reset(seed=seed)
        rewards = []
        for action in plan:
            _, reward, terminated, _, _ = env.step(action)
            rewards.append(float(reward))
        assert terminated, f"seed {seed}: the way that was found does not end the episode"
        assert rewards[-1] > 0, f"seed {seed}: the way that was found earns nothing"
        yield sum(rewards)


def shortest_plan(grid: Any) -> list[int]:
    """The fewest actions from here to a reward. All rewards of these tasks come at the end and shrink with the steps, so it is the best."""
    doors = [thing for thing in grid.grid.grid if thing is not None and thing.type == "door"]
    start = state_of(grid, doors)
    came_from: dict[State, tuple[State, int] | None] = {start: None}
    frontier = [start]
    for depth in range(grid.max_steps):
        reached = []
        for state in frontier:
            for action in USEFUL_ACTIONS:
                put_back(grid, doors, state, depth)
                _, reward, terminated, _, _ = grid.step(action)
                if reward > 0:
                    return [*way_to(came_from, state), action]
                follower = state_of(grid, doors)
                if not terminated and follower not in came_from:
                    came_from[follower] = state, action
                    reached.append(follower)
        frontier = reached
        if not frontier or len(came_from) > MOST_STATES:
            break
    raise RuntimeError(f"no way to a reward among {len(came_from):,} states; raise MOST_STATES, or leave the task out")


def state_of(grid: Any, doors: list[Any]) -> State:
    """All that decides what can follow. Objects are told apart by identity: none is ever made anew within an episode."""
    x, y = grid.agent_pos
    flags = tuple((door.is_open, door.is_locked) for door in doors)
    return (int(x), int(y)), int(grid.agent_dir), grid.carrying, tuple(grid.grid.grid), flags


def put_back(grid: Any, doors: list[Any], state: State, steps: int) -> None:
    """Make the grid what it was in `state`, `steps` steps after its start."""
    grid.agent_pos, grid.agent_dir, grid.carrying, cells, flags = state
    grid.grid.grid, grid.step_count = list(cells), steps
    for door, (is_open, is_locked) in zip(doors, flags, strict=True):
        door.is_open, door.is_locked = is_open, is_locked


def way_to(came_from: dict[State, tuple[State, int] | None], state: State) -> list[int]:
    """The actions that led to a state."""
    actions = []
    while (step := came_from[state]) is not None:
        state, action = step
        actions.append(action)
    return actions[::-1]


def scores(task: Reference, random_episodes: int, best_episodes: int) -> dict[str, Any]:
    """One row of the table."""
    if task.id.startswith("laser/"):
        exact = task_of(task.id, task.options)
        return row_of(task, np.array([exact.random_return]), np.array([exact.optimal_return]))
    env = open_task(task)
    played, walked = random_returns(env, random_episodes), best_returns(env, best_episodes)
    row = row_of(task, np.array(list(played)), np.array(list(walked)))
    return {**row, "random_episodes": random_episodes, "best_episodes": best_episodes}


def row_of(task: Reference, played: Returns, walked: Returns) -> dict[str, Any]:
    """Means and their errors."""
    return {
        "task": task.id,
        "random": round(float(played.mean()), 4),
        "random_se": round(standard_error(played), 4),
        "best": round(float(walked.mean()), 4),
        "best_se": round(standard_error(walked), 4),
        "random_episodes": 0,
        "best_episodes": 0,
    }


def standard_error(values: Returns) -> float:
    """Of the mean; 0 for a number that is known."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def main() -> None:
    """Measure a suite and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=[name for name in SUITES if not name.startswith("dmlab")])
    parser.add_argument("--random-episodes", type=int, default=2000)
    parser.add_argument("--best-episodes", type=int, default=500)
    asked = parser.parse_args()
    command = (
        f"python benchmarks/references.py {asked.suite} "
        f"--random-episodes {asked.random_episodes} --best-episodes {asked.best_episodes}"
    )
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for task in suite_of(asked.suite):
            begin = time.perf_counter()
            row = scores(task, asked.random_episodes, asked.best_episodes)
            writer.writerow({**row, "command": command})
            file.flush()
            print(f"{row} in {time.perf_counter() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
