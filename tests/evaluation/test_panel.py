"""What is drawn beside a picture is what was said, and the picture itself is left alone."""

import numpy as np
import pytest

from laser_rl.evaluation.video import WIDTH, SidePanel, _columns, fitted

GREEN, BLUE = (0x4F, 0xD0, 0x8B), (0x7F, 0xB0, 0xFF)


def drawn(shares, values=None):
    panel = SidePanel("step 1")
    for n, share in enumerate(shares):
        panel.add(value=float(n) if values is None else values[n], entropy=0.5, trusted=share)
    return panel.beside(np.zeros((288, 288, 3), np.uint8), total=1.0)


def pixels(frame, colour, rows=slice(None)):
    return int((frame[rows, 288:] == colour).all(-1).sum())


def test_the_green_area_is_the_trusted_share():
    rows = slice(217, 288)  # the third chart, without its title
    whole = pixels(drawn([1.0] * 64), GREEN, rows)
    assert whole > 5_000
    assert pixels(drawn([0.0, 1.0] * 32), GREEN, rows) == pytest.approx(whole / 2, rel=0.1)
    assert pixels(drawn([0.25] * 64), GREEN, rows) == pytest.approx(whole / 4, rel=0.15)
    assert pixels(drawn([1.0] * 32), GREEN, rows) == pytest.approx(whole / 2, rel=0.1), "half of the time has passed"
    assert pixels(drawn([None] * 64), GREEN, rows) == 0


def test_long_episodes_still_fit():
    rows = slice(217, 288)
    few, many = drawn([0.5] * 64), drawn([0.5] * 65_536)
    assert pixels(many, GREEN, rows) == pytest.approx(pixels(few, GREEN, rows), rel=0.05)
    assert many.shape == few.shape == (288, 288 + WIDTH, 3)


def test_what_is_not_finite_leaves_a_gap():
    gaps = drawn([None] * 64, [np.nan if 20 <= n < 44 else 1.0 * n for n in range(64)])
    whole = drawn([None] * 64)
    assert 0.4 < pixels(gaps, BLUE, slice(62, 120)) / pixels(whole, BLUE, slice(62, 120)) < 0.8
    drawn([None] * 3, [np.inf, -np.inf, np.nan])
    drawn([])


@pytest.mark.parametrize("shape", [(64, 64), (84, 84), (210, 160), (400, 600), (10, 5), (1000, 10)])
def test_a_picture_is_neither_too_small_nor_too_large(shape):
    picture = np.random.default_rng(0).integers(0, 255, (*shape, 3), np.uint8)
    seen = fitted(picture)
    assert max(seen.shape) <= 480
    if max(shape) <= 240:
        times = seen.shape[0] // shape[0]
        assert np.array_equal(seen[::times, ::times], picture)
    else:
        assert abs(seen.mean() - picture.mean()) < 2
    frame = SidePanel("").beside(picture, total=0.0)
    top = (frame.shape[0] - seen.shape[0]) // 2
    assert np.array_equal(frame[top : top + seen.shape[0], : seen.shape[1]], seen)


def test_columns_are_means_of_their_steps():
    numbers = np.random.default_rng(0).normal(size=1000)
    columns = _columns(numbers, 128)  # 1,024 steps have room: 8 a column
    assert columns == pytest.approx([numbers[n : n + 8].mean() for n in range(0, 1000, 8)])
