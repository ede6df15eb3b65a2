"""Pictures of population based training as PNG: how settings moved, and who descends from whom."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from laser_rl.metrics import drawing
from laser_rl.metrics.curves import Curve, curve
from laser_rl.metrics.sink import Row
from laser_rl.metrics.sweep_curves import Copy, by_member, copies, founders

_TUNED = ("learning_rate", "entropy_cost")  # what training rows report
_MARK: dict[str, Any] = {
    "marker": "o",
    "linestyle": "none",
    "markersize": 5,
    "markeredgecolor": "black",
    "markeredgewidth": 0.7,
}
_MOST_ARROWS = 200  # more are neither readable nor quick: lines without heads instead
_ARROW: dict[str, Any] = {
    "arrowstyle": "-|>",
    "connectionstyle": "arc3,rad=0.15",  # bent, so that two at the same step are still two
    "color": "0.15",
    "linewidth": 0.9,
    "shrinkA": 0,
    "shrinkB": 2,
    "mutation_scale": 9,
}


def settings_picture(rows: Sequence[Row]) -> bytes | None:
    """Hyper-parameters over steps for each member, a mark at each exploit. None if nobody copied anybody."""
    history, owned = copies(rows), by_member(rows)
    names = [*_TUNED, *sorted({name for copy in history for name in copy.after} - set(_TUNED))]
    found = {name: _moves(owned, history, name) for name in names}
    found = {name: curves for name, curves in found.items() if curves}
    if not history or not found:
        return None
    figure = drawing.figure(width=7.2, height=0.8 + 2.2 * len(found))
    handles: list[Any] = []
    rows_of_axes = np.atleast_1d(figure.subplots(len(found), 1, sharex=True))
    for axes, (name, curves) in zip(rows_of_axes, found.items(), strict=True):
        lines = [
            axes.plot(*pair, drawstyle="steps-post", linewidth=1.4, label=str(member), **drawing.line(member))[0]
            for member, pair in curves.items()
        ]
        for member in curves:
            marks = [(copy.step, copy.after[name]) for copy in history if copy.member == member and name in copy.after]
            axes.plot(*np.array(marks).reshape(-1, 2).T, **_MARK, color=drawing.colour(member))
        _scale(axes, curves)
        drawing.label(axes, name, "", "steps" if axes is rows_of_axes[-1] else "")
        handles = max(handles, lines, key=len)
    drawing.legend(figure, handles)
    return drawing.png(figure)


def lineage_picture(rows: Sequence[Row], members: int) -> bytes | None:
    """A line a member, an arrow from donor to recipient at each exploit; None if there was none.

    The colour of a line is that of the member whose first parameters it carries.
    """
    history = [copy for copy in copies(rows) if max(copy.member, copy.donor) < members]
    if not history:
        return None
    end = max(float(row["step"]) for row in rows if "member" in row)
    figure = drawing.figure(width=7.2, height=1.0 + 0.36 * members)
    axes = figure.subplots()
    for member, changes in founders(history, members).items():
        stops = [step for step, _ in changes[1:]] + [end]
        for (start, founder), stop in zip(changes, stops, strict=True):
            axes.plot(
                [start, stop], [member, member], linewidth=4, solid_capstyle="butt", color=drawing.colour(founder)
            )
    if len(history) > _MOST_ARROWS:
        axes.vlines(
            *np.array([(copy.step, copy.donor, copy.member) for copy in history]).T, color="0.15", linewidth=0.3
        )
    else:
        for copy in history:
            axes.annotate("", xy=(copy.step, copy.member), xytext=(copy.step, copy.donor), arrowprops=_ARROW)
        axes.plot(*np.array([(copy.step, copy.donor) for copy in history]).T, "o", markersize=3, color="0.15")
    drawing.label(axes, "member", "")
    links = "lines: donor and recipient" if len(history) > _MOST_ARROWS else "arrows: from donor to recipient"
    axes.set_title(f"colour: whose first parameters it carries; {links}", fontsize=9)
    axes.grid(visible=False, axis="y")
    axes.set_yticks(range(members))
    for member, tick in enumerate(axes.get_yticklabels()):
        tick.set(color=drawing.colour(member), fontweight="bold")
    axes.set_ylim(members - 0.5, -0.5)
    axes.set_xlim(0, 1.03 * end)
    return drawing.png(figure)


def _moves(owned: Mapping[int, Sequence[Row]], history: Sequence[Copy], name: str) -> dict[int, Curve]:
    """Each member's setting over steps: as training rows report it, and as exploits set it."""
    found: dict[int, Curve] = {}
    for member, rows in owned.items():
        own = [copy for copy in history if copy.member == member and name in copy.before and name in copy.after]
        steps, values = curve(rows, name)
        points = list(zip(steps.tolist(), values.tolist(), strict=True))
        if own and not points:
            points = [(0.0, own[0].before[name]), (float(rows[-1]["step"]), own[-1].after[name])]
        # Stable: at the same step the exploit comes last, so that the line jumps at its mark.
        points = sorted([*points, *((float(copy.step), copy.after[name]) for copy in own)], key=lambda point: point[0])
        if points:
            array = np.array(points, dtype=np.float64)
            found[member] = array[:, 0], array[:, 1]
    return found


def _scale(axes: Any, curves: Mapping[int, Curve]) -> None:
    """Settings move by factors: a logarithmic axis, with plain numbers on it, where all are positive."""
    from matplotlib.ticker import FuncFormatter, LogLocator  # noqa: PLC0415

    if all((values > 0).all() for _, values in curves.values()):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda _value, _: ""))
