"""Pictures of a sweep as PNG: returns, who learns from whom, what is in the replay. None where the rows have no numbers for one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laser_rl.metrics import drawing
from laser_rl.metrics.curves import Curve
from laser_rl.metrics.sink import Row
from laser_rl.metrics.sweep_curves import (
    AGES,
    acceptance_by_age,
    acceptance_matrix,
    acceptance_over_time,
    age_percentiles,
    composition,
    divergence_matrix,
    member_returns,
    own_and_others,
    spread,
)

_MOST_NUMBERED = 10  # members; more have no room for a number in each cell
_MOST_TICKS = 12
_DARK = 0.55  # of the colour scale: below it, numbers are white


def returns_picture(rows: Sequence[Row], label: str = "mean return of the last 100 episodes") -> bytes | None:
    """Returns of each member, the best at each time (optimistic, see `spread`), mean and range."""
    curves = member_returns(rows)
    if not curves:
        return None
    figure = drawing.figure(width=7.2, height=4.0)
    axes = figure.subplots()
    found = spread(curves)
    handles = _lines(axes, curves)
    if len(found.steps) and len(curves) > 1:
        handles += axes.plot(found.steps, found.mean, color="0.45", linewidth=1.6, linestyle=(0, (2, 2)), label="mean")
        handles += axes.plot(
            found.steps, found.best, color="black", linewidth=3.2, label="best at each time", zorder=1.9
        )
        handles.append(
            axes.fill_between(
                found.steps, found.low, found.high, color="0.88", linewidth=0, label="lowest to highest", zorder=0
            )
        )
    drawing.label(axes, label, "")
    drawing.legend(figure, handles)
    return drawing.png(figure)


def trust_picture(rows: Sequence[Row], members: int) -> bytes | None:
    """Who learns from whom, at the end: learner down, source across. None if nobody replays what others produced."""
    matrix = acceptance_matrix(rows, members)
    if not _of_others(matrix):
        return None
    figure = drawing.figure(width=5.6, height=4.6)
    axes = figure.subplots()
    image = _heat(axes, 100 * matrix, "viridis", high=100.0, form="{:.0f}")
    _name(axes, "learner", "source of the replayed steps", "Trusted share of replayed steps, %")
    figure.colorbar(image, ax=axes)
    return drawing.png(figure)


def trust_over_time_picture(rows: Sequence[Row], members: int, times: int = 4) -> bytes | None:
    """Who learns from whom, at several steps."""
    steps, matrices = acceptance_over_time(rows, members, times=times)
    if not any(_of_others(matrix) for matrix in matrices):
        return None
    figure = drawing.figure(width=8.4, height=2.9)
    row_of_axes = np.atleast_1d(figure.subplots(1, times, sharey=True))
    for axes, step, matrix in zip(row_of_axes, steps, matrices, strict=True):
        _heat(axes, 100 * matrix, "viridis", high=100.0)
        _name(axes, "", "source", f"step {step:,.0f}")
    row_of_axes[0].set_ylabel("learner")
    figure.colorbar(row_of_axes[-1].images[0], ax=row_of_axes, label="trusted, %", shrink=0.7)
    return drawing.png(figure)


def acceptance_picture(rows: Sequence[Row], members: int) -> bytes | None:
    """Share that each member trusts over steps: of its own replayed steps, and of others'."""
    found = {member: own_and_others(rows, member) for member in range(members)}
    panels = {
        "of its own": {member: pair[0] for member, pair in found.items() if len(pair[0][0])},
        "of the others": {member: pair[1] for member, pair in found.items() if len(pair[1][0])},
    }
    panels = {title: curves for title, curves in panels.items() if curves}
    if not panels:
        return None
    figure = drawing.figure(width=1.2 + 3.0 * len(panels), height=3.4)
    handles: list[Any] = []
    row_of_axes = np.atleast_1d(figure.subplots(1, len(panels), sharey=True))
    for axes, (title, curves) in zip(row_of_axes, panels.items(), strict=True):
        handles = max(handles, _lines(axes, curves), key=len)
        drawing.label(axes, "trusted share of replayed steps" if axes is row_of_axes[0] else "", title)
        axes.set_ylim(0, 1.02)
    drawing.legend(figure, handles)
    return drawing.png(figure)


