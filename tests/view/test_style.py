"""The page can be read by everybody: letters and lines have the contrast that WCAG asks for, light and dark."""

import re

import pytest

from laser_rl.view.report import static_files


def luminance(colour):
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first, second):
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("theme", "palette"), [(":root {", "LIGHT"), (':root[data-theme="dark"] {', "DARK")])
def test_letters_and_lines_can_be_told_from_what_is_behind_them(theme, palette):
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    style, script = static_files()["style.css"].decode(), static_files()["dom.js"].decode()
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", style.split(theme)[1].split("}")[0]))
    for name in ("ink", "soft", "good", "warn", "bad", "accent"):
        for behind in ("panel", "ground"):
            assert contrast(colours[name], colours[behind]) >= 4.5, (name, behind)
    assert contrast(colours["on-accent"], colours["accent"]) >= 4.5
    members = re.findall(r"#[0-9a-f]{6}", re.search(rf"const {palette} = \[(.*)\]", script)[1])
    assert len(set(members)) == 10
    for colour in members:
        assert contrast(colour, colours["panel"]) >= 3.0, colour
