"""What an experiment leaves beside its numbers: a picture, a table of verdicts, and a page that says how it was made."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import ConfigDict, TypeAdapter

from laser_rl.checkpoint.atomic import write_bytes, write_json
from laser_rl.errors import ConfigError
from laser_rl.research.experiment import STATISTICS, Experiment, Task
from laser_rl.research.experiments import EXPERIMENTS
from laser_rl.research.pictures import picture
from laser_rl.research.runner import CURVES, TIMES, read_table, table
from laser_rl.research.suites import shrunk, suite_of
from laser_rl.research.verdicts import ALL, Judged, Results, Spread, judge, overall, results_of, scores_of, spread_of

ABOUT, PAGE, PICTURE, SCORES, VERDICTS = "experiment.json", "README.md", "curves.png", "scores.csv", "verdicts.csv"


@dataclass(frozen=True)
class About:
    """How an experiment was run."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    suite: str
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    device: str
    smoke: bool
    command: str

    def experiment(self) -> Experiment:
        """By its name."""
        return experiment_of(self.name)

    def task_list(self) -> list[Task]:
        """As they were run."""
        found = [suite_of(self.suite).task(name) for name in self.tasks]
        return [shrunk(task) for task in found] if self.smoke else found


_ABOUT = TypeAdapter(About)


