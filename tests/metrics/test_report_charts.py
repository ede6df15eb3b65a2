"""Charts: what is drawn lies where its numbers say, in the colour of its member."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.metrics import read
from laser_rl.metrics.reporting import pbt_sections, run_sections, sweep_sections
from laser_rl.metrics.reporting.binning import binned, percentile_band
from laser_rl.metrics.reporting.charts import classes, svg
from laser_rl.metrics.reporting.document import HeatMap, Lineage, Lines, Series, Stack, summary
from laser_rl.metrics.reporting.scales import Scale, bounds, ticks
from laser_rl.metrics.reporting.subject import Subject, subject_of
from laser_rl.metrics.sweep_curves import acceptance_matrix, copies, founders
from tests.metrics.test_sweep_rows import a_sweep

finite = st.floats(-1e6, 1e6, allow_nan=False)


@pytest.fixture(scope="module", params=[3, 9])
def sweep(request, tmp_path_factory):
    return subject_of(a_sweep(tmp_path_factory.mktemp("sweep"), request.param, pbt=True))


def of_rows(rows, members=3):
    return Subject(None, "x", rows, {}, {"settings": [{} for _ in range(members)]}, is_sweep=True)


def row(step, member, **values):
    return {"kind": "train", "step": step, "update": step, "member": member, **values}


def points(path):
    return np.array(re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path), dtype=float)


def tick_texts(picture, kind):
    pattern = rf'<text x="([\d.]+)" y="([\d.]+)" class="{kind}">([^<]+)</text>'
    return [(float(x), float(y), text) for x, y, text in re.findall(pattern, picture)]


def chart_of(rows, title):
    found = run_sections.learning(Subject(None, "x", rows, {}, {}, is_sweep=False))
    return next(one for one in found.blocks if getattr(one, "title", "") == title)


@pytest.mark.parametrize(
    ("policy", "value", "binned"), [(400, 400, True), (400, 3, True), (3, 400, True), (3, 3, False)]
)
def test_a_chart_says_that_points_are_bins_if_any_of_its_lines_has_them(policy, value, binned):
    rows = [row(step, 0, policy_loss=step % 7) for step in range(policy)]
    rows += [row(step, 0, value_loss=step % 5) for step in range(value)]
    assert ("means of bins" in chart_of(rows, "Losses").note) == binned


def test_a_map_of_ages_is_drawn_if_any_age_is_known():
    assert run_sections.age_map(np.array([[0.5, np.nan, np.nan]]), ("all",)) is not None
    assert run_sections.age_map(np.full((1, 3), np.nan), ("all",)) is None


@given(finite, finite, st.integers(3, 8))
def test_ticks_are_round_inside_and_not_too_many(first, second, most):
    low, high = sorted((first, second))
    found = ticks(low, high, most)
    assert len(found) <= most
    slack = 1e-6 * (abs(low) + abs(high))
    assert all(low - slack <= tick <= high + slack for tick in found)
    if high - low > 1e-3 and len(found) > 2:
        np.testing.assert_allclose(np.diff(found), found[1] - found[0], rtol=1e-6, atol=1e-9)


@given(st.lists(finite, min_size=1, max_size=9), st.booleans())
def test_bounds_hold_all_values_and_are_never_empty(values, log):
    array = np.array(values)
    low, high = bounds([array], (None, None), log=log)
    assert low < high
    assert log or (low < array.min() and high > array.max())  # a line on the edge is hard to see
    kept = array[array > 0] if log else array
    assert ((kept >= low) & (kept <= high)).all()


def test_rounding_is_no_range():
    low, high = bounds([np.array([0.1, 0.1 + 1e-17, 0.1 + 2e-16])], (None, None), log=False)
    assert (round(low, 9), round(high, 9)) == (0.05, 0.15)


def test_a_line_goes_through_its_numbers():
    steps, values = np.array([0.0, 500.0, 1000.0]), np.array([-3.0, 10.0, 4.0])
    picture = svg(Lines("a", "y", (Series("s", steps, values),)))
    drawn = points(re.search(r'class="line c0 d0" d="([^"]+)"', picture)[1])
    across = {text: x for x, _, text in tick_texts(picture, "mid")}
    up = {float(text): y - 4 for _, y, text in tick_texts(picture, "end")}
    x = Scale(0.0, 1000.0, across["0"], across["1k"])
    low, high = min(up), max(up)
    y = Scale(low, high, up[low], up[high])
    np.testing.assert_allclose(drawn, np.stack([x.at(steps), y.at(values)], 1), atol=0.15)


def test_a_band_lies_around_its_line_and_holes_are_holes():
    steps = np.arange(4.0)
    values = np.array([1.0, np.nan, 2.0, 3.0])
    picture = svg(Lines("a", "y", (Series("s", steps, values, values - 1, values + 1),)))
    band = points(re.search(r'class="band c0 d0" d="([^"]+)"', picture)[1])
    line_x, top_y, below_y = band[:3, 0], band[:3, 1], band[3:, 1][::-1]
    np.testing.assert_array_equal(line_x, band[3:, 0][::-1])  # there along the top, and back along the bottom
    np.testing.assert_allclose(below_y - top_y, below_y[0] - top_y[0], atol=0.15)
    assert (below_y > top_y).all()
    line = re.search(r'class="line c0 d0" d="([^"]+)"', picture)[1]
    assert line.count("M") == 2
    assert "nan" not in picture


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("values", [[5.0], [0.0, 0.0], [-1.0, 2.0], [1e-9, 1e9], [np.nan, 1.0]])
def test_no_number_spoils_a_picture(values, log):
    array = np.array(values)
    chart = Lines("a", "y", (Series("s", np.arange(float(len(array))), array),), marks=(1.0,), log=log)
    picture = svg(chart)
    assert not re.search(r"nan|inf\b", picture.partition(">")[2])
    assert summary(chart)


def test_a_name_cannot_leave_its_attribute():
    name = 'x" onload="alert(1)'
    page = svg(Lines(name, name, (Series(name, np.arange(2.0), np.arange(2.0)),), x_label=name))
    assert 'onload="' not in page
    assert svg(HeatMap(name, name, name, (name,), (name,), np.ones((1, 1)))).count('onload="') == 0


def test_bins_keep_extremes_and_the_mean():
    random = np.random.default_rng(0)
    steps, values = np.arange(10_000.0), random.normal(size=10_000)
    at, mean, low, high = binned((steps, values))
    assert len(at) == 240
    assert at[-1] == 9999
    assert (low.min(), high.max()) == (values.min(), values.max())
    edges = np.searchsorted(steps, at, side="right")
    expected = [part.mean() for part in np.split(values, edges[:-1])]
    np.testing.assert_allclose(mean, expected)
    shuffled = random.permutation(10_000)
    np.testing.assert_allclose(binned((steps[shuffled], values[shuffled]))[1], mean)
    band = percentile_band((steps, values), "x")
    np.testing.assert_allclose([band.low.mean(), band.y.mean(), band.high.mean()], [-1.28, 0.0, 1.28], atol=0.05)


def test_the_heat_map_has_its_numbers_where_the_matrix_has(sweep):
    members = len(sweep.members)
    matrix = acceptance_matrix(sweep.rows, members)
    chart = next(block for block in sweep_sections.trust(sweep).blocks if isinstance(block, HeatMap))
    np.testing.assert_array_equal(chart.values, matrix)
    picture = svg(chart)
    cells = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)".*?<text [^>]+>([^<]+)</text>', picture)
    assert len(cells) == members**2
    columns, rows = (sorted({float(cell[n]) for cell in cells}) for n in (0, 1))
    for x, y, text in cells:
        assert text == f"{100 * matrix[rows.index(float(y)), columns.index(float(x))]:.0f}"


def test_cells_without_a_number_say_so_and_dark_ones_have_light_letters():
    chart = HeatMap("a", "i", "j", ("0",), ("0", "1", "2"), np.array([[np.nan, 0.0, 1.0]]), top=1.0)
    picture = svg(chart)
    assert re.search(r'<rect class="none"[^>]+/><text [^>]+>–<', picture)
    assert "#00224e" in picture.partition("fill:#fff")[0]
    assert "#fee838" in picture.partition("fill:#fff")[2].partition("fill:#000")[0]


@pytest.mark.parametrize("chart", ["returns", "trust", "pbt"])
def test_a_member_has_its_colour_in_every_chart(sweep, chart):
    sections = {"returns": sweep_sections.returns, "trust": sweep_sections.trust, "pbt": pbt_sections.pbt}
    found = [block for block in sections[chart](sweep).blocks if isinstance(block, Lines) and block.legend]
    assert found
    for block in found:
        assert {one.name: one.colour for one in block.series} == {str(k): k for k in range(len(sweep.members))}
    assert len({classes(k) for k in range(36)}) == 36


def test_a_line_of_the_lineage_has_the_colour_of_its_founder(sweep):
    chart = next(block for block in pbt_sections.pbt(sweep).blocks if isinstance(block, Lineage))
    expected = founders(copies(sweep.rows), len(sweep.members))
    picture = svg(chart)
    for member in range(len(sweep.members)):
        told = re.findall(rf'class="life ([^"]+)"[^>]*><title>member {member} from step ([\d,]+)', picture)
        assert told == [(classes(founder), f"{step:,}") for step, founder in expected[member]]
    assert picture.count('class="arrow"') == len(copies(sweep.rows))


def test_the_line_of_a_setting_goes_through_its_exploits(sweep):
    [chart] = [block for block in pbt_sections.pbt(sweep).blocks if getattr(block, "y_label", "") == "learning_rate"]
    lines = {one.name: set(zip(one.x.tolist(), one.y.tolist(), strict=True)) for one in chart.series}
    for copy in copies(sweep.rows):
        assert (copy.step, copy.after["learning_rate"]) in lines[str(copy.member)]
    assert chart.log


def test_the_replay_is_stacked_to_the_top(sweep):
    chart = next(block for block in sweep_sections.replay(sweep).blocks if isinstance(block, Stack))
    np.testing.assert_allclose(chart.shares.sum(0), 1.0)
    areas = [points(path) for path in re.findall(r'class="area [^"]+" d="([^"]+)"', svg(chart))]
    tall = [area[: len(area) // 2, 1] - area[len(area) // 2 :, 1][::-1] for area in areas]
    np.testing.assert_allclose(np.array(tall) / np.sum(tall, axis=0), chart.shares, atol=0.005)


def test_no_chart_without_its_numbers():
    nothing = [row(10, k, note="x") for k in range(3)] + [{"kind": "sweep", "step": 10, "update": 1}]
    for rows in (nothing, []):
        subject = of_rows(rows)
        parts = (sweep_sections.returns, sweep_sections.trust, sweep_sections.replay, pbt_sections.pbt)
        assert [part(subject) for part in parts] == [None] * 4


def test_separate_members_have_no_picture_of_two():
    rows = [row(10, k, **{f"acceptance_from_{k}": 1.0, "learning_rate": 0.1}) for k in range(3)]
    blocks = sweep_sections.trust(of_rows(rows)).blocks
    assert not any(isinstance(block, HeatMap) for block in blocks)
    assert [block.title for block in blocks] == ["Trusted share of its own replayed steps"]


@pytest.mark.parametrize("members", [1, 20, 40])
def test_charts_of_few_and_many_members(tmp_path, members):
    subject = subject_of(a_sweep(tmp_path, members, pbt=members > 1, times=13))
    assert len(read(tmp_path)) == len(subject.rows)
    for part in (sweep_sections.returns, sweep_sections.trust, sweep_sections.replay):
        assert all(svg(block).startswith("<svg") for block in part(subject).blocks)
    assert (pbt_sections.pbt(subject) is not None) == (members > 1)
