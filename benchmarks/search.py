"""What a search finds whose trials share one replay, beside searches and sweeps that do not, at equal total steps.

    python -m benchmarks.search run --workers 2      # what the file does not have yet
    python -m benchmarks.search report               # search.csv, search.png and the tables of docs/results/sharing/search.md

**Fixed before the first run.** Four tasks of `sharing.py` with its agent. Learning rate and entropy cost are drawn from the paper's own
ranges, 5e-6 to 5e-3 and 5e-5 to 1e-2, log-uniform. Eight members have the task's steps each; `apart` has the same steps in all, one trial
after the other. 40 trials at most, default length and looks of `--search optuna`, TPE and the median pruner. Seeds 400 to 404.

- apart: Optuna over independent runs, each with a replay of its own and new parameters
- search, inherit: `laser sweep --search optuna`, with new parameters or those of the best trial
- pbt, pbt separate: population based training of eight random draws, with one replay or one each
- random: eight random draws that share one replay

**Measures.** Returns are scaled so that random play is 0 and the optimum 1. The main one: 100 episodes of the best agent at the end, chosen
by its training returns. Beside it the share of all steps after which the best agent first had nine tenths of the optimum (1 if never), and
the mean over the run of the best agent so far. **Claims**, by Holm's rule at 5 %, averaged over the tasks first and paired by seed, on the
main measure: search less apart, inherit less apart, inherit less pbt, search less random.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.sharing import TASKS, sweep_of
from benchmarks.width import CARTPOLE, PAPER
from laser_rl.config import override
from laser_rl.envs.puzzles import task_of
from laser_rl.training.build_group import build_group
from laser_rl.training.evaluate import evaluate, trained_of
from laser_rl.training.member_training import MemberTraining
from laser_rl.training.pbt import PbtConfig
from laser_rl.training.search import SearchConfig, SearchState
from laser_rl.training.settings import LogUniform, SweepConfig, random
from laser_rl.training.trainer import Trainer

KEPT = Path(__file__).parent / "results" / "search.jsonl"
NAMES = ("catch", "cartpole", "deepsea-12", "keydoor-8")
CONDITIONS = ("apart", "search", "inherit", "pbt", "pbt separate", "random")
SEEDS = (400, 401, 402, 403, 404)
MEMBERS, TRIALS, POINTS, EPISODES = 8, 40, 20, 100
SPACE = {name: LogUniform(low=low, high=high) for name, (low, high) in PAPER.items()}
Row = dict[str, Any]


def settings_of(name: str, condition: str, seed: int) -> SweepConfig:
    """The sweep of a condition; of `apart` the base is what counts."""
    task, share = TASKS[name], "separate 0.1" if "separate" in condition else "trust 0.1"
    base = sweep_of(replace(task, members=({},) * MEMBERS), share, seed, "cpu").base
    drawn = {
        "base": base,
        "random": SPACE,
        "draws": MEMBERS,
        "share": "separate" if "separate" in condition else "shared",
    }
    if condition.startswith("pbt"):
        drawn["pbt"] = PbtConfig(burn_in_steps=task.steps // 10, every_episodes=150, margin=0.05)
    elif condition != "random":
        drawn["search"] = SearchConfig(trials=TRIALS, inherit=condition == "inherit")
    return SweepConfig.model_validate(drawn)


def scaled(name: str, value: float) -> float:
    """Random play is 0, the optimum 1."""
    if name == "cartpole":
        low, high = CARTPOLE
    else:
        task = task_of(TASKS[name].environment, TASKS[name].settings.get("options", {}))
        low, high = task.random_return, task.optimal_return
    return (value - low) / (high - low)


def together(sweep: SweepConfig) -> Iterator[tuple[int, list[MemberTraining]]]:
    """Total steps and members, a hundred times in the run."""
    group = build_group(sweep)
    trainer = Trainer(sweep, group)
    group.begin()
    every = sweep.base.run.steps // 100
    for end in range(every, sweep.base.run.steps + 1, every):
        while trainer.goes_on() and trainer.steps < end:
            trainer.turn()
            trainer.exploit()
        yield MEMBERS * end, trainer.trainings
    group.close()


def apart(sweep: SweepConfig) -> Iterator[tuple[int, list[MemberTraining]]]:
    """The same of independent runs, one after the other, which Optuna proposes and ends; the best so far is a member that stays."""
    import optuna  # noqa: PLC0415 - of this condition alone

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    assert sweep.search is not None
    seed, total, looks = sweep.base.run.seed, MEMBERS * sweep.base.run.steps, sweep.search.looks
    length = SearchState(sweep.search, sweep.random, sweep.settings, 0, sweep.base.run.steps).trial_steps
    pruner = optuna.pruners.MedianPruner(n_warmup_steps=looks // 5)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed), pruner=pruner)
    for own in random(SPACE, members=MEMBERS, seed=seed):  # the same first trials
        study.enqueue_trial(own)
    done, best, groups = 0, None, []
    while done < total and len(study.trials) < TRIALS:
        trial = study.ask()
        own = {name: trial.suggest_float(name, one.low, one.high, log=True) for name, one in SPACE.items()}
        base = override(sweep.base, {"run.seed": seed + 1000 * trial.number})
        single = SweepConfig(base=base, members=(own,), stack="off")
        group = build_group(single)
        trainer = Trainer(single, group)
        group.begin()
        [training], value = trainer.trainings, None
        for look in range(1, looks + 1):
            before = training.steps
            while trainer.goes_on() and training.steps < min(look * length // looks, total - done + before):
                trainer.turn()
            done += training.steps - before
            yield done, [training] if best is None else [best, training]
            value = training.window.numbers().get("return_mean")
            if value is not None:
                trial.report(value, look)
            if done >= total or (value is not None and look < looks and trial.should_prune()):
                break
        states = optuna.trial.TrialState
        state = states.FAIL if value is None else states.PRUNED if look < looks else states.COMPLETE
        study.tell(trial, value if state == states.COMPLETE else None, state=state)
        groups.append(group)
        if best is None or score(training) > score(best):
            best = training
    for group in groups:
        group.close()


def score(training: MemberTraining) -> float:
    """Mean return of the newest training episodes."""
    return float(training.window.numbers().get("return_mean") or -np.inf)


def run_one(name: str, condition: str, seed: int) -> Row:
    """Train; the line of the file."""
    torch.set_num_threads(1)
    began, sweep = time.perf_counter(), settings_of(name, condition, seed)
    total, curve, known, best = MEMBERS * sweep.base.run.steps, [0.0] * POINTS, 1.0, None
    for done, trainings in (apart if condition == "apart" else together)(sweep):
        best = max(trainings, key=score)
        if len(best.window.numbers()) and np.isfinite(score(best)):
            now = scaled(name, score(best))
            place = min(POINTS - 1, (done - 1) * POINTS // total)
            curve[place:] = [now] * (POINTS - place)
            if now >= 0.9 and best.window.episodes >= 20:
                known = min(known, done / total)
    assert best is not None
    learner = best.member.learner
    played = evaluate(trained_of(best.member, best.steps), episodes=EPISODES, deterministic=False, seed=seed)
    return {
        "task": name, "condition": condition, "seed": seed, "end": round(scaled(name, played.score), 4), "known": round(known, 4),
        "curve": [round(one, 4) for one in curve], "best": {one: float(f"{learner.setting(one):.4g}") for one in SPACE},
        "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def load(path: Path = KEPT) -> list[Row]:
    """The runs that are done."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def key(row: Mapping[str, Any]) -> tuple[str, str, int]:
    """What a run is known by."""
    return row["task"], row["condition"], row["seed"]


