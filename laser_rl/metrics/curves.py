"""Pictures of what was learned: returns over steps, several runs with their mean and range."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laser_rl.errors import ConfigError
from laser_rl.metrics import display, drawing
from laser_rl.metrics.condensed import Condensed
from laser_rl.metrics.log import FILE
from laser_rl.metrics.rows import episodes_in
from laser_rl.metrics.sink import Kind, Row
from laser_rl.metrics.window import EPISODES, window_for

Curve = tuple[NDArray[np.float64], NDArray[np.float64]]  # steps, values
MEDIAN = "Median over tasks of the normalised score"
_GRID = 400


def curve(rows: Sequence[Row], name: str, kind: Kind = "train") -> Curve:
    """The finite numbers called `name` in the rows of a kind, over steps.

    >>> steps, values = curve([{"kind": "train", "step": 10, "kl": 0.5}, {"kind": "train", "step": 20, "kl": float("nan")}], "kl")
    >>> steps.tolist(), values.tolist()
    ([10.0], [0.5])
    """
    pairs = [(row["step"], row[name]) for row in rows if row["kind"] == kind and _finite(row.get(name))]
    return _arrays(pairs)


def returns(rows: Sequence[Row]) -> Curve:
    """Mean return of the last 100 episodes (of a mixture: median score) over steps: as the run reported it, else from its episodes.

    >>> steps, values = returns([{"kind": "episode", "step": 10, "return": 1.0}, {"kind": "episode", "step": 20, "return": 2.0}])
    >>> values.tolist()
    [1.0, 1.5]
    """
    reported = curve(rows, "return_mean")
    if len(reported[0]):
        return reported
    episodes = [row for row in rows if row["kind"] == "episode" and _finite(row.get("return"))]
    tasks = list(dict.fromkeys(str(row["task"]) for row in episodes if "task" in row))
    window, pairs = window_for(tasks), []
    for row in episodes:
        for _ in range(min(episodes_in(row), EPISODES)):  # of a row of several, their mean for each
            window.add(float(row["return"]), tasks.index(str(row.get("task", tasks[0]))) if tasks else 0)
        pairs.append((row["step"], window.numbers()["return_mean"]))
    return _arrays(pairs)


def is_mixture(rows: Sequence[Row]) -> bool:
    """Whether several tasks were learned: then returns are normalised scores.

    >>> is_mixture([{"kind": "episode", "step": 10, "return": 1.0, "task": "laser/Catch"}])
    True
    """
    return any("task" in row or display.is_mixture(row) for row in rows)


def band(curves: Sequence[Curve]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Curves on common steps, where all of them have numbers: steps [n] and values [runs, n].

    >>> first = (np.array([0.0, 10.0]), np.array([0.0, 10.0]))
    >>> second = (np.array([5.0, 20.0]), np.array([0.0, 15.0]))
    >>> steps, values = band([first, second])
    >>> steps[[0, -1]].tolist(), values[:, -1].tolist()
    ([5.0, 10.0], [10.0, 5.0])
    """
    start, stop = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    if stop < start:
        return np.empty(0), np.empty((len(curves), 0))
    grid = np.linspace(start, stop, _GRID)
    return grid, np.stack([np.interp(grid, steps, values) for steps, values in curves])


def plot_returns(runs: Sequence[str | Path | Sequence[Row]], path: str | Path, *, title: str = "") -> Path:
    """Draw the training returns of run directories (or of their rows) over steps as a PNG.

    >>> import tempfile
    >>> rows = [{"kind": "train", "step": step, "update": 0, "return_mean": step / 10} for step in range(0, 100, 10)]
    >>> plot_returns([rows, rows], Path(tempfile.mkdtemp()) / "returns.png").read_bytes()[1:4]
    b'PNG'
    """
    all_rows = [Condensed.read(Path(run) / FILE).rows() if isinstance(run, str | Path) else run for run in runs]
    curves = [found for rows in all_rows if len((found := returns(rows))[0])]
    if not curves:
        raise ConfigError(f"expected at least one finished episode, got none in {len(runs)} runs; train for longer")
    figure = drawing.figure()
    axes = figure.subplots()
    for steps, values in curves:
        axes.plot(steps, values, color="C0", linewidth=1, alpha=1.0 if len(curves) == 1 else 0.35)
    if len(curves) > 1:
        grid, values = band(curves)
        if len(grid):
            axes.plot(grid, values.mean(0), color="C0", linewidth=2, label=f"mean of {len(curves)} runs")
            axes.fill_between(
                grid, values.min(0), values.max(0), color="C0", alpha=0.15, linewidth=0, label="lowest to highest"
            )
            axes.legend(frameon=False)
    several = any(is_mixture(rows) for rows in all_rows)
    drawing.label(axes, MEDIAN.lower() if several else "mean return of the last 100 episodes", title)
    Path(path).write_bytes(drawing.png(figure))
    return Path(path)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _arrays(pairs: Sequence[tuple[Any, Any]]) -> Curve:
    array = np.asarray(pairs, dtype=np.float64).reshape(-1, 2)
    return array[:, 0], array[:, 1]
