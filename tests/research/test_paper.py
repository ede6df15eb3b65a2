"""The paper's tables: what is in them, and the medians they give."""

import csv
from pathlib import Path

import pytest

from laser_rl.envs.scores import ATARI_57, SUITES
from laser_rl.research.paper import (
    COLUMNS,
    atari_median,
    atari_scores,
)
from tests import references
from tests.references.scores import naive_median


@pytest.mark.parametrize(
    ("name", "recomputed", "published"),
    [
        ("laser_shared_sweep_50M", 364.96, 370.0),
        ("laser_shared_sweep_200M", 412.40, 448.0),
        ("laser_no_sweep_200M", 454.91, 431.0),
        ("rainbow_no_sweep_200M", 230.99, None),
    ],
)
def test_recomputed_medians_beside_the_published_ones(name, recomputed, published):
    [column] = [column for column in COLUMNS if column.name == name]
    assert round(100 * atari_median(column), 2) == recomputed
    assert column.published_median == published
    scores = [ATARI_57[game].normalised(score) for game, score in atari_scores()[column.name].items()]
    assert 100 * naive_median(scores) == pytest.approx(recomputed, abs=0.005)


def test_every_table_has_the_57_games():
    assert len(ATARI_57) == 57
    for column in COLUMNS:
        assert set(atari_scores()[column.name]) == set(ATARI_57)


def test_the_levels_of_dmlab_have_the_scores_of_the_table():
    with (Path(references.__file__).parent / "dmlab30_scores.csv").open(newline="") as file:
        table = {line["game"]: (float(line["random"]), float(line["human"])) for line in csv.DictReader(file)}
    assert {
        level.id.removeprefix("dmlab/").replace("_train", "_test"): (level.random, level.best)
        for level in SUITES["dmlab-30"]
    } == table