def run(asked: argparse.Namespace) -> None:
    """Run what the file does not have yet; all conditions of a seed before the next seed."""
    there = {key(row) for row in load(asked.out)}
    every = [(name, one, seed) for seed in asked.seeds for name in asked.tasks for one in CONDITIONS]
    jobs = [job for job in every if job not in there]
    print(f"{len(jobs)} runs to do, {len(there)} done", flush=True)
    make: Callable[..., ProcessPoolExecutor] = ProcessPoolExecutor
    with make(asked.workers, mp_context=get_context("spawn")) as pool, asked.out.open("a") as file:
        for future in as_completed([pool.submit(run_one, *job) for job in jobs]):
            row = future.result()
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(*key(row), f"end {row['end']}, known {row['known']}, {row['seconds']} s", flush=True)


def main() -> int:
    """The commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--tasks", nargs="+", choices=NAMES, default=list(NAMES))
    running.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    running.add_argument("--workers", type=int, default=1)
    running.add_argument("--out", type=Path, default=KEPT)
    commands.add_parser("report")
    asked = parser.parse_args()
    if asked.command == "run":
        run(asked)
    else:
        from benchmarks.search_report import publish  # noqa: PLC0415 - a run needs neither matplotlib nor scipy

        publish(load())
    return 0


if __name__ == "__main__":
    sys.exit(main())
