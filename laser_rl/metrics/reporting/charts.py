"""Charts as SVG for one page: no links, no scripts, text that stays text, and colours by class, so that the page chooses light or dark.

All are of one width, with letters that can still be read where that is scaled to a phone's.
"""

from html import escape

import numpy as np

from laser_rl.metrics.reporting.document import Array, Chart, HeatMap, Lineage, Lines, Series, Stack, summary
from laser_rl.metrics.reporting.scales import (
    Scale,
    bounds,
    log_ticks,
    path,
    place,
    short_count,
    shown,
    stairs,
    ticks,
    y_text,
)

COLOURS = 9  # classes c0 to c8; then the same ones dashed, d1 to d3
DASHES = 4
_WIDTH, _HEIGHT, _TOP, _BOTTOM, _RIGHT = 460, 270, 26, 42, 16
_LETTER = 8.6  # width of a digit in the larger letters of a phone
_MOST_NUMBERED, _MOST_TICKS = 10, 12
_MOST_ARROWS = 200  # more are not readable: lines without heads
# Five points of "cividis", which is read alike with every kind of colour blindness; between them linear.
_HEAT = np.array([(0, 34, 78), (65, 77, 107), (124, 123, 120), (187, 173, 108), (254, 232, 56)], dtype=np.float64)
_LIGHT_ABOVE = 0.45  # of the scale: from here on letters are black


def svg(chart: Chart) -> str:
    """The picture of a chart.

    >>> svg(Lines("Returns", "return", (Series("a", np.array([0.0, 1.0]), np.array([0.0, 1.0])),)))[:29]
    '<svg viewBox="0 0 460 270" ro'
    """
    if isinstance(chart, Lines):
        return _lines(chart)
    if isinstance(chart, HeatMap):
        return _heat_map(chart)
    return _stack(chart) if isinstance(chart, Stack) else _lineage(chart)


def classes(colour: int) -> str:
    """The classes of a member's colour, the same in every chart.

    >>> classes(0), classes(10), classes(-1)
    ('c0 d0', 'c1 d1', 'cx d0')
    """
    return f"c{colour % COLOURS} d{colour // COLOURS % DASHES}" if colour >= 0 else "cx d0"


def _open(chart: Chart, height: float = _HEIGHT) -> str:
    label = escape(f"{chart.title}: {summary(chart)}")
    return f'<svg viewBox="0 0 {_WIDTH} {place(height)}" role="img" aria-label="{label}">'


def _lines(chart: Lines) -> str:
    values = [array for one in chart.series for array in (one.y, one.low, one.high) if array is not None]
    low, high = bounds(values, chart.limits, log=chart.log)
    marks = log_ticks(low, high) if chart.log else ticks(low, high)
    texts = [y_text(value, share=chart.share) for value in marks]
    left = 10 + _LETTER * max(map(len, texts), default=1)
    if chart.ticks:
        x = Scale(-0.3, len(chart.ticks) - 0.7, left, _WIDTH - _RIGHT)
    else:
        every = np.concatenate([one.x for one in chart.series] or [np.zeros(1)])
        x = Scale(*_range(every), left, _WIDTH - _RIGHT)
    y = Scale(low, high, _HEIGHT - _BOTTOM, _TOP, log=chart.log)
    # A nested picture clips without an id, of which there is one for every chart on the page.
    box = (place(left), str(_TOP - 4), place(_WIDTH - _RIGHT + 4 - left), str(_HEIGHT - _BOTTOM - _TOP + 8))
    clip = '<svg x="{}" y="{}" width="{}" height="{}"'.format(*box) + f' viewBox="{" ".join(box)}">'
    drawn = [_band(one, x, y) for one in chart.series] + [_curve(one, x, y) for one in chart.series]
    return "".join(
        [
            _open(chart),
            _frame(x, y, list(zip(marks, texts, strict=True)), chart),
            clip,
            *(_mark(step, x) for step in chart.marks),
            *drawn,
            "</svg></svg>",
        ]
    )


def _range(x: Array) -> tuple[float, float]:
    low, high = float(x.min(initial=0.0)), float(x.max(initial=0.0))
    return (low, high) if high > low else (low - 1.0, high + 1.0)


