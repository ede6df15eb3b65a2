"""Ours beside stable-baselines3's PPO and SAC: the same tasks, the same steps, seeds chosen beforehand.

    python -m benchmarks.peers run --seeds 0 1 2 3 4 --workers 8 --out benchmarks/results/peers.jsonl
    python -m benchmarks.peers report benchmarks/results/peers.jsonl
    python -m benchmarks.peers publish benchmarks/results/peers.jsonl  # docs/results/peers

Each run has a process with one thread, and appends its line of JSON when it is done; what the file has already is not run again. The
measure is the mean return of the last 100 training episodes, as each agent explores, at the end and at 20 points of the run. A task is
solved where that mean reaches Gymnasium's reward threshold; `dip` counts the longest row of episodes after that with a mean below the
task's own `dip`. Seconds are those of acting and learning.

Needs stable-baselines3 and gymnasium[box2d,mujoco]; the tables also scipy and matplotlib.
"""

import argparse
import datetime as dt
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import yaml

from benchmarks.pictures import OWN

ROOT = Path(__file__).parents[1]
WINDOW, POINTS = 100, 20
Episodes = list[tuple[int, float]]  # step at which it ended, return
TASKS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()) | OWN


class Job(NamedTuple):
    """One run; also the key by which a finished one is known."""

    task: str
    arm: str
    seed: int
    steps: int
    settings: str = "{}"  # of our arms, as JSON: what `--set` changed

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Job":
        """The run of a line of the file."""
        return cls(row["task"], row["arm"], row["seed"], row["steps"], row["settings"])


