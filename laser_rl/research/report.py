"""Write the page of an experiment: a chart, a table of verdicts and its command; tables by task become CSV files."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import ConfigDict, TypeAdapter

from laser_rl.disk import write_bytes, write_json
from laser_rl.errors import ConfigError
from laser_rl.research.experiment import STATISTICS, Experiment, ExperimentTask
from laser_rl.research.experiments import EXPERIMENTS
from laser_rl.research.pictures import picture
from laser_rl.research.runner import CURVES, TIMES, read_table, table
from laser_rl.research.suites import shrunk, suite_of
from laser_rl.research.verdicts import ALL, Judged, Results, Spread, judge, overall, results_of, spread_of

ABOUT, PAGE, PICTURE = "experiment.json", "README.md", "curves.png"
SCORES, SUMMARY, VERDICTS = "scores.csv", "summary.csv", "verdicts.csv"


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

    def task_list(self) -> list[ExperimentTask]:
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
    write_bytes(folder / SUMMARY, table(_SUMMARY_COLUMNS, _summary_lines(tasks, results)))
    page = _page(about, experiment, judged, _made(folder))
    write_bytes(folder / PAGE, ("\n".join(page) + "\n").encode())
    return judged


_NUMBERS = ("difference", "low", "high")
_VERDICT_COLUMNS = ("claim", "source", "statistic", "better", "worse", "margin", "task", *_NUMBERS, "verdict")
_SUMMARY_COLUMNS = ("task", "condition", "measure", "mean", "low", "high")


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


def _page(about: About, experiment: Experiment, judged: Sequence[Judged], made: Sequence[str]) -> list[str]:
    return [
        f"# {experiment.name}: {experiment.question}",
        "",
        f"{experiment.figure}. Suite `{about.suite}`, {len(about.tasks)} tasks, seeds {', '.join(map(str, about.seeds))}, {about.device}.",
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
        *verdict_table(judged),
        "",
        "Differences are in scores (0 random play, 1 the best), paired by seed, with 95 % intervals.",
        f"Each task: [verdicts]({VERDICTS}), [means with intervals]({SUMMARY}), [every run]({SCORES}), [curves]({CURVES}).",
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


def _difference(judged: Judged) -> str:
    if judged.verdict is None:
        return ""
    low, high = judged.verdict.interval
    return f"{judged.verdict.difference:+.2f} [{low:+.2f}, {high:+.2f}]"


def _summary_lines(tasks: Sequence[ExperimentTask], results: Results) -> Iterator[dict[str, Any]]:
    """Returns of each task over seeds; scores of all tasks together as interquartile means over tasks and seeds."""
    for task in tasks:
        for condition, seeds in results[task.name].items():
            for name in STATISTICS:
                yield _summary(task.name, condition, name, spread_of([values[name] for values in seeds.values()]))
    for condition, found in overall(tasks, results).items():
        for name in STATISTICS:
            yield _summary(ALL, condition, f"{name}, IQM", found.iqm[name])
        for measure, value in (("best, median", found.median_best), ("best, capped mean", found.capped_best)):
            yield _summary(ALL, condition, measure, Spread(value, np.nan, np.nan))


def _summary(task: str, condition: str, measure: str, spread: Spread) -> dict[str, Any]:
    numbers = ("" if np.isnan(value) else f"{value:.5g}" for value in spread)
    return dict(zip(_SUMMARY_COLUMNS, (task, condition, measure, *numbers), strict=True))