def _frame(x: Scale, y: Scale, marks: list[tuple[float, str]], chart: Lines | Stack) -> str:
    """Axes, their ticks and their names."""
    bottom, parts = _HEIGHT - _BOTTOM, []
    for value, text in marks:
        top = y.place(value)
        level = f'y1="{place(top)}" y2="{place(top)}"'
        parts.append(f'<line class="grid" x1="{place(x.start)}" x2="{place(x.stop)}" {level}/>')
        parts.append(_text(x.start - 6, top + 4, text, "end"))
    names = chart.ticks if isinstance(chart, Lines) else ()
    steps = [(float(n), name) for n, name in enumerate(names)] or [(v, short_count(v)) for v in ticks(x.low, x.high)]
    parts += [_text(x.place(value), bottom + 16, text, "mid") for value, text in steps]
    label = chart.x_label if isinstance(chart, Lines) else "steps"
    axis = f'<line class="axis" x1="{place(x.start)}" x2="{place(x.stop)}" y1="{bottom}" y2="{bottom}"/>'
    return "".join([*parts, axis, _text(x.stop, bottom + 34, label, "end name"), _text(2, 13, chart.y_label, "name")])


def _mark(step: float, x: Scale) -> str:
    left = place(x.place(step))
    return (
        f'<line class="mark" x1="{left}" x2="{left}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}">'
        f"<title>resumed at step {step:,.0f}</title></line>"
    )


def _band(one: Series, x: Scale, y: Scale) -> str:
    if one.low is None or one.high is None:
        return ""
    whole = np.isfinite(one.low) & np.isfinite(one.high)
    left, low, high = x.at(one.x[whole]), y.at(one.low[whole]), y.at(one.high[whole])
    if not len(left):
        return ""
    around = path(np.concatenate([left, left[::-1]]), np.concatenate([high, low[::-1]]))
    return f'<path class="band {classes(one.colour)}" d="{around}Z"/>'


def _curve(one: Series, x: Scale, y: Scale) -> str:
    left, top = x.at(one.x), y.at(one.y)
    if one.style == "dots" or np.isfinite(top).sum() == 1:  # a line through one point cannot be seen
        points = [(a, b) for a, b in zip(left.tolist(), top.tolist(), strict=True) if np.isfinite(b)]
        return "".join(
            f'<circle class="dot {classes(one.colour)}" cx="{place(a)}" cy="{place(b)}" r="3"/>' for a, b in points
        )
    if one.style == "steps" and len(left):
        left, top = stairs(left, top)
    style = {"faint": " faint", "thick": " thick"}.get(one.style, "")
    return f'<path class="line {classes(one.colour)}{style}" d="{path(left, top)}"/>'


def _stack(chart: Stack) -> str:
    x, y = Scale(*_range(chart.x), 10 + _LETTER * 5, _WIDTH - _RIGHT), Scale(0.0, 1.0, _HEIGHT - _BOTTOM, _TOP)
    edges = np.vstack([np.zeros(len(chart.x)), np.cumsum(chart.shares, axis=0)])
    areas = []
    for member in range(len(chart.names)):
        left = np.concatenate([chart.x, chart.x[::-1]])
        around = np.concatenate([edges[member + 1], edges[member][::-1]])
        areas.append(f'<path class="area {classes(member)}" d="{path(x.at(left), y.at(around))}Z"/>')
    marks = [(value, y_text(value, share=True)) for value in ticks(0.0, 1.0)]
    return "".join(
        [_open(chart), _frame(x, y, marks, chart), *areas, *(_mark(step, x) for step in chart.marks), "</svg>"]
    )