class EpisodeSink:
    """Collects our training episodes."""

    def __init__(self) -> None:
        self.episodes: Episodes = []

    def write(self, kind: str, step: int, update: int, values: Mapping[str, Any]) -> None:
        """Only episodes are of interest."""
        if kind == "episode":
            self.episodes.append((step, float(values["return"])))

    def flush(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


def learn_ours(job: Job) -> tuple[Episodes, float]:
    """Our agent, as a user would make it: `LASER(env)`, or with the recipe for this kind of task."""
    from laser_rl.api import LASER  # noqa: PLC0415 - a peer's process does not need it

    sink, recipe = EpisodeSink(), TASKS[job.task].get("recipe") if job.arm == "recipe" else None
    machine = {
        "run.threads": 1,
        "run.device": "cpu",
        "run.runtime": "serial",
        "run.seed": job.seed,
        "run.steps": job.steps,
    }
    agent = LASER(job.task, recipe=recipe, sinks=[sink], **{**machine, **json.loads(job.settings)})
    assert agent.member  # built here, outside the clock
    begin = time.perf_counter()
    agent.learn(job.steps)
    seconds = time.perf_counter() - begin
    agent.close()
    return sink.episodes, seconds


def learn_peer(job: Job) -> tuple[Episodes, float]:
    """An agent of stable-baselines3: its defaults in one environment, or the zoo's settings of PPO."""
    import stable_baselines3 as sb3  # noqa: PLC0415 - ours does not need it
    from stable_baselines3.common.callbacks import BaseCallback  # noqa: PLC0415
    from stable_baselines3.common.env_util import make_vec_env  # noqa: PLC0415
    from stable_baselines3.common.vec_env import VecEnv, VecNormalize  # noqa: PLC0415

    episodes: Episodes = []

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            ended = (info["episode"]["r"] for info in self.locals["infos"] if "episode" in info)
            episodes.extend((self.num_timesteps, float(one)) for one in ended)
            return True

    settings = zoo_settings(TASKS[job.task]["zoo"]) if job.arm == "ppo-zoo" else {}
    environments: VecEnv = make_vec_env(job.task, n_envs=settings.pop("n_envs", 1), seed=job.seed)
    if settings.pop("normalize", False):
        environments = VecNormalize(environments, gamma=settings["gamma"])
    algorithm = sb3.SAC if job.arm == "sac" else sb3.PPO
    policy = "CnnPolicy" if job.task in OWN else "MlpPolicy"
    model = algorithm(policy, environments, seed=job.seed, device="cpu", **settings)
    begin = time.perf_counter()
    model.learn(job.steps, callback=Watch())
    seconds = time.perf_counter() - begin
    environments.close()
    return episodes, seconds


def learn_nothing(job: Job) -> tuple[Episodes, float]:
    """Actions drawn uniformly."""
    env, episodes, total = gymnasium.make(job.task), Episodes(), 0.0
    env.action_space.seed(job.seed)
    env.reset(seed=job.seed)
    begin = time.perf_counter()
    for step in range(1, job.steps + 1):
        _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        total += float(reward)
        if terminated or truncated:
            episodes.append((step, total))
            total = 0.0
            env.reset()
    return episodes, time.perf_counter() - begin


def zoo_settings(written: Mapping[str, Any]) -> dict[str, Any]:
    """The zoo's words as arguments: `lin_x` falls from x to 0 over the run, an activation has its torch name."""

    def schedule(start: float) -> Callable[[float], float]:
        return lambda left: start * left

    settings = {
        name: schedule(float(value.removeprefix("lin_"))) if str(value).startswith("lin_") else value
        for name, value in written.items()
    }
    if "activation_fn" in settings.get("policy_kwargs", {}):
        import torch  # noqa: PLC0415 - only a peer's process

        kwargs = settings["policy_kwargs"]
        settings["policy_kwargs"] = {**kwargs, "activation_fn": getattr(torch.nn, kwargs["activation_fn"])}
    return settings


ARMS: dict[str, tuple[str, Callable[[Job], tuple[Episodes, float]]]] = {
    "default": ("LASER", learn_ours),
    "recipe": ("LASER, recipe", learn_ours),
    "ppo": ("PPO", learn_peer),
    "ppo-zoo": ("PPO, zoo", learn_peer),
    "sac": ("SAC", learn_peer),
    "random": ("random", learn_nothing),
}
OURS = ("default", "recipe")


def measured(job: Job) -> dict[str, Any]:
    """Train, and the line of the file."""
    import torch  # noqa: PLC0415 - the parent process does not need it

    torch.set_num_threads(1)
    cpu, (episodes, seconds) = time.process_time(), ARMS[job.arm][1](job)
    threshold, dip = gymnasium.spec(job.task).reward_threshold, TASKS[job.task].get("dip")
    packages = ("torch", "gymnasium", "stable-baselines3", "mujoco", "box2d", "numpy")
    return {
        **job._asdict(),
        **judged(episodes, job.steps, threshold, dip),
        "threshold": threshold,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "hardware": f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "versions": {name: found for name in packages if (found := _installed(name))},
    }


def judged(episodes: Episodes, steps: int, threshold: float | None, dip: float | None = None) -> dict[str, Any]:
    """The measure at the end and at equal distances, and when the task was solved; an episode that ended after `steps` does not count.

    >>> judged([(10, 1.0), (20, 3.0), (41, 9.0)], 40, None)["curve"][4::5]
    [1.0, 2.0, 2.0, 2.0]
    """
    returns = [one for at, one in episodes if at <= steps]

    def mean_at(step: float) -> float | None:
        seen = [one for at, one in episodes if at <= step][-WINDOW:]
        return round(statistics.fmean(seen), 3) if seen else None

    solved = longest = None
    if threshold is not None and len(returns) >= WINDOW:
        means = np.convolve(returns, np.ones(WINDOW) / WINDOW, mode="valid")
        reached = np.flatnonzero(means >= threshold - 1e-6)
        solved = episodes[WINDOW - 1 + int(reached[0])][0] if reached.size else None
        if reached.size and dip is not None:
            longest = max((len(list(row)) for low, row in groupby(means[reached[0] :] < dip) if low), default=0)
    curve = [mean_at(steps * (i + 1) / POINTS) for i in range(POINTS)]
    return {"last100": curve[-1], "episodes": len(returns), "solved_at": solved, "dip": longest, "curve": curve}


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def planned(arguments: argparse.Namespace) -> list[Job]:
    """All runs asked for, seed by seed, so that an early end leaves whole seeds; SAC has no discrete actions, not every task a recipe."""
    changed = json.dumps(dict(sorted(map(_setting, arguments.set))))
    jobs = []
    for seed in arguments.seeds:
        for name in arguments.tasks:
            task, actions = TASKS[name], gymnasium.make(name).action_space
            fits = {
                "sac": isinstance(actions, gymnasium.spaces.Box),
                "recipe": "recipe" in task,
                "ppo-zoo": "zoo" in task,
                "random": name in OWN,
            }
            arms = [arm for arm in arguments.arms if fits.get(arm, True)]
            jobs += [
                Job(name, arm, seed, arguments.steps or task["steps"], changed if arm in OURS else "{}") for arm in arms
            ]
    return jobs


def _setting(word: str) -> tuple[str, Any]:
    name, _, value = word.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The finished runs; a last line that was cut off is left out."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            print(f"left out: a line of {path} that is no JSON", file=sys.stderr)
    return rows


def run(arguments: argparse.Namespace) -> int:
    """Run what is not done yet; 1 if a run failed."""
    path: Path = arguments.out
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {Job.of(row) for row in rows_of(path)}
    jobs = [job for job in planned(arguments) if job not in done]
    print(f"{len(jobs)} runs to do, {len(done)} in {path}", flush=True)
    failed = 0
    with ThreadPoolExecutor(arguments.workers) as pool, path.open("a") as file:
        if path.stat().st_size and not path.read_text().endswith("\n"):
            file.write("\n")
        for result in as_completed([pool.submit(_in_process, job) for job in jobs]):
            job, line, error = result.result()
            failed += not line
            if line:
                file.write(line + "\n")
                file.flush()
            found = f"{json.loads(line)['last100']} in {json.loads(line)['seconds']} s" if line else f"failed: {error}"
            print(f"{job.task} {job.arm} seed {job.seed}: {found}", flush=True)
    return int(failed > 0)


def _in_process(job: Job) -> tuple[Job, str, str]:
    """A run in a process of its own, in an empty folder: MuJoCo writes a log where it stands."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    found = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, **threads, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": found}
    command = [sys.executable, "-m", "benchmarks.peers", "one", json.dumps(job._asdict())]
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
    if ended.returncode:
        return job, "", ended.stderr[-2000:] or f"status {ended.returncode}"
    return job, ended.stdout.splitlines()[-1], ""


def main(words: Sequence[str] | None = None) -> int:
    """Run, one run, or the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="train what is not in the file yet")
    running.add_argument("--tasks", nargs="+", choices=TASKS, default=[name for name in TASKS if name not in OWN])
    running.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    running.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    running.add_argument("--steps", type=int, help="environment steps; the default is each task's own")
    running.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings of our arms")
    running.add_argument("--workers", type=int, default=1, help="runs at a time")
    running.add_argument("--out", type=Path, required=True, help="file of JSON lines that grows")
    commands.add_parser("one", help="one run, as JSON").add_argument("job")
    commands.add_parser("report", help="tables in Markdown").add_argument("files", type=Path, nargs="+")
    publishing = commands.add_parser("publish", help="curves and tables into a page")
    publishing.add_argument("files", type=Path, nargs="+")
    publishing.add_argument("--into", type=Path, default=ROOT / "docs" / "results" / "peers", help="the page's folder")
    arguments = parser.parse_args(words)
    if arguments.command == "run":
        return run(arguments)
    if arguments.command == "one":
        print(json.dumps(measured(Job(**json.loads(arguments.job)))))
    else:
        from benchmarks.peers_report import publish, report  # noqa: PLC0415 - it reads the arms from here

        rows = [row for path in arguments.files for row in rows_of(path)]
        if arguments.command == "report":
            print(report(rows))
        else:
            publish(rows, arguments.into)
    return 0


if __name__ == "__main__":
    sys.exit(main())
