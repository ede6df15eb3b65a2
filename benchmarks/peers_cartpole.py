"""How soon CartPole-v1 is learned: ours beside stable-baselines3's PPO and A2C, with their defaults and with their tuned settings.

One harness for all: one thread, the same evaluation (20 sampled episodes in fresh environments, every 2,000 steps), the same two
measures: two evaluations in a row with a mean of 475, and a mean of 475 over the last 100 training episodes (which cannot come before
47,500 steps: that is how long such episodes are). Clocks run while an agent acts and learns, not while it is imported, built or
evaluated. The agents take turns, seed by seed.
Run: python benchmarks/peers_cartpole.py [--seeds 0 1 2 3 4] [--agents ours ppo ...] [--limit 200000] [--csv FILE]
"""

import argparse
import csv
import datetime as dt
import itertools
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from laser_rl.agent.policy import Policy, Seen
from laser_rl.api import LASER
from laser_rl.errors import MissingExtra, UserError

TASK, GOAL = "CartPole-v1", 475.0
EVERY_STEPS, EPISODES, IN_A_ROW, WINDOW = 2_000, 20, 2, 100
EVALUATION, TRAINING = "evaluation", "training episodes"  # the two measures
Act = Callable[[NDArray[Any]], NDArray[Any]]  # observations [n, 4] to actions [n]


class Mark(NamedTuple):
    """When a goal was reached; if it was not, where the run ended."""

    reached: bool
    steps: int
    seconds: float
    cpu_seconds: float  # of all threads; steadier than `seconds` on a machine that others use too

    def show(self, column: str) -> str:
        """One number, as a table has it."""
        number = f"{getattr(self, column):,.{0 if column == 'steps' else 1}f}"
        return number if self.reached else f"> {number}"


class Clock:
    """Seconds and CPU seconds spent inside `running`."""

    def __init__(self) -> None:
        self._spent = np.zeros(2)
        self._since: NDArray[np.float64] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """While an agent acts and learns."""
        self._since = self._now()
        yield
        self._spent, self._since = self.read(), None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within `running`: not the agent's time."""
        self._spent, self._since = self.read(), None
        yield
        self._since = self._now()

    def read(self) -> NDArray[np.float64]:
        """Both sums, up to now."""
        return self._spent if self._since is None else self._spent + self._now() - self._since

    @staticmethod
    def _now() -> NDArray[np.float64]:
        return np.array([time.perf_counter(), time.process_time()])


