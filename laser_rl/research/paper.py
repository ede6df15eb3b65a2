"""The paper's tables as data, and what they come to when they are computed again.

`data/` holds the scores of random play and of people on 57 Atari games, and the paper's score of each game. These do not give the
headline medians of the paper: 364.96, 412.40 and 454.91 % instead of 370, 448 and 431. Rainbow's column gives 230.99 %, as in the
literature, so the references are the right ones. We report both.
"""

import csv
import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from statistics import median

from laser_rl.envs.suites import Reference


@dataclass(frozen=True)
class Column:
    """One agent of the per-game table, at a number of frames a game.

    >>> COLUMNS[1].title
    'LASER shared, one agent at 200M'
    """

    name: str  # in the file, after the headings of the paper
    agent: str
    frames: int
    sweep: bool
    """Whether a score is that of the best member of a sweep; otherwise it is one agent's, and must not be drawn as a sweep."""
    published_median: float | None = None
    """As the paper states it, in %; not what its own per-game scores give."""

    @property
    def title(self) -> str:
        """For the head of a table."""
        who = "best of a sweep" if self.sweep else "one agent"
        return f"{self.agent}, {who} at {self.frames // 1_000_000}M"


COLUMNS = (
    Column("laser_shared_sweep_50M", "LASER shared", 50_000_000, sweep=True, published_median=370.0),
    # The paper's heading says "sweep at 200M". The caption of its figure 1 says that one agent with shared replay ran on to 200 M frames.
    Column("laser_shared_sweep_200M", "LASER shared", 200_000_000, sweep=False, published_median=448.0),
    Column("laser_no_sweep_200M", "LASER", 200_000_000, sweep=False, published_median=431.0),
    Column("rainbow_no_sweep_200M", "Rainbow", 200_000_000, sweep=False),
)


@functools.cache
def atari_references() -> Mapping[str, Reference]:
    """Scores of random play and of people by game.

    >>> atari_references()["breakout"], len(atari_references())
    (Reference(random=1.7, best=30.5), 57)
    """
    lines = _lines("atari57_scores.csv")
    return {line["game"]: Reference(float(line["random"]), float(line["human"])) for line in lines}


@functools.cache
def atari_scores() -> Mapping[str, Mapping[str, float]]:
    """The paper's raw scores by column and game: means of the last 100 episodes.

    >>> atari_scores()["rainbow_no_sweep_200M"]["pong"]
    20.9
    """
    lines = _lines("laser_atari57_paper.csv")
    return {column.name: {line["game"]: float(line[column.name]) for line in lines} for column in COLUMNS}


def atari_normalised(column: Column) -> dict[str, float]:
    """The human-normalised scores of a column by game; 1 is a person.

    >>> round(atari_normalised(COLUMNS[3])["pong"], 3)
    1.178
    """
    references = atari_references()
    return {game: references[game].normalised(score) for game, score in atari_scores()[column.name].items()}


def atari_median(column: Column, games: Collection[str] | None = None) -> float:
    """The median over games of a column's human-normalised scores, over all 57 or over some; 1 is a person.

    >>> [round(100 * atari_median(column), 2) for column in COLUMNS]
    [364.96, 412.4, 454.91, 230.99]
    """
    scores = atari_normalised(column)
    return median(scores[game] for game in (scores if games is None else games))


def _lines(name: str) -> list[dict[str, str]]:
    text = resources.files("laser_rl.research").joinpath("data", name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
