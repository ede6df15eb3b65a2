"""Atari runs and sweeps beside LASER and Rainbow, game by game: `python -m benchmarks.atari_paper RUN_DIR... [--frames 50M] [--json]`.

`atari_paper.csv` holds the paper's score of each of 57 Atari games, `laser_rl/envs/data` those of random play and of people. These do not
give the headline medians of the paper: 364.96, 412.40 and 454.91 % instead of 370, 448 and 431. Rainbow's column gives 230.99 %, as in
the literature, so the references are the right ones. We report both.

A run's score is the mean return of its last 100 episodes, as in the table. Of a sweep, a game's score is that of its best member there.
The median over games is taken for each member before the best is chosen (`laser_rl.research.protocol`), so the sweeps of all games must
have the same members. Medians are over the games that were run, of your runs as of the paper's agents. It reads only, so it may be asked
while runs go on.
"""

import argparse
import csv
import functools
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from laser_rl.config import AtariConfig, Config
from laser_rl.envs.atari import FRAME_SKIP, atari_game
from laser_rl.envs.make import is_atari, is_mixture
from laser_rl.envs.scores import ATARI_57
from laser_rl.errors import ConfigError, UserError, written_out
from laser_rl.evaluation.statistics import Floats
from laser_rl.metrics import display
from laser_rl.metrics.history import History
from laser_rl.metrics.log import FILE, rows_of
from laser_rl.metrics.rows import Row
from laser_rl.research.protocol import Episodes, agent_curve, episodes_of
from laser_rl.training.files import is_sweep, read_sweep

TABLE = Path(__file__).with_name("atari_paper.csv")
PLAYED = AtariConfig()  # as the paper plays
LAST_EPISODES = 100  # of which the scores in the paper's table are the mean
_NONE = "–"
_MILLION = 1_000_000
_WIDEST = 10_000  # where it is not for a terminal: no cell is broken


class Column(NamedTuple):
    """One agent of the per-game table, at a number of frames a game."""

    name: str  # in the file, after the headings of the paper
    agent: str
    frames: int
    sweep: bool  # whether a score is that of the best member of a sweep; one agent's must not be drawn as a sweep
    published_median: float | None = None  # as the paper states it, in %; not what its own per-game scores give


COLUMNS = (
    Column("laser_shared_sweep_50M", "LASER shared", 50_000_000, sweep=True, published_median=370.0),
    # The paper's heading says "sweep at 200M". The caption of its figure 1 says that one agent with shared replay ran on to 200 M frames.
    Column("laser_shared_sweep_200M", "LASER shared", 200_000_000, sweep=False, published_median=448.0),
    Column("laser_no_sweep_200M", "LASER", 200_000_000, sweep=False, published_median=431.0),
    Column("rainbow_no_sweep_200M", "Rainbow", 200_000_000, sweep=False),
)


@functools.cache
def atari_scores() -> Mapping[str, Mapping[str, float]]:
    """The paper's raw scores by column and game: means of the last 100 episodes."""
    with TABLE.open(newline="") as file:
        lines = list(csv.DictReader(file))
    return {column.name: {line["game"]: float(line[column.name]) for line in lines} for column in COLUMNS}


def atari_median(column: Column, games: Iterable[str] = ATARI_57) -> float:
    """The median over games of a column's human-normalised scores, over all 57 or over some; 1 is a person."""
    scores = atari_scores()[column.name]
    return median(ATARI_57[game].normalised(scores[game]) for game in games)


class Played(NamedTuple):
    """What one agent has played on a game; NaN where there is no number yet."""

    frames: int
    episodes: int  # that the score is the mean of, 100 at most
    score: float
    evaluation: float


class GameRun(NamedTuple):
    """A run or a sweep on one game. A run has one member and no settings that tell it from others."""

    name: str
    game: str
    members: tuple[Played, ...]
    settings: tuple[Mapping[str, Any], ...] | None = None

    @property
    def kind(self) -> str:
        """A run or a sweep."""
        return "run" if self.settings is None else "sweep"


def compared(run_dirs: Sequence[Path], frames: int | None = None) -> dict[str, Any]:
    """Runs and sweeps beside the paper, as they were after so many frames; ConfigError if one is not on a game of the table."""
    configs = [_config_of(run_dir) for run_dir in run_dirs]  # refuses before anything long is read
    limit = math.inf if frames is None else frames
    runs = [_game_run(run_dir, config, limit) for run_dir, config in zip(run_dirs, configs, strict=True)]
    lines = sorted(map(line_of, runs), key=lambda line: line["game"])
    columns = {
        one.name: {
            "agent": one.agent,
            "frames": one.frames,
            "sweep": one.sweep,
            "median_of_57": atari_median(one),
            "median_of_57_published": None if one.published_median is None else one.published_median / 100,
        }
        for one in COLUMNS
    }
    notes = list(_notes(runs, configs, lines))
    return {"runs": lines, "medians": medians(runs), "paper": columns, "notes": notes}