class Judge:
    """Watches one run and decides when it has reached which goal; the same one for every agent."""

    def __init__(self, seed: int, limit: int) -> None:
        self.clock, self.marks = Clock(), dict[str, Mark]()
        self.due = EVERY_STEPS
        self._seed, self._limit, self._good, self._steps = seed, limit, 0, 0
        self._returns: deque[float] = deque(maxlen=WINDOW)

    def ended(self, episode_return: float, steps: int) -> None:
        """A training episode ended."""
        self._returns.append(episode_return)
        if len(self._returns) == WINDOW and sum(self._returns) >= GOAL * WINDOW:
            self._reached(TRAINING, steps)

    def look(self, act: Act, steps: int) -> None:
        """Evaluate, unless that goal is reached already. Call with a clock that stands, `EVERY_STEPS` apart."""
        self._steps = steps
        self.due = (steps // EVERY_STEPS + 1) * EVERY_STEPS
        if EVALUATION in self.marks:
            return
        self._good = self._good + 1 if mean_return(act, seed=10**6 * self._seed + steps) >= GOAL else 0
        if self._good == IN_A_ROW:
            self._reached(EVALUATION, steps)

    def over(self) -> bool:
        """All goals reached, or the limit."""
        return len(self.marks) == 2 or self._steps >= self._limit

    def results(self) -> dict[str, Mark]:
        """A mark for each measure, reached or not."""
        end = Mark(False, self._steps, *self.clock.read().tolist())
        return {measure: self.marks.get(measure, end) for measure in (EVALUATION, TRAINING)}

    def _reached(self, measure: str, steps: int) -> None:
        self.marks.setdefault(measure, Mark(True, steps, *self.clock.read().tolist()))


def mean_return(act: Act, seed: int) -> float:
    """One whole episode in each of `EPISODES` fresh environments; nobody's random numbers are disturbed."""
    environments = [gymnasium.make(TASK) for _ in range(EPISODES)]
    observation = np.stack([env.reset(seed=seed + 1000 * i)[0] for i, env in enumerate(environments)])
    total, open_ones = np.zeros(EPISODES), np.arange(EPISODES)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        while open_ones.size:
            action = act(observation[open_ones])
            going = []
            for i, choice in zip(open_ones.tolist(), action.tolist(), strict=True):
                observation[i], reward, terminated, truncated, _ = environments[i].step(choice)
                total[i] += reward
                if not (terminated or truncated):
                    going.append(i)
            open_ones = np.array(going, np.int64)
    return float(total.mean())


class EpisodeSink:
    """Hands our training episodes to the judge."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def write(self, kind: str, step: int, update: int, values: Mapping[str, Any]) -> None:
        """Only episodes are of interest."""
        if kind == "episode":
            self._judge.ended(values["return"], step)

    def flush(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


def acting(policy: Policy) -> Act:
    """As the judge asks."""

    def act(observation: Any) -> Any:
        first, nothing = np.ones(len(observation), bool), np.zeros(len(observation), np.float32)
        return policy.act(Seen(observation, first, nothing, nothing, nothing[:, None][:, :0])).environment_action

    return act


def run_ours(seed: int, judge: Judge) -> None:
    """The recipe, as a user would run it, in pieces of `EVERY_STEPS`."""
    settings: dict[str, Any] = {"run.threads": 1, "run.device": "cpu", "run.runtime": "serial", "run.seed": seed}
    # A constant rate: nobody knows beforehand when a run will be over, so there is nothing to plan a schedule for.
    agent = LASER(TASK, recipe="cartpole", schedule="constant", sinks=[EpisodeSink(judge)], **settings)
    member = agent.member  # built here, outside the clock
    while not judge.over():
        with judge.clock.running():
            agent.learn(judge.due - agent.steps)
        policy = Policy(member.learner.network, member.learner.family, seed=seed + agent.steps)
        judge.look(acting(policy), agent.steps)
    agent.close()


def run_peer(algorithm: str, n_envs: int, total_steps: int, settings: dict[str, Any], seed: int, judge: Judge) -> None:
    """An agent of stable-baselines3 in one call of `learn`, which the judge interrupts."""
    try:
        import stable_baselines3 as sb3  # noqa: PLC0415
        from stable_baselines3.common.callbacks import BaseCallback  # noqa: PLC0415
        from stable_baselines3.common.env_util import make_vec_env  # noqa: PLC0415
    except ImportError:
        raise MissingExtra("a comparison with stable-baselines3", "bench") from None

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            for info in self.locals["infos"]:
                if "episode" in info:
                    judge.ended(info["episode"]["r"], self.num_timesteps)
            if self.num_timesteps >= judge.due:
                with judge.clock.paused():
                    judge.look(sample, self.num_timesteps)
            return not judge.over()

    def sample(observation: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(model.predict(observation, deterministic=False)[0])

    environments = make_vec_env(TASK, n_envs=n_envs, seed=seed)
    model = getattr(sb3, algorithm)("MlpPolicy", environments, seed=seed, device="cpu", **settings)
    with judge.clock.running():
        model.learn(total_steps, callback=Watch())
    environments.close()


def linear(start: float) -> Callable[[float], float]:
    """A schedule of stable-baselines3: from `start` to 0."""
    return lambda left: start * left


class Agent(NamedTuple):
    """Somebody who learns under the eyes of a judge, for so many steps at most."""

    limit: int
    run: Callable[[int, Judge], None]


def peer(algorithm: str, n_envs: int, limit: int, **settings: Any) -> Agent:
    """One of stable-baselines3's."""
    return Agent(limit, lambda seed, judge: run_peer(algorithm, n_envs, limit, settings, seed, judge))


AGENTS = {
    "ours": Agent(100_000, run_ours),
    "PPO": peer("PPO", 1, 200_000),
    "A2C": peer("A2C", 1, 500_000),
    # rl-baselines3-zoo's hyperparams/ppo.yml and a2c.yml; their schedules run over the limit.
    "PPO-zoo": peer(
        "PPO",
        8,
        100_000,
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gae_lambda=0.8,
        gamma=0.98,
        ent_coef=0.0,
        learning_rate=linear(0.001),
        clip_range=linear(0.2),
    ),
    "A2C-zoo": peer("A2C", 8, 500_000, ent_coef=0.0),
}


def measured(name: str, seed: int, limit: int | None) -> dict[str, Mark]:
    """One run of one agent."""
    agent = AGENTS[name]
    judge = Judge(seed, min(agent.limit, limit or agent.limit))
    torch.set_num_threads(1)
    agent.run(seed, judge)
    return judge.results()


def middle(marks: Iterable[Mark]) -> Mark:
    """The median of each column (the lower one of two); seeds that never got there count as the slowest."""

    def column(name: str) -> tuple[bool, float]:
        late, value = statistics.median_low((not mark.reached, getattr(mark, name)) for mark in kept)
        return not late, value

    kept = list(marks)
    reached, steps = column("steps")
    return Mark(reached, int(steps), column("seconds")[1], column("cpu_seconds")[1])


def print_medians(results: dict[str, dict[str, list[Mark]]]) -> None:
    """Medians over the seeds, and what ours takes of what each peer takes."""
    print(
        "\n| median | measure | reached | steps | s | CPU s | ours: steps | ours: s | ours: CPU s |\n"
        + "|---" * 9
        + "|"
    )
    for name, by_measure in results.items():
        for measure, marks in by_measure.items():
            theirs = middle(marks)
            cells = [theirs.show(column) for column in ("steps", "seconds", "cpu_seconds")]
            if "ours" in results and name != "ours":
                cells += ratios(middle(results["ours"][measure]), theirs)
            else:
                cells += ["1.00"] * 3
            reached = f"{sum(mark.reached for mark in marks)} of {len(marks)}"
            print(f"| {name} | {measure} | {reached} | {' | '.join(cells)} |")


def ratios(ours: Mark, theirs: Mark) -> list[str]:
    """Ours by theirs; a bound where the peer never got there, nothing where we did not."""
    if not ours.reached:
        return ["–"] * 3
    bound = "" if theirs.reached else "< "
    columns = ("steps", "seconds", "cpu_seconds")
    return [f"{bound}{getattr(ours, column) / getattr(theirs, column):.2f}" for column in columns]


def hardware() -> str:
    """Cores and processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "CPU")
    return f"{len(os.sched_getaffinity(0))} cores {model}"


def installed(package: str) -> str:
    """Its version."""
    try:
        return version(package)
    except ImportError:
        return "none"


def compare(names: list[str], seeds: list[int], limit: int | None) -> Iterator[dict[str, Any]]:
    """All agents on all seeds, printed as they come; yields the rows of the CSV."""
    about = {"date": today(), "hardware": hardware()}
    about |= {package: installed(package) for package in ("torch", "gymnasium", "stable-baselines3")}
    print(", ".join(f"{key} {value}" for key, value in about.items()) + f"; {TASK}, 1 thread")
    for name in names:  # what torch loads at its first update is no part of anybody's time
        measured(name, 999, 2 * EVERY_STEPS)
    print("\n| seed | agent | evaluation: steps | s | CPU s | 100 episodes: steps | s | CPU s |\n" + "|---" * 8 + "|")
    results = {name: {EVALUATION: list[Mark](), TRAINING: list[Mark]()} for name in names}
    for seed in seeds:
        for name in names:
            marks, load = measured(name, seed, limit), round(os.getloadavg()[0], 2)
            cells = [marks[m].show(column) for m in marks for column in ("steps", "seconds", "cpu_seconds")]
            print(f"| {seed} | {name} | {' | '.join(cells)} |", flush=True)
            for measure, mark in marks.items():
                results[name][measure].append(mark)
                rounded = {key: round(value, 3) for key, value in mark._asdict().items()}
                yield ({**about, "load": load, "agent": name, "seed": seed, "measure": measure, **rounded})
    print_medians(results)


def today() -> str:
    """The date of a result."""
    return dt.datetime.now(dt.UTC).date().isoformat()


def write(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    """Each row when it comes: a run that is ended early keeps what it has found."""
    first = next(rows)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, first)
        writer.writeheader()
        for row in itertools.chain([first], rows):
            writer.writerow(row)
            file.flush()


def main() -> None:
    """Run, print, write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--agents", nargs="+", choices=list(AGENTS), default=list(AGENTS))
    parser.add_argument("--limit", type=int, help="environment steps; the default is each agent's own")
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    path = arguments.csv or Path(__file__).parent / "results" / f"peers_cartpole-{today()}.csv"
    try:
        write(path, compare(arguments.agents, arguments.seeds, arguments.limit))
    except UserError as error:
        parser.exit(error.exit_status, f"{error}\n")
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
