"""Curves of an experiment: a panel a task, a colour a condition."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from laser_rl.research import drawing
from laser_rl.research.experiment import Experiment, ExperimentTask

COLUMNS = 4
WIDTH, HEIGHT = 3.2, 2.5  # of a panel, in inches
LEGEND = 2.0


def picture(experiment: Experiment, tasks: Sequence[ExperimentTask], lines: Sequence[Mapping[str, str]]) -> bytes:
    """A PNG of the mean over members and seeds by step, with the lowest and highest seed as a shade."""
    rows = -(-len(tasks) // COLUMNS)
    columns = -(-len(tasks) // rows)  # as many panels in every row as can be
    figure = drawing.figure(WIDTH * columns + LEGEND, HEIGHT * rows + 0.4)
    figure.suptitle(f"{experiment.name}: {experiment.question}", fontsize=10)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    names = list(dict.fromkeys(line["condition"] for line in lines))
    for axes, task in zip(panels, tasks, strict=False):
        _panel(axes, task, names, [line for line in lines if line["task"] == task.name])
    for axes in panels[len(tasks) :]:
        axes.set_visible(False)
    drawing.legend(figure, panels[0].get_legend_handles_labels()[0], title="condition")
    return drawing.png(figure)


def _panel(axes: Any, task: ExperimentTask, names: Sequence[str], lines: Sequence[Mapping[str, str]]) -> None:
    for number, name in enumerate(names):
        runs: dict[int, list[tuple[float, float]]] = {}
        for line in lines:
            if line["condition"] == name:
                runs.setdefault(int(line["seed"]), []).append((float(line["step"]), float(line["mean"] or "nan")))
        if not runs:
            continue
        points = np.array(list(runs.values()))  # [seeds, buckets, 2]
        steps, returns = points[0, :, 0], points[:, :, 1]
        style = drawing.line(number)
        axes.plot(steps, returns.mean(0), label=name, lw=1.4, **style)
        axes.fill_between(steps, returns.min(0), returns.max(0), color=style["color"], alpha=0.15, lw=0)
    drawing.label(axes, "return", task.name)
    axes.title.set_fontsize(9)
    axes.xaxis.label.set_fontsize(8)
    axes.yaxis.label.set_fontsize(8)
    axes.tick_params(labelsize=7)
