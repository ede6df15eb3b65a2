"""Atari runs and sweeps beside the columns of the paper's table.

A run's score is the mean return of its last 100 episodes, as in the table. Of a sweep, a game's score is that of its best member there. The
median over games is taken for each member before the best is chosen (`protocol`), so the sweeps of all games must have the same members.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from laser_rl.config import Config
from laser_rl.envs.atari import ATARI_57, AtariSettings, atari_game
from laser_rl.envs.make import is_atari, is_mixture
from laser_rl.errors import ConfigError
from laser_rl.metrics import display
from laser_rl.metrics.history import History
from laser_rl.metrics.log import FILE, Stream
from laser_rl.metrics.rows import Row
from laser_rl.research.paper import COLUMNS, atari_median, atari_normalised, atari_references, atari_scores
from laser_rl.research.protocol import LAST_EPISODES, Episodes, episodes_of, last_episodes, sweep_curve
from laser_rl.training.files import is_sweep, read_config, read_sweep

Kind = Literal["run", "sweep"]
PAPER = AtariSettings()


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
        told = _last(self.reported, limit)
        if not math.isnan(told) and (weights > 1).any():
            return told
        return last_episodes(self.episodes, before_frames=limit)

    def evaluation(self, limit: float) -> float:
        """The mean return in the last evaluation within these frames; NaN without one."""
        return _last(self.evaluations, limit)


def _last(means: Sequence[tuple[int, float]], limit: float) -> float:
    return next((mean for frames, mean in reversed(means) if frames <= limit), math.nan)


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
class GameLine:
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
    """Human-normalised medians over the same games, of the user's runs (or sweeps) and of the paper's columns; 1 is a person.

    `score` is NaN where sweeps have different members, so that none of them can be followed over the games.
    """

    kind: Kind
    games: tuple[str, ...]
    score: float
    paper: Mapping[str, float]


class Comparison(NamedTuple):
    """Runs beside the paper, and what a reader of the numbers has to know."""

    lines: list[GameLine]
    medians: list[Medians]
    notes: list[str]


def compared(run_dirs: Sequence[Path], frames: int | None = None) -> Comparison:
    """Runs and sweeps as they are, or as they were after so many frames; ConfigError if one is not on a game of the table."""
    configs = [_config_of(run_dir) for run_dir in run_dirs]  # refuses before anything long is read
    limit = math.inf if frames is None else frames
    runs = [_game_run(run_dir, config, limit) for run_dir, config in zip(run_dirs, configs, strict=True)]
    lines = sorted((line_of(run, limit) for run in runs), key=lambda line: line.game)
    return Comparison(lines, medians(runs, limit), list(_notes(runs, configs, lines)))


def _config_of(run_dir: Path) -> Config:
    """The configuration of a run, or of all members of a sweep."""
    config = read_sweep(run_dir).base if is_sweep(run_dir) else read_config(run_dir)
    name = config.environment.id
    if is_mixture(name):
        raise ConfigError(
            f"{run_dir}: expected a run on one Atari game, got the mixture {name}; the paper trained an agent for every game, "
            "so its table has nothing to compare it with. 'laser report' shows the scores of a mixture"
        )
    if not is_atari(name) or atari_game(name) not in ATARI_57:
        raise ConfigError(
            f"{run_dir}: expected a run on one of the 57 Atari games of the paper's table, got {name}; "
            "leave it out, or use 'laser report', which shows any run"
        )
    return config


def _game_run(run_dir: Path, config: Config, limit: float) -> GameRun:
    game, skip = atari_game(config.environment.id), PAPER.frame_skip
    history, steps = History(), dict[object, int]()

    def within() -> Iterator[Row]:
        for row in Stream(run_dir / FILE):
            if row["kind"] in {"episode", "train", "evaluation"}:
                member, step = row.get("member"), int(row["step"])
                steps[member] = max(steps.get(member, 0), step)
                if step * skip <= limit:  # only the newest rows are kept: they have to be the last of those asked for
                    yield row

    history.add(within())
    rows = history.kept()
    if not is_sweep(run_dir):
        return GameRun(str(run_dir), game, (_played(rows, None, steps.get(None, 0) * skip),))
    settings = read_sweep(run_dir).settings
    members = tuple(_played(rows, member, steps.get(member, 0) * skip) for member in range(len(settings)))
    return GameRun(str(run_dir), game, members, tuple(settings))


def _played(rows: Sequence[Row], member: int | None, frames: int) -> Played:
    own, skip = [row for row in rows if row.get("member") == member], PAPER.frame_skip
    evaluations, reported = (
        tuple(
            (int(row["step"]) * skip, mean)
            for row in own
            if row["kind"] == kind and (mean := display.number(row, name)) is not None
        )
        for kind, name in (("evaluation", "mean"), ("train", "return_mean"))
    )
    return Played(frames, episodes_of(own, frames_a_step=skip, member=member), evaluations, reported)


def line_of(run: GameRun, limit: float = math.inf) -> GameLine:
    """The line of a run, or of what it was after `limit` frames.

    >>> episodes = Episodes(np.array([400.0, 800.0]), np.array([16.1, 30.5]))
    >>> line = line_of(GameRun("runs/1", "breakout", (Played(1000, episodes),)), 500)
    >>> line.frames, line.score, round(line.human_normalised, 6), line.paper["laser_no_sweep_200M"].score
    (500, 16.1, 0.5, 747.9)
    """
    scores = [member.score(limit) for member in run.members]
    best = int(np.nanargmax(scores)) if not np.isnan(scores).all() else 0
    member, reference = run.members[best], atari_references()[run.game]
    evaluation = member.evaluation(limit)
    return GameLine(
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


def medians(runs: Sequence[GameRun], limit: float = math.inf) -> list[Medians]:
    """Medians over the games that have a score, of runs and of sweeps apart. Several of a game are averaged first.

    >>> def run(game, score):
    ...     return GameRun(game, game, (Played(1000, Episodes(np.array([400.0]), np.array([score]))),))
    >>> [found] = medians([run("breakout", 30.5), run("boxing", 12.1), run("boxing", 0.1)])
    >>> found.games, round(found.score, 6)
    (('boxing', 'breakout'), 0.75)
    """
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


def _median(games: Sequence[Sequence[GameRun]], limit: float) -> float:
    """Over games first, the best member after. A member without a score in some run is not the best."""
    if not _same_members([run for runs in games for run in runs]):
        return math.nan
    table = []
    for runs in games:
        reference = atari_references()[runs[0].game]
        replicas = [[reference.normalised(member.score(limit)) for member in run.members] for run in runs]
        table.append(np.mean(replicas, axis=0))
    return float(sweep_curve(np.array(table).T[:, :, None])[0])  # members, tasks, one bucket


def _same_members(runs: Sequence[GameRun]) -> bool:
    return all(run.settings == runs[0].settings and len(run.members) == len(runs[0].members) for run in runs)


def _notes(runs: Sequence[GameRun], configs: Sequence[Config], lines: Sequence[GameLine]) -> Iterator[str]:
    for run, config in zip(runs, configs, strict=True):
        atari = config.environment.atari
        other = {
            f"up to {atari.most_noops} no-ops": atari.most_noops != PAPER.most_noops,
            f"sticky actions {atari.sticky_actions:g}": atari.sticky_actions != PAPER.repeat_action_probability,
            f"episodes of up to {atari.most_frames:,} frames": atari.most_frames != PAPER.most_frames,
            "all 18 actions": atari.full_action_space != PAPER.full_action_space,
        }
        if any(other.values()):
            yield f"{run.name} is not played as in the paper: {', '.join(what for what, is_so in other.items() if is_so)}"
    for line in lines:
        if line.episodes < LAST_EPISODES:
            yield f"{line.run}: a mean of {line.episodes} episodes so far, the paper's are of {LAST_EPISODES}"
    if not _same_members([run for run in runs if run.kind == "sweep"]):
        yield "the sweeps have different members, so none can be followed over the games: no median"
