"""`laser compare`: Atari runs beside the columns of the paper's per-game table."""

import csv
import io
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from laser_rl.cli.settings import expand_numbers
from laser_rl.config import Config
from laser_rl.envs.atari import ATARI_57, AtariSettings, atari_game
from laser_rl.envs.make import is_atari, is_mixture
from laser_rl.errors import ConfigError
from laser_rl.evaluation.comparison import GameRun, Line, Medians, Played, compare, medians, same_members
from laser_rl.evaluation.paper import COLUMNS, atari_median
from laser_rl.evaluation.protocol import LAST_EPISODES, episodes_of
from laser_rl.metrics import display
from laser_rl.metrics.history import History
from laser_rl.metrics.log import FILE
from laser_rl.metrics.sink import Row
from laser_rl.metrics.stream import Stream
from laser_rl.runtime.files import is_sweep, read_config, read_sweep

_NONE = "–"
_MILLION = 1_000_000
_WIDEST = 10_000  # where it is not for a terminal: no cell is broken
PAPER = AtariSettings()


@dataclass(frozen=True)
class Compare:
    """Atari runs and sweeps beside LASER and Rainbow, game by game. Reads only, so it may be asked while they go on.

    A score is the mean return of the last 100 episodes in training, as in the paper's table; of a sweep, that of its best member. Medians
    are over the games that were run, of your runs as of the paper's agents.
    """

    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of runs or sweeps, each on one game."""
    frames: int | None = None
    """How the runs stood after so many frames, e.g. 50M; a step is four."""
    json: bool = False
    """Everything as JSON, medians included."""
    csv: bool = False
    """One line a run or sweep as CSV, without medians."""


def compare_command(arguments: list[str]) -> int:
    """`laser compare`."""
    asked = tyro.cli(Compare, prog="laser compare", args=expand_numbers(arguments))
    if not asked.run_dirs:
        raise ConfigError("compare what? name one or more run directories: laser compare runs/*")
    if asked.json and asked.csv:
        raise ConfigError("expected --json or --csv, got both; choose one")
    configs = [_config_of(run_dir) for run_dir in asked.run_dirs]  # refuses before anything long is read
    runs = [_game_run(run_dir, config, asked.frames) for run_dir, config in zip(asked.run_dirs, configs, strict=True)]
    lines = [compare(run, frames=asked.frames) for run in runs]
    lines.sort(key=lambda line: line.game)
    middle = medians(runs, frames=asked.frames)
    notes = list(_notes(runs, configs, lines))
    if asked.json:
        print(json.dumps(_plain(lines, middle, notes), indent=2))
    elif asked.csv:
        print(_csv(lines), end="")
    else:
        _show(lines, middle, notes)
    return 0


def _config_of(run_dir: Path) -> Config:
    """The configuration of a run, or of all members of a sweep; refused if it is on anything but a game of the table."""
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


def _game_run(run_dir: Path, config: Config, frames: int | None) -> GameRun:
    game, skip, most = atari_game(config.environment.id), PAPER.frame_skip, math.inf if frames is None else frames
    history, steps = History(), dict[object, int]()

    def within() -> Iterator[Row]:
        for row in Stream(run_dir / FILE):
            if row["kind"] in {"episode", "train", "evaluation"}:
                member, step = row.get("member"), int(row["step"])
                steps[member] = max(steps.get(member, 0), step)
                if step * skip <= most:  # only the newest rows are kept: they have to be the last of those asked for
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


def _notes(runs: Sequence[GameRun], configs: Sequence[Config], lines: Sequence[Line]) -> Iterator[str]:
    """What a reader of the numbers has to know."""
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
    sweeps = [run for run in runs if run.kind == "sweep"]
    if not same_members(sweeps):
        yield "the sweeps have different members, so none can be followed over the games: no median"


def _plain(lines: Sequence[Line], middle: Sequence[Medians], notes: Sequence[str]) -> dict[str, Any]:
    """As JSON has it: None instead of NaN."""
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
    runs = [{**asdict(line), "paper": {name: cell._asdict() for name, cell in line.paper.items()}} for line in lines]
    found = {"runs": runs, "medians": [asdict(one) for one in middle], "paper": columns, "notes": list(notes)}
    plain: dict[str, Any] = _without_nan(found)
    return plain


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _csv(lines: Sequence[Line]) -> str:
    out = io.StringIO()
    names = [name for name in Line.__dataclass_fields__ if name != "paper"]
    cells = [f"{column.name}{ending}" for column in COLUMNS for ending in ("", "_human_normalised")]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*names, *cells])
    for line in lines:
        own = _without_nan([getattr(line, name) for name in names])
        writer.writerow([*own, *(number for column in COLUMNS for number in line.paper[column.name])])
    return out.getvalue()


def _show(lines: Sequence[Line], middle: Sequence[Medians], notes: Sequence[str]) -> None:
    # Where nobody watches (a pipe, a file) a line may be as long as it is; a terminal breaks cells instead.
    console = Console(width=None if sys.stdout.isatty() else _WIDEST, highlight=False)
    console.print(_lines_table(lines), "", _medians_table(middle), "")
    console.print(
        "Percentages are human-normalised: 0 % is random play, 100 % a person. Medians of yours are over the games that were run, not "
        "over all 57; the paper's beside them are over the same games.",
        *(f"Note: {note}" for note in notes),
        sep="\n",
        markup=False,
    )


def _lines_table(lines: Sequence[Line]) -> Table:
    """Two lines a run, so that the table fits a terminal: raw scores, and below them what they are in human-normalised terms."""
    table = _table("game\nrun", "frames", "last 100\nepisodes", "evalu-\nation")
    for line in lines:
        name = (
            line.run if line.kind == "run" else f"{line.run}, member {line.best_member} is the best of {line.members}"
        )
        table.add_row(
            f"{line.game}\n  {name}",
            f"{line.frames / _MILLION:.3g}M",
            _score(line.score, line.human_normalised),
            _score(line.evaluation, line.evaluation_human_normalised),
            *(_score(*line.paper[column.name]) for column in COLUMNS),
        )
    return table


def _medians_table(middle: Sequence[Medians]) -> Table:
    table = _table("median over", "yours")
    for one in middle:
        games = "the game" if len(one.games) == 1 else f"the {len(one.games)} games"
        paper = (_percent(one.paper[column.name]) for column in COLUMNS)
        table.add_row(f"{games} of your {one.kind}s", _percent(one.score), *paper)
    published = [column.published_median for column in COLUMNS]
    table.add_row("all 57, from the paper's table", _NONE, *(_percent(atari_median(column)) for column in COLUMNS))
    table.add_row("all 57, as published", _NONE, *(_NONE if one is None else _percent(one / 100) for one in published))
    return table


def _table(first: str, *own: str) -> Table:
    """Own columns, then the paper's. Where there is little room the first is folded; a number is never cut."""
    paper = [
        "\n".join(
            [
                *column.agent.split(),
                *(("best", "of 9") if column.sweep else ("one", "agent")),
                f"{column.frames // _MILLION}M",
            ]
        )
        for column in COLUMNS
    ]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(first, overflow="fold", min_width=12)
    for heading in (*own, *paper):
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _score(score: float, normalised: float) -> str:
    return _NONE if math.isnan(score) else f"{display.short(score)}\n{100 * normalised:.0f} %"


def _percent(share: float) -> str:
    return _NONE if math.isnan(share) else f"{100 * share:.1f} %"