def experiment_of(name: str) -> Experiment:
    """An experiment by name; ConfigError if there is none.

    >>> experiment_of("rho").figure
    'Fig. 4, left'
    """
    if name not in EXPERIMENTS:
        raise ConfigError(f"there is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]


def write_about(folder: Path, about: About) -> None:
    """Beside the numbers."""
    write_json(folder / ABOUT, vars(about))


def read_about(folder: Path) -> About:
    """ConfigError if a folder is not one of an experiment."""
    path = folder / ABOUT
    if not path.is_file():
        raise ConfigError(f"{folder} has no {ABOUT}; expected the folder of one experiment, such as OUT/sharing")
    try:
        values = json.loads(path.read_bytes())
        return _ABOUT.validate_python(values)
    except (ValueError, RecursionError) as error:  # pydantic's are such
        raise ConfigError(f"{path} cannot be read: {error}; run the experiment again to write it anew") from None


def report(folder: Path) -> list[Judged]:
    """Everything but the numbers, from `curves.csv` alone; returns the verdicts."""
    about = read_about(folder)
    if not (folder / CURVES).is_file():
        raise ConfigError(f"{folder} has no {CURVES} yet; let the experiment end, or run the same command again")
    lines = read_table(folder / CURVES)
    experiment, tasks = about.experiment(), about.task_list()
    results = results_of(lines)
    judged = judge(experiment, tasks, results)
    write_bytes(folder / SCORES, table(("task", "condition", "seed", *STATISTICS), _score_lines(results)))
    write_bytes(folder / VERDICTS, table(_VERDICT_COLUMNS, [_verdict_line(one) for one in judged]))
    write_bytes(folder / PICTURE, picture(experiment, tasks, lines))
    page = _page(about, experiment, tasks, results, judged, _made(folder))
    write_bytes(folder / PAGE, ("\n".join(page) + "\n").encode())
    return judged


_NUMBERS = ("difference", "low", "high")
_VERDICT_COLUMNS = ("claim", "source", "statistic", "better", "worse", "margin", "task", *_NUMBERS, "verdict")


def _verdict_line(judged: Judged) -> dict[str, Any]:
    claim, verdict = judged.claim, judged.verdict
    numbers = ("", "", "") if verdict is None else (verdict.difference, *verdict.interval)
    values = (claim.text, claim.source, claim.statistic, claim.better, claim.worse, claim.margin, judged.task)
    cells = (*values, *(f"{number:.5g}" if number != "" else "" for number in numbers), judged.word)
    return dict(zip(_VERDICT_COLUMNS, cells, strict=True))


def _score_lines(results: Results) -> list[dict[str, Any]]:
    return [
        {"task": task, "condition": condition, "seed": seed, **{name: f"{value:.6g}" for name, value in values.items()}}
        for task, conditions in results.items()
        for condition, seeds in conditions.items()
        for seed, values in seeds.items()
    ]


def _made(folder: Path) -> list[str]:
    """On what runs were made and how long they took, a line for each machine and day."""
    path = folder / TIMES
    lines = read_table(path) if path.is_file() else []
    seconds: dict[str, list[float]] = {}
    for line in lines:
        seconds.setdefault(line["made_with"], []).append(float(line["seconds"]))
    return [
        f"- {len(each)} runs, {sum(each) / 60:,.0f} minutes of one core or device: {made}"
        for made, each in sorted(seconds.items())
    ]


def _page(
    about: About,
    experiment: Experiment,
    tasks: Sequence[Task],
    results: Results,
    judged: Sequence[Judged],
    made: Sequence[str],
) -> list[str]:
    return [
        f"# {experiment.name}: {experiment.question}",
        "",
        f"{experiment.figure}. Suite `{about.suite}`, seeds {', '.join(map(str, about.seeds))}, device {about.device}.",
        *(["", *made] if made else []),
        *(["", "**Made with `--smoke`: runs are so short that nothing was learned.**"] if about.smoke else []),
        "",
        f"```\n{about.command}\n```",
        *(["", experiment.notes] if experiment.notes else []),
        "",
        f"![returns over steps]({PICTURE})",
        "",
        "Lines are means over members and seeds, shades the lowest and the highest seed.",
        "",
        "## Verdicts",
        "",
        *verdict_table(judged),
        "",
        "Differences are in scores (0 random play, 1 the best); brackets are 95 % intervals over seeds, paired. Measured by:",
        *(f"{'' if number else chr(10)}- *{name}*: {text}" for number, (name, text) in enumerate(STATISTICS.items())),
        "",
        "## By task",
        "",
        *_by_task(judged),
        "",
        "## Scores over the whole run",
        "",
        *_matrix(tasks, results),
        "",
        "## Over all tasks",
        "",
        *_overall_table(tasks, results),
        *(line for task in tasks for line in _task_table(task, results[task.name])),
    ]


def verdict_table(judged: Sequence[Judged]) -> list[str]:
    """A line a claim: all tasks together, and how many tasks say what."""
    lines = ["| claim | source | measured by | all tasks | difference | by task |", "|---|---|---|---|---|---|"]
    for one in judged:
        if one.task == ALL:
            words = [other.word for other in judged if other.claim == one.claim and other.task != ALL]
            counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
            lines.append(
                f"| {one.claim.text} | {one.claim.source or 'our question'} | {one.claim.statistic} | **{one.word}** | "
                f"{_difference(one)} | {counts} |"
            )
    return lines


def _by_task(judged: Sequence[Judged]) -> list[str]:
    lines = ["| claim | task | difference | verdict |", "|---|---|---|---|"]
    return lines + [
        f"| {one.claim.text} | {one.task} | {_difference(one)} | {one.word} |" for one in judged if one.task != ALL
    ]


def _difference(judged: Judged) -> str:
    if judged.verdict is None:
        return ""
    low, high = judged.verdict.interval
    return f"{judged.verdict.difference:+.2f} [{low:+.2f}, {high:+.2f}]"


def _matrix(tasks: Sequence[Task], results: Results) -> list[str]:
    """Tasks by conditions; the best of a line stands out, which says nothing about its distance to the others."""
    conditions = list(results[tasks[0].name])
    lines = [f"| task | {' | '.join(conditions)} |", "|---" * (1 + len(conditions)) + "|"]
    for task in tasks:
        scores = scores_of(task, results[task.name], "whole run")
        means = {condition: float(np.mean(list(scores[condition].values()))) for condition in conditions}
        best = max(means.values())
        cells = [f"**{mean:.3f}**" if mean == best else f"{mean:.3f}" for mean in means.values()]
        lines.append(f"| {task.name} | {' | '.join(cells)} |")
    return lines


def _overall_table(tasks: Sequence[Task], results: Results) -> list[str]:
    names = " | ".join(f"IQM, {name}" for name in STATISTICS)
    lines = [f"| condition | median, best | capped mean, best | {names} |", "|---|---|---|---|---|---|"]
    for condition, found in overall(tasks, results).items():
        cells = " | ".join(_spread(found.iqm[name]) for name in STATISTICS)
        lines.append(f"| {condition} | {found.median_best:.2f} | {found.capped_best:.2f} | {cells} |")
    return [*lines, "", "Scores. IQM: interquartile mean over tasks and seeds, interval by stratified bootstrap."]


def _task_table(task: Task, results: Mapping[str, Mapping[int, Any]]) -> list[str]:
    base = task.sweep.base
    head = f"`{base.environment.id}`, {base.run.steps:,} steps a member; random play {task.random:.3g}, best {task.best:.3g}. Returns:"
    lines = ["", f"## {task.name}", "", head, ""]
    lines += [f"| condition | seeds | {' | '.join(STATISTICS)} |", "|---|---|---|---|---|"]
    for condition, seeds in results.items():
        cells = [_spread(spread_of([values[name] for values in seeds.values()])) for name in STATISTICS]
        lines.append(f"| {condition} | {len(seeds)} | {' | '.join(cells)} |")
    return lines


def _spread(spread: Spread) -> str:
    return f"{spread.mean:.3g} [{spread.low:.3g}, {spread.high:.3g}]"
