"""What a mixture of tasks looks like in a report: a table with a line a task, and every task's curve in a picture of its own."""

from collections.abc import Sequence

from laser_rl.envs.scores import RETURN_OF, SCORE_OF
from laser_rl.metrics import display, drawing, page
from laser_rl.metrics.curves import curve
from laser_rl.metrics.sink import Row

_COLUMNS, _PANEL = 4, (3.2, 2.1)  # inches
_NONE = "–"
_CAPTION = (
    "Normalised scores over steps: 0 is random play, 1 the best known (dotted). Grey: the median of all tasks. Dots: evaluations. "
    "A task of which no such scores are known is shown with its raw return."
)


def task_names(rows: Sequence[Row]) -> list[str]:
    """The tasks that rows speak of, in order; none if it was no mixture.

    >>> task_names([{"kind": "train", "step": 1, "score_of_b": 0.5, "score_of_a": 0.1}])
    ['b', 'a']
    """
    names = (
        name for row in rows if row["kind"] in {"train", "evaluation"} for name in row if name.startswith(SCORE_OF)
    )
    return [name.removeprefix(SCORE_OF) for name in dict.fromkeys(names)]


def tasks_section(rows: Sequence[Row]) -> str:
    """The section of a report; nothing if it was no mixture.

    >>> tasks_section([{"kind": "train", "step": 1, "entropy": 0.5}])
    ''
    """
    picture = page.figure("Scores by task", tasks_picture(rows), _CAPTION, wide=True)
    return page.section("Tasks", tasks_table(rows) + picture)


def tasks_table(rows: Sequence[Row]) -> str:
    """The newest numbers of every task, from training and from the last evaluation, beside the scores they are compared with."""
    from laser_rl.envs.suites import reference_of  # noqa: PLC0415 - needs Gymnasium

    names = task_names(rows)
    trained, played = _newest(rows, "train"), _newest(rows, "evaluation")
    header = ["task", "random", "best", "return", "score", "evaluation", "its score"]
    lines = []
    for name in names:
        reference = reference_of(name)
        known = (None, None) if reference is None else (reference.random, reference.best)
        numbers = [values.get(prefix + name) for values in (trained, played) for prefix in (RETURN_OF, SCORE_OF)]
        lines.append([name, *(_text(value) for value in (*known, *numbers))])
    return page.grid(header, lines)


def tasks_picture(rows: Sequence[Row]) -> bytes | None:
    """Small multiples: one panel a task; None if it was no mixture. Where raw returns are among the scores, each has its own scale."""
    from laser_rl.envs.suites import reference_of  # noqa: PLC0415

    names = task_names(rows)
    if not names:
        return None
    lines, columns = -(-len(names) // _COLUMNS), min(len(names), _COLUMNS)
    figure = drawing.figure(_PANEL[0] * columns, _PANEL[1] * lines)
    comparable = all(reference_of(name) for name in names)
    panels = figure.subplots(lines, columns, sharex=True, sharey=comparable, squeeze=False)
    median = curve(rows, "return_mean")
    for number, name in enumerate(names):
        axes = panels.flat[number]
        axes.plot(*median, color="0.7", linewidth=1)
        axes.plot(*curve(rows, SCORE_OF + name), color="C0", linewidth=1.2)
        axes.plot(*curve(rows, SCORE_OF + name, "evaluation"), ".", color="C0")
        for level in (0, 1):
            axes.axhline(level, color="0.3", linewidth=0.8, linestyle="dotted")
        left, lowest = number % columns == 0, number + columns >= len(names)
        drawing.label(axes, "score" if left else "", name, "steps" if lowest else "")
        axes.title.set_fontsize(8)
        axes.tick_params(labelbottom=lowest)
    for axes in list(panels.flat)[len(names) :]:
        axes.set_visible(False)
    return drawing.png(figure)


def _newest(rows: Sequence[Row], kind: str) -> Row:
    values: Row = {}
    for row in rows:
        if row["kind"] == kind:
            values |= row
    return values


def _text(value: float | str | None) -> str:
    return _NONE if value is None else value if isinstance(value, str) else display.short(value)
