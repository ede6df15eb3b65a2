"""Legends of figures: readable however many names there are."""

import pytest

from laser_rl.research import drawing


@pytest.mark.parametrize(("members", "columns"), [(1, 1), (14, 1), (15, 2), (28, 2), (29, 3)])
def test_a_legend_has_at_most_fourteen_names_in_a_column(members, columns):
    figure = drawing.figure()
    axes = figure.subplots()
    handles = [axes.plot([0, 1], [k, k], label=f"member {k}", **drawing.line(k))[0] for k in range(members)]
    drawing.legend(figure, handles)
    drawing.png(figure)  # now everything has its place
    boxes = [text.get_window_extent() for text in figure.legends[0].get_texts()]
    assert len(boxes) == members
    assert len({round(box.x0) for box in boxes}) == columns
