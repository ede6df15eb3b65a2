"""A run directory as the page shows it: what is kept of its log, its settings and sessions. A run is told as a sweep of one member."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from laser_rl.errors import ConfigError
from laser_rl.metrics import display
from laser_rl.metrics.history import History
from laser_rl.metrics.log import FILE
from laser_rl.metrics.machine import sessions
from laser_rl.metrics.page import flat, read_json
from laser_rl.metrics.sink import Row
from laser_rl.metrics.standing import SWEEP, MemberStanding, best, standing_of, state_of

CONFIG = "config.json"
MEDIAN = "Median over tasks of the normalised score"


class Files(NamedTuple):
    """What a run directory says besides its rows."""

    config: dict[str, Any]
    sweep: dict[str, Any]
    sessions: list[dict[str, Any]]

    @classmethod
    def read(cls, run_dir: Path) -> "Files":
        """Empty where a file is missing or damaged: a page is worth having without it."""
        return cls(read_json(run_dir / CONFIG), read_json(run_dir / SWEEP), sessions(run_dir))


@dataclass(frozen=True, eq=False)
class Subject:
    """One directory of a run or sweep at a time."""

    run_dir: Path
    name: str
    history: History
    files: Files
    running: bool = False
    now: float = 0.0

    @cached_property
    def rows(self) -> list[Row]:
        """The newest rows of each member, and all exploits; those of a run are of member 0."""
        rows = self.history.kept()
        return rows if self.is_sweep else [{**row, "member": 0} for row in rows]

    @cached_property
    def is_sweep(self) -> bool:
        """Whether there are, or will be, rows of members."""
        return bool(self.files.sweep) or self.history.has_members

    @cached_property
    def members(self) -> list[MemberStanding]:
        """How each stands; one, of a single run."""
        return standing_of(self.rows, self.files.sweep if self.is_sweep else {"settings": [{}]}, self.now)

    @cached_property
    def best(self) -> MemberStanding | None:
        """The best member, if any has ended an episode."""
        return best(self.members)

    @cached_property
    def mixed(self) -> bool:
        """Whether several tasks were learned, so that returns are normalised scores."""
        return any("task" in row or display.is_mixture(row) for row in self.rows)

    @property
    def score_label(self) -> str:
        """What its curve is."""
        return MEDIAN if self.mixed else "Mean return of the last 100 episodes"

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Every setting by its full name; of a sweep, those of its base and of the sweep itself."""
        if not self.files.sweep:
            return flat(self.files.config)
        base = self.files.sweep.get("base")
        others = {name: value for name, value in self.files.sweep.items() if name not in {"base", "settings", "format"}}
        return flat({**(base if isinstance(base, dict) else {}), "sweep": others})

    @property
    def environment(self) -> str:
        """Its id, where it is known."""
        return str(self.settings.get("environment.id", "unknown environment"))

    @property
    def state(self) -> str:
        """In a word."""
        return state_of(self.history.last, running=self.running)

    @property
    def kind(self) -> str:
        """One agent, or how many members share what."""
        if not self.is_sweep:
            return "one agent"
        share = str(self.files.sweep.get("share", "")) or "unknown"
        known = {"shared": "one replay for all", "separate": "a replay each", "none": "no replay"}
        return f"sweep of {len(self.members)} members, {known.get(share, f'replay: {share}')}"

    def newest(self, member: int, kind: str) -> Row:
        """The newest value of every number in the rows of a kind that are kept of a member."""
        return self._newest.get((kind, member), {})

    @cached_property
    def _newest(self) -> dict[tuple[object, object], Row]:
        found: dict[tuple[object, object], Row] = {}
        for row in self.rows:
            found.setdefault((row["kind"], row.get("member")), {}).update(row)
        return found


def subject_of(run_dir: Path, name: str | None = None, *, running: bool = False) -> Subject:
    """Read a directory as a whole; refused if it is none of a run or sweep."""
    if not any((run_dir / file).exists() for file in (CONFIG, SWEEP, FILE)):
        inside = run_dir.is_dir() and any((one / FILE).exists() for one in run_dir.iterdir())
        hint = f"; its folders are: laser report {run_dir}/*" if inside else "; is this a run directory?"
        raise ConfigError(f"expected {run_dir} to have {CONFIG}, {SWEEP} or {FILE}, got none of them{hint}")
    history, files = History.read(run_dir / FILE), Files.read(run_dir)
    return Subject(run_dir, name or run_dir.resolve().name, history, files, running, time.time())


def distinct(names: Sequence[Path]) -> list[str]:
    """Short names of directories that differ: the last part, and as many before it as are needed.

    >>> distinct([Path("runs/a/x"), Path("runs/b/x")]), distinct([Path("runs/a"), Path("runs/b")])
    (['a/x', 'b/x'], ['a', 'b'])
    """
    paths = [path.resolve() for path in names]
    longest = max(len(path.parts) for path in paths)
    for count in range(1, longest + 1):
        shortened = ["/".join(path.parts[-count:]) for path in paths]
        if len(set(shortened)) == len(set(paths)):
            return shortened
    return [str(path) for path in paths]