def _heat_map(chart: HeatMap) -> str:
    down, across = chart.values.shape
    left = 12 + _LETTER * max(map(len, chart.rows))
    wide = (_WIDTH - _RIGHT - left) / across
    tall = min(wide, 56.0, max(22.0, 300.0 / down))
    known = chart.values[np.isfinite(chart.values)]
    top = chart.top or (float(known.max()) if len(known) else 0.0) or 1.0
    parts = [_open(chart, _TOP + 18 + down * tall + 30)]
    for (i, j), value in np.ndenumerate(chart.values):
        x, y = left + j * wide, _TOP + i * tall
        parts.append(_cell(x, y, wide, tall, value, top, chart, numbered=max(down, across) <= _MOST_NUMBERED))
    below = _TOP + down * tall
    for i in range(0, down, -(-down // _MOST_TICKS)):
        parts += [_text(left - 6, _TOP + (i + 0.5) * tall + 4, chart.rows[i], "end")]
    for j in range(0, across, -(-across // _MOST_TICKS)):
        parts += [_text(left + (j + 0.5) * wide, below + 16, chart.columns[j], "mid")]
    unit = ", values in %" if chart.share else ""
    parts += [_text(_WIDTH - _RIGHT, below + 36, chart.across, "end name"), _text(2, 13, chart.down + unit, "name")]
    return "".join([*parts, "</svg>"])


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{place(x)}" y="{place(y)}" class="{kind}">{escape(text)}</text>'


def _cell(x: float, y: float, wide: float, tall: float, value: float, top: float, chart: HeatMap, *, numbered: bool) -> str:  # fmt: skip
    box = f'x="{place(x)}" y="{place(y)}" width="{place(wide)}" height="{place(tall)}"'
    text = escape(shown(value, share=chart.share))
    middle = f'x="{place(x + wide / 2)}" y="{place(y + tall / 2)}" dy=".35em"'
    if not np.isfinite(value):
        return f'<rect class="none" {box}/>' + (f'<text {middle} class="mid">{text}</text>' if numbered else "")
    share = min(max(value / top, 0.0), 1.0)
    ink = "#000" if share > _LIGHT_ABOVE else "#fff"
    rect = f'<rect {box} fill="{_heat_colour(share)}"/>'
    return rect + (f'<text {middle} class="mid" style="fill:{ink}">{text}</text>' if numbered else "")


def _heat_colour(share: float) -> str:
    """The colour of a share of the scale.

    >>> _heat_colour(0.0), _heat_colour(1.0)
    ('#00224e', '#fee838')
    """
    at = share * (len(_HEAT) - 1)
    red, green, blue = (round(float(np.interp(at, range(len(_HEAT)), channel))) for channel in _HEAT.T)
    return f"#{red:02x}{green:02x}{blue:02x}"


def _lineage(chart: Lineage) -> str:
    tall = max(14.0, min(30.0, 360.0 / chart.members))
    height, left = _TOP + chart.members * tall + 42, 34.0
    x = Scale(0.0, max(chart.end, 1.0), left, _WIDTH - _RIGHT)
    parts = [_open(chart, height)]
    middles = [_TOP + (member + 0.5) * tall for member in range(chart.members)]
    for member, middle in enumerate(middles):
        parts += [_text(left - 8, middle + 4, str(member), f"end fill {classes(member)}")]
    for member, start, stop, founder in chart.pieces:
        ends, y = (place(x.place(start)), place(x.place(stop))), place(middles[member])
        told = f"member {member} from step {start:,.0f}: first parameters of {founder}"
        line = f'<line class="life {classes(founder)}" x1="{ends[0]}" x2="{ends[1]}" y1="{y}" y2="{y}">'
        parts.append(f"{line}<title>{told}</title></line>")
    for step, donor, member in chart.copies:
        head = len(chart.copies) <= _MOST_ARROWS
        parts.append(_arrow(x.place(step), middles[donor], middles[member], head=head))
    below = _TOP + chart.members * tall
    parts += [_text(x.place(value), below + 16, short_count(value), "mid") for value in ticks(0.0, x.high)]
    parts += [_text(_WIDTH - _RIGHT, below + 34, "steps", "end name"), _text(2, 13, "member", "name")]
    return "".join([*parts, "</svg>"])


def _arrow(x: float, start: float, stop: float, *, head: bool) -> str:
    line = f'<line class="arrow" x1="{place(x)}" x2="{place(x)}" y1="{place(start)}" y2="{place(stop)}"/>'
    if not head:
        return line
    back = stop - 7 if stop > start else stop + 7
    tip = f'<path class="tip" d="M{place(x)} {place(stop)}L{place(x - 3.5)} {place(back)}L{place(x + 3.5)} {place(back)}Z"/>'
    return line + f'<circle class="tip" cx="{place(x)}" cy="{place(start)}" r="2.5"/>' + tip
