"""Write the page of an experiment (a chart, a table of verdicts, its command, tables by task as CSV) and the page over all of them."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from laser_rl.config import Frozen
from laser_rl.disk import write_bytes
from laser_rl.errors import ConfigError
from laser_rl.research.experiment import (
    EXPERIMENTS,
    STATISTICS,
    Experiment,
    ExperimentTask,
    data_file,
    experiment_of,
    suite_of,
)
from laser_rl.research.verdicts import ALL, Judged, judge, results_of

ABOUT, PAGE, PICTURE, CURVES, TIMES = "experiment.json", "README.md", "curves.png", "curves.csv", "times.csv"
SCORES, VERDICTS = "scores.csv", "verdicts.csv"
_NUMBERS = ("difference", "low", "high", "p_holm")
_VERDICT_COLUMNS = ("claim", "source", "statistic", "better", "worse", "margin", "task", *_NUMBERS, "verdict")
# Paul Tol's "muted" scheme: told apart with every kind of colour blindness.
_COLOURS = ("#332288", "#CC6677", "#44AA99", "#999933", "#88CCEE", "#882255", "#117733", "#DDCC77", "#AA4499")
_PANELS_A_ROW, _PANEL_WIDTH, _PANEL_HEIGHT, _LEGEND_WIDTH = 4, 3.2, 2.5, 2.0  # in inches


class About(Frozen):
    """How an experiment was run."""

    name: str
    suite: str
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    device: str
    smoke: bool
    command: str


def read_about(folder: Path) -> About:
    """ConfigError if a folder is not one of an experiment."""
    path = folder / ABOUT
    if not path.is_file():
        raise ConfigError(f"{folder} has no {ABOUT}; expected the folder of one experiment, such as OUT/sharing")
    try:
        return About.model_validate_json(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read: {error}; run the experiment again to write it anew") from None


def table(columns: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> bytes:
    """Lines as CSV, the same bytes for the same lines."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue().encode()


