"""What a run directory says of itself: its rows, settings, sessions, and where it was resumed. Read only, also while it is written."""

import bisect
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from laser_rl.errors import ConfigError
from laser_rl.metrics import curves
from laser_rl.metrics.condensed import Condensed
from laser_rl.metrics.curves import Curve
from laser_rl.metrics.log import FILE
from laser_rl.metrics.machine import sessions
from laser_rl.metrics.page import flat, read_json
from laser_rl.metrics.rows import episodes_in
from laser_rl.metrics.sink import Kind, Row
from laser_rl.metrics.stream import Resumption
from laser_rl.metrics.sweep_curves import by_member
from laser_rl.metrics.sweep_standing import SWEEP, MemberStanding, best, standing_of

CONFIG = "config.json"
SEED = "run.seed"
_NO_ROWS: tuple[list[Row], set[str]] = ([], set())


@dataclass(frozen=True, eq=False)
class Subject:
    """One directory of a run or sweep. A single run is told as if it had one member, 0."""

    run_dir: Path
    name: str
    rows: list[Row]
    config: dict[str, Any]
    sweep: dict[str, Any]
    is_sweep: bool
    resumptions: tuple[Resumption, ...] = ()
    sessions: list[dict[str, Any]] = field(default_factory=list)
    running: bool = False
    now: float = 0.0
    condensed: Condensed = field(default_factory=Condensed)
    """Of the same rows: what is counted over all of them."""

    @cached_property
    def members(self) -> list[MemberStanding]:
        """How each stands; one, of a single run."""
        if self.is_sweep:
            return standing_of(self.rows, self.sweep, self.now)
        told = len(self.curve("return_mean")[0]) > 0  # then nobody asks for single episodes, which are many
        own = [{**row, "member": 0} for row in self.rows if not told or row["kind"] != "episode"]
        return standing_of(own, {"settings": [{}]}, self.now)

    @cached_property
    def best(self) -> MemberStanding | None:
        """The best member, if any has ended an episode."""
        return best(self.members)

    @cached_property
    def mixed(self) -> bool:
        """Whether several tasks were learned, so that returns are normalised scores."""
        return curves.is_mixture(self.rows)

    @property
    def score_label(self) -> str:
        """What its curve is."""
        return curves.MEDIAN if self.mixed else "Mean return of the last 100 episodes"

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Every setting by its full name; of a sweep, those of its base and of the sweep itself."""
        if not self.is_sweep:
            return flat(self.config)
        base = self.sweep.get("base")
        others = {name: value for name, value in self.sweep.items() if name not in {"base", "settings", "format"}}
        return flat({**(base if isinstance(base, dict) else {}), "sweep": others})

    @property
    def environment(self) -> str:
        """Its id, where it is known."""
        return str(self.settings.get("environment.id", "unknown environment"))

    @property
    def marks(self) -> tuple[float, ...]:
        """Steps at which it was resumed, each once."""
        return tuple(sorted({float(one.step) for one in self.resumptions}))

    @property
    def state(self) -> str:
        """In a word or two."""
        if self.running:
            return "still running"
        if not self.rows:
            return "not begun: no rows yet"
        if self.rows[-1].get("event") in {"finished", "stopped"}:
            return str(self.rows[-1]["event"])
        return "unfinished: the last row says neither that it is done nor that it was stopped"

    def of(self, member: int) -> list[Row]:
        """The rows of a member; all rows of a single run."""
        return self._owned.get(member, []) if self.is_sweep else self.rows

    def curve(self, name: str, kind: Kind = "train", member: int = 0) -> Curve:
        """The finite numbers of a name over steps, as `curves.curve` finds them, but without a look at rows of others."""
        rows, names = self._sorted.get((kind, member if self.is_sweep else None), _NO_ROWS)
        if name not in names:
            return np.empty(0), np.empty(0)
        found = [(row["step"], value) for row in rows if isinstance(value := row.get(name), int | float)]
        array = np.array(found, np.float64).reshape(-1, 2)
        array = array[np.isfinite(array[:, 1])]
        return array[:, 0], array[:, 1]

    def single_episodes(self, member: int = 0, last: int | None = None) -> Curve:
        """Returns of single episodes over steps: all that have a row of their own, and of a row of several its last one.

        Of the `last` so many episodes without a gap, if that is asked for: nothing if not all of them have rows of their own.
        """
        rows, _ = self._sorted.get(("episode", member if self.is_sweep else None), _NO_ROWS)
        if last is not None:
            rows = rows[-last:]
            rows = [] if any(episodes_in(row) > 1 for row in rows) else rows
        return curves.curve(
            [{**row, "return": row["return_last"]} if "return_last" in row else row for row in rows],
            "return",
            "episode",
        )

    def newest(self, member: int, count: int, until: float = math.inf) -> list[Row]:
        """Its last rows of training that are not after a step."""
        rows, _ = self._sorted.get(("train", member if self.is_sweep else None), _NO_ROWS)
        return rows[: bisect.bisect_right(rows, until, key=lambda row: float(row["step"]))][-count:]

    def total(self, name: str, member: int = 0) -> int:
        """A counter of training over all sessions."""
        return self.condensed.total(member if self.is_sweep else None, name)

    @cached_property
    def _sorted(self) -> dict[tuple[object, object], tuple[list[Row], set[str]]]:
        """Rows by kind and member, and the names of all that they tell."""
        found: dict[tuple[object, object], list[Row]] = {}
        for row in self.rows:
            found.setdefault((row["kind"], row.get("member") if self.is_sweep else None), []).append(row)
        return {key: (rows, set().union(*rows)) for key, rows in found.items()}

    @cached_property
    def _owned(self) -> dict[int, list[Row]]:
        return by_member(self.rows)


def subject_of(run_dir: str | Path, *, running: bool = False, now: float | None = None) -> Subject:
    """Read a directory; refused if it is none of a run or sweep.

    >>> import tempfile
    >>> from laser_rl.metrics.log import MetricsLog
    >>> run_dir = tempfile.mkdtemp()
    >>> with MetricsLog(run_dir) as log:
    ...     log.write("train", 640, 4, {"entropy": 0.6})
    >>> subject_of(run_dir).state[:10], len(subject_of(run_dir).members)
    ('unfinished', 1)
    """
    run_dir = Path(run_dir)
    if not any((run_dir / name).exists() for name in (CONFIG, SWEEP, FILE)):
        inside = run_dir.is_dir() and any((one / FILE).exists() for one in run_dir.iterdir())
        hint = f"; its folders are: laser report {run_dir}/*" if inside else "; is this a run directory?"
        raise ConfigError(f"expected {run_dir} to have {CONFIG}, {SWEEP} or {FILE}, got none of them{hint}")
    condensed = Condensed.read(run_dir / FILE)
    rows = condensed.rows()
    of_members = any("member" in row for row in rows)
    return Subject(
        run_dir,
        run_dir.resolve().name,
        rows,
        read_json(run_dir / CONFIG),
        read_json(run_dir / SWEEP),
        is_sweep=(run_dir / SWEEP).exists() or of_members,
        resumptions=condensed.resumptions,
        sessions=sessions(run_dir),
        running=running,
        now=time.time() if now is None else now,
        condensed=condensed,
    )


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