def age_picture(rows: Sequence[Row], members: int) -> bytes | None:
    """Share that is trusted by the age of the data."""
    matrix = acceptance_by_age(rows, members)
    if not np.isfinite(matrix).any():
        return None
    figure = drawing.figure()
    axes = figure.subplots()
    handles = [
        axes.plot(range(len(AGES)), shares, marker="o", markersize=4, label=str(member), **drawing.line(member))[0]
        for member, shares in enumerate(matrix)
        if np.isfinite(shares).any()
    ]
    drawing.label(axes, "trusted share of replayed steps", "", "age of the data, updates")
    axes.set_xticks(range(len(AGES)), AGES)
    axes.set_xlim(-0.3, len(AGES) - 0.7)
    axes.set_ylim(0, 1.02)
    drawing.legend(figure, handles)
    return drawing.png(figure)


def replay_picture(rows: Sequence[Row], members: int) -> bytes | None:
    """What is in the replay over steps: shares by member, and ages."""
    steps, shares = composition(rows, members)
    age_steps, ages = age_percentiles(rows)
    if not len(steps) and not len(age_steps):
        return None
    figure = drawing.figure(width=7.2, height=4.6)
    top, below = figure.subplots(2, 1, sharex=True)
    colours = [drawing.colour(member) for member in range(members)]
    names = [str(member) for member in range(members)]
    areas = top.stackplot(steps, shares, colors=colours, labels=names, edgecolor="white", linewidth=0.4)
    low, first, middle, third, high = ages
    below.fill_between(age_steps, low, high, color="0.88", linewidth=0, label="youngest to oldest")
    below.fill_between(age_steps, first, third, color="0.65", linewidth=0, label="middle half")
    below.plot(age_steps, middle, color="black", linewidth=1.5, label="median")
    drawing.label(top, "share of the replay", "", "")
    top.set_ylim(0, 1)
    drawing.label(below, "age, updates", "", "steps of a member")
    below.set_ylim(bottom=0)
    below.legend(frameon=False, fontsize=8, loc="upper left")
    drawing.legend(figure, list(areas)[::-1])  # in the order of the picture, from top to bottom
    return drawing.png(figure)


def divergence_picture(rows: Sequence[Row], members: int) -> bytes | None:
    """How far policies are from one another on replayed states."""
    matrix = divergence_matrix(rows, members)
    if not _of_others(matrix):
        return None
    figure = drawing.figure(width=5.6, height=4.6)
    axes = figure.subplots()
    image = _heat(axes, matrix, "cividis", form="{:.2g}")
    _name(axes, "policy i", "policy j", "Mean KL(policy i || policy j) on replayed states")
    figure.colorbar(image, ax=axes)
    return drawing.png(figure)


def _lines(axes: Any, curves: dict[int, Curve]) -> list[Any]:
    return [
        axes.plot(steps, values, linewidth=1.2, label=str(member), **drawing.line(member))[0]
        for member, (steps, values) in curves.items()
    ]


def _heat(
    axes: Any, matrix: NDArray[np.float64], colours: str, *, high: float | None = None, form: str | None = None
) -> Any:
    """A heat map from 0 to `high`; grey where there is no number."""
    members, top = len(matrix), high or float(np.nanmax(matrix)) or 1.0
    axes.set_facecolor("0.85")
    image = axes.imshow(np.ma.masked_invalid(matrix), cmap=colours, vmin=0, vmax=top)
    ticks = range(0, members, -(-members // _MOST_TICKS))
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    axes.tick_params(length=0)
    if form is not None and members <= _MOST_NUMBERED:
        for (i, j), value in np.ndenumerate(matrix):
            ink = "white" if value < _DARK * top else "black"  # no comparison holds for NaN: black on grey
            axes.text(
                j, i, form.format(value) if np.isfinite(value) else "–", ha="center", va="center", color=ink, fontsize=8
            )
    return image


def _name(axes: Any, down: str, across: str, title: str) -> None:
    axes.set_ylabel(down)
    axes.set_xlabel(across)
    axes.set_title(title, fontsize=10)


def _of_others(matrix: NDArray[np.float64]) -> bool:
    """Whether any number is about two different members."""
    return bool(np.isfinite(matrix[~np.eye(len(matrix), dtype=bool)]).any())
