"""The page asks nobody for anything, can be read by everybody, and fits a phone, paper and the night."""

import itertools
import re

import pytest

from laser_rl.metrics.report import write_report
from laser_rl.metrics.reporting import style
from tests.metrics.reading import read_page
from tests.metrics.test_report import a_run
from tests.metrics.test_sweep_rows import a_sweep


@pytest.fixture(scope="module", params=["run", "sweep", "several"])
def page(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    runs = {
        "run": lambda: [a_run(folder / "a")],
        "sweep": lambda: [a_sweep(folder / "b", 20, pbt=True, times=13)],
        "several": lambda: [a_run(folder / "a"), a_run(folder / "c", 2.0, seed=8), a_sweep(folder / "b", 3)],
    }[request.param]()
    return read_page(write_report(runs, folder / "report.html")[0])


def test_nothing_is_asked_of_anybody_and_nothing_runs(page):
    assert not re.search(r"https?:|@import|url\(|expression\(|javascript:", page.source)
    for tag, name, value in page.attributes:
        assert name not in {"src", "srcset", "action", "xlink:href", "background", "ping"}, tag
        assert not name.startswith("on"), name
        assert name != "href" or re.fullmatch(r"#part-\d+", value)
    [policy] = [value for tag, name, value in page.attributes if tag == "meta" and value.startswith("default-src")]
    assert policy.startswith("default-src 'none'")
    assert "script" not in policy


def test_headings_are_in_order_and_links_lead_somewhere(page):
    assert page.levels[0] == 1
    assert page.levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(page.levels))
    targets = {value for _, name, value in page.attributes if name == "id"}
    links = [value[1:] for _, name, value in page.attributes if name == "href"]
    assert set(links) == targets
    assert len([value for _, name, value in page.attributes if name == "id"]) == len(targets)


def test_every_picture_has_a_name_a_sentence_and_a_role(page):
    assert len(page.pictures) == len(page.figures) > 0
    for title, label in zip(page.figures, page.pictures, strict=True):
        assert label.startswith(f"{title}: ")
        assert re.search(r"\d", label.removeprefix(title))
    assert page.source.count('role="img"') == len(page.pictures)
    assert '<html lang="en">' in page.source


def test_it_fits_a_phone_paper_and_the_night(page):
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page.source
    for query in ("max-width: 30rem", "prefers-color-scheme: dark", "print"):
        assert f"@media {query}" in page.source or f"@media ({query})" in page.source
    wide = page.source.count("<table>")
    assert page.source.count('class="scroll') == wide  # what is too wide scrolls by itself, not the page
    assert not [value for tag, name, value in page.attributes if tag == "svg" and name == "style"]


def luminance(colour):
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first, second):
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [style.LIGHT, style.DARK], ids=["light", "dark"])
def test_letters_and_lines_have_the_contrast_that_wcag_asks_for(colours):
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    for name, behind in [("ink", "page"), ("soft", "page"), ("link", "page"), ("warn", "warn-page"), ("fine", "fine-page"),
                         ("ink", "panel"), ("ink", "best"), ("ink", "none")]:  # fmt: skip
        assert contrast(colours[name], colours[behind]) >= 4.5, name
    for name in (*(f"c{n}" for n in range(9)), "cx", "warn"):
        assert contrast(colours[name], colours["page"]) >= 3.0, name
    assert style.LIGHT.keys() == style.DARK.keys()
