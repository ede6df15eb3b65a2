"""Somebody's Atari runs beside the columns of the paper's table.

A run's score is the mean return of its last 100 episodes, as in the table. Of a sweep, a game's score is that of its best member there. The
median over games is taken for each member before the best is chosen (`protocol`), so the sweeps of all games must have the same members.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from laser_rl.research.paper import COLUMNS, atari_median, atari_normalised, atari_references, atari_scores
from laser_rl.research.protocol import LAST_EPISODES, Episodes, best_member, last_episodes, median_over_tasks

Kind = Literal["run", "sweep"]


@dataclass(frozen=True)
class Played:
    """What one agent has played: its frames so far, its episodes in training, its evaluations as (frames, mean return).

    `reported` are means of its last 100 episodes as it told them itself, also as (frames, mean return).
    """

    frames: int
    episodes: Episodes
    evaluations: tuple[tuple[int, float], ...] = ()
    reported: tuple[tuple[int, float], ...] = ()

    def score(self, limit: float) -> float:
        """Of the last 100 episodes within the first `limit` frames; NaN if none ended.

        In a long run a row is the mean of several episodes. Then the score is what the run reported last: that is over exactly 100.
        """
        weights = self.episodes.weights[self.episodes.frames <= limit][-LAST_EPISODES:]
        told = next((mean for frames, mean in reversed(self.reported) if frames <= limit), None)
        if told is not None and (weights > 1).any():
            return told
        return last_episodes(self.episodes, before_frames=limit)

    def evaluation(self, limit: float) -> float:
        """The mean return in the last evaluation within these frames; NaN without one."""
        return next((mean for frames, mean in reversed(self.evaluations) if frames <= limit), math.nan)


@dataclass(frozen=True)
class GameRun:
    """A run or a sweep on one game. A run has one member and no settings that tell it from others."""

    name: str
    game: str
    members: tuple[Played, ...]
    settings: tuple[Mapping[str, Any], ...] | None = None

    @property
    def kind(self) -> Kind:
        """In a word."""
        return "run" if self.settings is None else "sweep"


class PaperScore(NamedTuple):
    """A cell of the paper's table."""

    score: float
    human_normalised: float


@dataclass(frozen=True)
class Line:
    """A run or a sweep beside the paper; NaN where there is no number yet. Of a sweep, scores are those of its best member."""

    run: str
    game: str
    kind: Kind
    members: int
    best_member: int
    frames: int
    episodes: int  # that the score is the mean of
    score: float
    human_normalised: float
    evaluation: float
    evaluation_human_normalised: float
    paper: Mapping[str, PaperScore]  # by the name of the column


@dataclass(frozen=True)
class Medians:
    """Human-normalised medians over the same games, of somebody's runs (or sweeps) and of the paper's columns; 1 is a person.

    `score` is NaN where sweeps have different members, so that none of them can be followed over the games.
    """

    kind: Kind
    games: tuple[str, ...]
    score: float
    paper: Mapping[str, float]


def compare(run: GameRun, *, frames: int | None = None) -> Line:
    """The line of a run, or of what it was after so many frames.

    >>> episodes = Episodes(np.array([400.0, 800.0]), np.array([16.1, 30.5]))
    >>> line = compare(GameRun("runs/1", "breakout", (Played(1000, episodes),)), frames=500)
    >>> line.frames, line.score, round(line.human_normalised, 6), line.paper["laser_no_sweep_200M"].score
    (500, 16.1, 0.5, 747.9)
    """
    limit = math.inf if frames is None else frames
    scores = [member.score(limit) for member in run.members]
    best = int(np.nanargmax(scores)) if not np.isnan(scores).all() else 0
    member, reference = run.members[best], atari_references()[run.game]
    evaluation = member.evaluation(limit)
    return Line(
        run=run.name,
        game=run.game,
        kind=run.kind,
        members=len(run.members),
        best_member=best,
        frames=int(min(member.frames, limit)),
        episodes=min(LAST_EPISODES, int(member.episodes.weights[member.episodes.frames <= limit].sum())),
        score=scores[best],
        human_normalised=reference.normalised(scores[best]),
        evaluation=evaluation,
        evaluation_human_normalised=reference.normalised(evaluation),
        paper={
            column.name: PaperScore(atari_scores()[column.name][run.game], atari_normalised(column)[run.game])
            for column in COLUMNS
        },
    )


def medians(runs: Sequence[GameRun], *, frames: int | None = None) -> list[Medians]:
    """Medians over the games that have a score, of runs and of sweeps apart. Several of a game are averaged first.

    >>> def run(game, score):
    ...     return GameRun(game, game, (Played(1000, Episodes(np.array([400.0]), np.array([score]))),))
    >>> [found] = medians([run("breakout", 30.5), run("boxing", 12.1), run("boxing", 0.1)])
    >>> found.games, round(found.score, 6)
    (('boxing', 'breakout'), 0.75)
    """
    limit = math.inf if frames is None else frames
    found = []
    for kind in ("run", "sweep"):
        by_game: dict[str, list[GameRun]] = {}
        for run in runs:
            if run.kind == kind and any(not math.isnan(member.score(limit)) for member in run.members):
                by_game.setdefault(run.game, []).append(run)
        if by_game:
            games = tuple(sorted(by_game))
            score = _median([by_game[game] for game in games], limit)
            found.append(Medians(kind, games, score, {one.name: atari_median(one, games) for one in COLUMNS}))
    return found


def same_members(runs: Sequence[GameRun]) -> bool:
    """Whether member k is the same agent in all of them.

    >>> played = Played(0, Episodes(np.empty(0), np.empty(0)))
    >>> one, other = ({"learning_rate": 1e-3},), ({"learning_rate": 2e-3},)
    >>> same_members([GameRun("a", "pong", (played,), one), GameRun("b", "boxing", (played,), other)])
    False
    """
    return all(run.settings == runs[0].settings and len(run.members) == len(runs[0].members) for run in runs)


def _median(games: Sequence[Sequence[GameRun]], limit: float) -> float:
    """Over games first, the best member after. NaN of a member that has no score in some run stays one: it is not the best."""
    if not same_members([run for runs in games for run in runs]):
        return math.nan
    table = []
    for runs in games:
        reference = atari_references()[runs[0].game]
        replicas = [[reference.normalised(member.score(limit)) for member in run.members] for run in runs]
        table.append(np.mean(replicas, axis=0))
    scores = np.array(table).T[:, :, None]  # members, tasks, one bucket
    return float(best_member(median_over_tasks(scores))[0])