def read_table(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; remove it, and run the experiment again") from None


def report(folder: Path) -> list[Judged]:
    """Everything but the numbers, from `curves.csv` alone; returns the verdicts."""
    about = read_about(folder)
    if not (folder / CURVES).is_file():
        raise ConfigError(f"{folder} has no {CURVES} yet; let the experiment end, or run the same command again")
    lines = read_table(folder / CURVES)
    experiment = experiment_of(about.name)
    tasks = suite_of(about.suite).of(experiment, about.tasks, smoke=about.smoke)
    results = results_of(lines)
    judged = judge(experiment, tasks, results)
    scores = [
        {"task": task, "condition": condition, "seed": seed, **{name: f"{value:.6g}" for name, value in values.items()}}
        for task, conditions in results.items()
        for condition, seeds in conditions.items()
        for seed, values in seeds.items()
    ]
    write_bytes(folder / SCORES, table(("task", "condition", "seed", *STATISTICS), scores))
    write_bytes(folder / VERDICTS, table(_VERDICT_COLUMNS, map(_verdict_line, judged)))
    write_bytes(folder / PICTURE, picture(experiment, tasks, lines))
    write_bytes(folder / PAGE, _page(folder, about, experiment, judged).encode())
    return judged


def _verdict_line(judged: Judged) -> dict[str, Any]:
    verdict = judged.verdict
    numbers = () if verdict is None else (verdict.difference, *verdict.interval, verdict.p)
    return {
        **{name: getattr(judged.claim, name) for name in ("source", "statistic", "better", "worse", "margin")},
        **{name: f"{number:.5g}" for name, number in zip(_NUMBERS, numbers, strict=False)},
        "claim": judged.claim.text,
        "task": judged.task,
        "verdict": judged.word,
    }


def _page(folder: Path, about: About, experiment: Experiment, judged: Sequence[Judged]) -> str:
    """What was run, on what and for how long (a line for each machine and day), and the verdicts."""
    seconds: dict[str, list[float]] = {}
    for line in read_table(folder / TIMES) if (folder / TIMES).is_file() else []:
        seconds.setdefault(line["made_with"], []).append(float(line["seconds"]))
    made = [
        f"\n- {len(each)} runs, {sum(each) / 60:,.0f} minutes of one core or device: {made}"
        for made, each in sorted(seconds.items())
    ]
    smoke = "\n**Made with `--smoke`: runs are so short that nothing was learned.**\n" if about.smoke else ""
    return data_file("experiment_page.template").format(
        experiment=experiment,
        about=about,
        tasks=len(about.tasks),
        seeds=", ".join(map(str, about.seeds)),
        made="".join([*made, "\n"]) if made else "",
        smoke=smoke,
        notes=f"\n{experiment.notes}\n" if experiment.notes else "",
        verdicts="\n".join(verdict_table(judged)),
    )


def verdict_table(judged: Sequence[Judged]) -> Iterator[str]:
    """A line a claim: all tasks together, and how many tasks say what."""
    yield "| claim | source | measured by | all tasks | difference | by task |"
    yield "|---|---|---|---|---|---|"
    for one in judged:
        if one.task == ALL:
            claim, verdict = one.claim, one.verdict
            words = [other.word for other in judged if other.claim == claim and other.task != ALL]
            counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
            said = "" if verdict is None else _difference(verdict.difference, *verdict.interval, verdict.p)
            source = claim.source or "our question"
            yield f"| {claim.text} | {source} | {claim.statistic} | **{one.word}** | {said} | {counts} |"


def _difference(difference: float, low: float, high: float, p: float) -> str:
    return f"{difference:+.2f} [{low:+.2f}, {high:+.2f}], p = {p:.2g}"


def picture(experiment: Experiment, tasks: Sequence[ExperimentTask], lines: Sequence[Mapping[str, str]]) -> bytes:
    """A PNG of the mean over members and seeds by step, with the lowest and highest seed as a shade: a panel a task."""
    # Not pyplot: no window system is looked for, and nothing is kept in a global list.
    from matplotlib.figure import Figure  # noqa: PLC0415 - of the extra `experiments`

    rows = -(-len(tasks) // _PANELS_A_ROW)
    columns = -(-len(tasks) // rows)  # as many panels in every row as can be
    size = _PANEL_WIDTH * columns + _LEGEND_WIDTH, _PANEL_HEIGHT * rows + 0.4
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    figure.suptitle(f"{experiment.name}: {experiment.question}", fontsize=10)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    names = list(dict.fromkeys(line["condition"] for line in lines))
    for axes, task in zip(panels, tasks, strict=False):
        _panel(axes, task, names, [line for line in lines if line["task"] == task.name])
    for axes in panels[len(tasks) :]:
        axes.set_visible(False)
    handles = panels[0].get_legend_handles_labels()[0]
    style: dict[str, Any] = {"frameon": False, "fontsize": 8, "title_fontsize": 8, "loc": "outside right upper"}
    figure.legend(handles=handles, title="condition", **style)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _panel(axes: Any, task: ExperimentTask, names: Sequence[str], lines: Sequence[Mapping[str, str]]) -> None:
    from matplotlib.ticker import EngFormatter  # noqa: PLC0415

    for number, name in enumerate(names):
        runs: dict[int, list[tuple[float, float]]] = {}
        for line in lines:
            if line["condition"] == name:
                runs.setdefault(int(line["seed"]), []).append((float(line["step"]), float(line["mean"] or "nan")))
        if not runs:
            continue
        points = np.array(list(runs.values()))  # [seeds, buckets, 2]
        steps, returns = points[0, :, 0], points[:, :, 1]
        colour = _COLOURS[number % len(_COLOURS)]
        axes.plot(steps, returns.mean(0), label=name, lw=1.4, color=colour)
        axes.fill_between(steps, returns.min(0), returns.max(0), color=colour, alpha=0.15, lw=0)
    axes.set_xlabel("steps", fontsize=8)
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))  # 200 k, 5 M
    axes.set_ylabel("return", fontsize=8)
    axes.set_title(task.name, fontsize=9)
    axes.grid(visible=True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7)


def write_index(folder: Path) -> Path:
    """One page over a folder of experiments: every claim with what became of it, and what was not reproduced."""
    done = [name for name in EXPERIMENTS if all((folder / name / file).is_file() for file in (VERDICTS, ABOUT))]
    lines = [{**row, "experiment": name} for name in done for row in read_table(folder / name / VERDICTS)]
    for line in lines:
        numbers = [line[name] for name in _NUMBERS]
        line["difference"] = _difference(*map(float, numbers)) if all(numbers) else ""
    overall, experiments = [line for line in lines if line["task"] == ALL], list[str]()
    for name in done:
        about = read_about(folder / name)
        smoke = " Made with `--smoke`: nothing was learned." if about.smoke else ""
        run = f"Suite `{about.suite}`, {len(about.tasks)} tasks, {len(about.seeds)} seeds.{smoke}"
        experiments.append(f"- [{name}]({name}/{PAGE}): {EXPERIMENTS[name].question} {run}")
    text = data_file("index_page.template").format(
        experiments="\n".join(experiments),
        claims=_claims([line for line in overall if line["source"]]),
        questions=_claims([line for line in overall if not line["source"]]),
        refuted=_refuted([line for line in lines if line["verdict"] == "not reproduced"]),
    )
    write_bytes(folder / PAGE, text.encode())
    return folder / PAGE


def _claims(lines: Sequence[Mapping[str, str]]) -> str:
    if not lines:
        return "None of these experiments has any."
    cells = "\n| {experiment} | {claim} | {of} | **{verdict}** | {difference} |"
    rows = [cells.format(of=line["source"] or "–", **line) for line in lines]
    return "| experiment | claim | of | all tasks | difference |\n|---|---|---|---|---|" + "".join(rows)


def _refuted(lines: Sequence[Mapping[str, str]]) -> str:
    """A line for each claim that failed somewhere, with the tasks that decided against it."""
    places: dict[str, list[str]] = {}
    for line in lines:
        places.setdefault("- {experiment}: {claim}".format(**line), []).append(line["task"])
    return "\n".join(f"{claim}: {', '.join(own)}" for claim, own in places.items()) or "Nothing."