def _config_of(run_dir: Path) -> Config:
    config = read_sweep(run_dir).base
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
    history, steps = History(), dict[object, int]()

    def within() -> Iterator[Row]:
        for row in rows_of(run_dir / FILE):
            if row["kind"] in {"episode", "train", "evaluation"}:
                member, step = row.get("member"), int(row["step"])
                steps[member] = max(steps.get(member, 0), step)
                if step * FRAME_SKIP <= limit:  # the history keeps the newest rows: those asked for
                    yield row

    history.add(within())
    settings = tuple(read_sweep(run_dir).settings) if is_sweep(run_dir) else None
    numbers: Sequence[int | None] = [None] if settings is None else range(len(settings))
    members = (
        played(history.newest(None, number or 0), number, min(steps.get(number, 0) * FRAME_SKIP, limit))
        for number in numbers
    )
    return GameRun(str(run_dir), atari_game(config.environment.id), tuple(members), settings)


def played(rows: Sequence[Row], member: int | None, frames: float) -> Played:
    """What rows of metrics say of one agent.

    In a long run a row is the mean of several episodes. Then the score is what the run itself reported last: that is over exactly 100.
    """
    own = [row for row in rows if row.get("member") == member]
    reported, evaluations = (
        [number for row in own if row["kind"] == kind and (number := display.number(row, name)) is not None]
        for kind, name in (("train", "return_mean"), ("evaluation", "mean"))
    )
    episodes = episodes_of(own, frames_a_step=FRAME_SKIP, member=member)
    several = bool((episodes.weights[-LAST_EPISODES:] > 1).any())
    return Played(
        frames=int(frames),
        episodes=min(LAST_EPISODES, int(episodes.weights.sum())),
        score=reported[-1] if several and reported else last_episodes(episodes),
        evaluation=evaluations[-1] if evaluations else math.nan,
    )


def last_episodes(episodes: Episodes, *, count: int = LAST_EPISODES) -> float:
    """The score of the paper's table: mean return of the last `count` episodes. NaN without episodes.

    Where rows are of several episodes, the mean is over the fewest last rows that hold so many.
    """
    _, returns, weights = episodes
    if not returns.size:
        return math.nan
    after = np.cumsum(weights[::-1])[::-1] - weights  # episodes after each row
    last = after < count
    return float(np.average(returns[last], weights=weights[last]))


def sweep_curve(scores: ArrayLike) -> Floats:
    """The curve of a sweep from normalised scores [..., members, tasks, buckets]: median over tasks, then the best member."""
    return np.asarray(np.fmax.reduce(agent_curve(scores), axis=-2))  # fmax prefers a number to NaN


def line_of(run: GameRun) -> dict[str, Any]:
    """A run or a sweep beside the paper. Of a sweep, scores are those of its best member."""
    scores = [member.score for member in run.members]
    best = int(np.nanargmax(scores)) if not np.isnan(scores).all() else 0
    member, reference = run.members[best], ATARI_57[run.game]
    return {
        "run": run.name,
        "game": run.game,
        "kind": run.kind,
        "members": len(run.members),
        "best_member": best,
        "frames": member.frames,
        "episodes": member.episodes,
        "score": member.score,
        "human_normalised": reference.normalised(member.score),
        "evaluation": member.evaluation,
        "evaluation_human_normalised": reference.normalised(member.evaluation),
        "paper": {
            name: {"score": scores[run.game], "human_normalised": reference.normalised(scores[run.game])}
            for name, scores in atari_scores().items()
        },
    }


def medians(runs: Sequence[GameRun]) -> list[dict[str, Any]]:
    """Human-normalised medians over the games that have a score, of runs and of sweeps apart, beside the paper's over the same games.

    Several runs of a game are averaged first. `score` is NaN where sweeps have different members: none can be followed over the games.
    """
    found = []
    for kind in ("run", "sweep"):
        by_game: dict[str, list[GameRun]] = {}
        for run in runs:
            if run.kind == kind and any(not math.isnan(member.score) for member in run.members):
                by_game.setdefault(run.game, []).append(run)
        if games := sorted(by_game):
            paper = {column.name: atari_median(column, games) for column in COLUMNS}
            score = _median([by_game[game] for game in games])
            found.append({"kind": kind, "games": games, "score": score, "paper": paper})
    return found


def _median(games: Sequence[Sequence[GameRun]]) -> float:
    """Over games first, the best member after. A member without a score in some run is not the best."""
    if not _same_members([run for runs in games for run in runs]):
        return math.nan
    table = []
    for runs in games:
        reference = ATARI_57[runs[0].game]
        replicas = [[reference.normalised(member.score) for member in run.members] for run in runs]
        table.append(np.mean(replicas, axis=0))
    return float(sweep_curve(np.array(table).T[:, :, None])[0])  # members, tasks, one bucket


def _same_members(runs: Sequence[GameRun]) -> bool:
    return all(run.settings == runs[0].settings and len(run.members) == len(runs[0].members) for run in runs)


def _notes(runs: Sequence[GameRun], configs: Sequence[Config], lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for run, config in zip(runs, configs, strict=True):
        atari = config.environment.atari
        other = {
            f"up to {atari.most_noops} no-ops": atari.most_noops != PLAYED.most_noops,
            f"sticky actions {atari.sticky_actions:g}": atari.sticky_actions != PLAYED.sticky_actions,
            f"episodes of up to {atari.most_frames:,} frames": atari.most_frames != PLAYED.most_frames,
            "all 18 actions": atari.full_action_space != PLAYED.full_action_space,
        }
        if any(other.values()):
            yield f"{run.name} is not played as in the paper: {', '.join(what for what, is_so in other.items() if is_so)}"
    for line in lines:
        if line["episodes"] < LAST_EPISODES:
            yield f"{line['run']}: a mean of {line['episodes']} episodes so far, the paper's are of {LAST_EPISODES}"
    if not _same_members([run for run in runs if run.kind == "sweep"]):
        yield "the sweeps have different members, so none can be followed over the games: no median"


def show(found: Mapping[str, Any]) -> None:
    """Print two tables and the notes. In a pipe or a file a line may be as long as it is; a terminal breaks cells instead."""
    console = Console(width=None if sys.stdout.isatty() else _WIDEST, highlight=False)
    # Two lines a run, so that the table fits a terminal: raw scores, and below them what they are in human-normalised terms.
    runs = _table("game\nrun", "frames", "last 100\nepisodes", "evalu-\nation")
    for line in found["runs"]:
        best = f", member {line['best_member']} is the best of {line['members']}" if line["kind"] == "sweep" else ""
        runs.add_row(
            f"{line['game']}\n  {line['run']}{best}",
            f"{line['frames'] / _MILLION:.3g}M",
            _score(line["score"], line["human_normalised"]),
            _score(line["evaluation"], line["evaluation_human_normalised"]),
            *(_score(**line["paper"][column.name]) for column in COLUMNS),
        )
    medians = _table("median over", "yours")
    for one in found["medians"]:
        games = "the game" if len(one["games"]) == 1 else f"the {len(one['games'])} games"
        medians.add_row(f"{games} of your {one['kind']}s", *map(_percent, (one["score"], *one["paper"].values())))
    for text, name in (("from the paper's table", "median_of_57"), ("as published", "median_of_57_published")):
        medians.add_row(f"all 57, {text}", _NONE, *(_percent(column[name]) for column in found["paper"].values()))
    console.print(runs, "", medians, "")
    console.print(
        "Percentages are human-normalised: 0 % is random play, 100 % a person. Medians of yours are over the games that were run, not "
        "over all 57; the paper's beside them are over the same games.",
        *(f"Note: {note}" for note in found["notes"]),
        sep="\n",
        markup=False,
    )


def _table(first: str, *own: str) -> Table:
    """Own columns, then the paper's. Where there is little room the first is folded; a number is never cut."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(first, overflow="fold", min_width=12)
    for heading in own:
        table.add_column(heading, justify="right", no_wrap=True)
    for column in COLUMNS:
        who = ("best", "of 9") if column.sweep else ("one", "agent")
        heading = "\n".join([*column.agent.split(), *who, f"{column.frames // _MILLION}M"])
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _score(score: float, human_normalised: float) -> str:
    return _NONE if math.isnan(score) else f"{display.short(score)}\n{100 * human_normalised:.0f} %"


def _percent(share: float | None) -> str:
    return _NONE if share is None or math.isnan(share) else f"{100 * share:.1f} %"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dirs", type=Path, nargs="+", help="directories of runs or sweeps, each on one game")
    parser.add_argument(
        "--frames",
        type=lambda word: int(written_out(word)),
        help="how they stood then, e.g. 50M; a step is four",
    )
    parser.add_argument("--json", action="store_true", help="everything as JSON, medians included")
    asked = parser.parse_args(arguments)
    try:
        found = compared(asked.run_dirs, asked.frames)
    except UserError as error:
        parser.error(str(error))
    if asked.json:
        print(json.dumps(json.loads(json.dumps(found), parse_constant=lambda _: None), indent=2))  # null, not NaN
    else:
        show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
