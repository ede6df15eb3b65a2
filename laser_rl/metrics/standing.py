"""How a run or the members of a sweep stand: one record each, from the files of a run directory, also while they are written."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from laser_rl.errors import ConfigError
from laser_rl.metrics import display, page
from laser_rl.metrics.history import Array, History
from laser_rl.metrics.log import FILE
from laser_rl.metrics.sink import Row
from laser_rl.metrics.stream import episodes_in
from laser_rl.metrics.window import EPISODES, EpisodeWindow

SWEEP = "sweep.json"
_LAST = 10  # rows


@dataclass(frozen=True)
class MemberStanding:
    """What is known of a member; None where nothing is yet."""

    member: int
    settings: dict[str, Any]
    """As they are now: population based training may have moved them."""
    steps: int = 0
    updates: int = 0
    return_mean: float | None = None
    """Of the last 100 episodes."""
    evaluation: float | None = None
    """Mean of the last evaluation."""
    evaluation_interval: tuple[float, float] | None = None
    acceptance_own: float | None = None
    """Share of its own replayed steps that it trusts, over the last rows."""
    acceptance_others: float | None = None
    """Likewise of others' steps, each source counted the same."""
    skipped: int | None = None
    rollbacks: int | None = None
    exploits: int = 0
    silent_seconds: float | None = None
    """Since its last row."""


class Copy(NamedTuple):
    """An exploit of population based training: `member` took the parameters of `donor`, and new settings."""

    step: int
    member: int
    donor: int
    score: float
    donor_score: float
    before: dict[str, float]
    after: dict[str, float]


def standing(run_dir: str | Path) -> list[MemberStanding]:
    """All members of a sweep, in order.

    >>> import tempfile
    >>> from laser_rl.metrics.log import MetricsLog
    >>> run_dir = tempfile.mkdtemp()
    >>> with MetricsLog(run_dir) as log:
    ...     log.write("train", 640, 4, {"member": 0, "return_mean": 20.0})
    >>> [(one.member, one.steps, one.return_mean) for one in standing(run_dir)]
    [(0, 640, 20.0)]
    """
    run_dir = Path(run_dir)
    found = standing_of(History.read(run_dir / FILE).kept(), page.read_json(run_dir / SWEEP))
    if not found:
        raise ConfigError(
            f"expected {run_dir / SWEEP} or {run_dir / FILE} with rows of members, got neither; "
            f"is this the directory of a sweep? 'laser sweep --out {run_dir}' makes one"
        )
    return found


def standing_of(rows: Sequence[Row], sweep: Mapping[str, Any], now: float | None = None) -> list[MemberStanding]:
    """The same from rows and the content of `sweep.json`, at a time.

    >>> standing_of([], {"settings": [{"learning_rate": 0.1}, {"learning_rate": 0.2}]})[1].settings
    {'learning_rate': 0.2}
    """
    settings = settings_of(sweep)
    owned = by_member(rows)
    members = max([len(settings), *(member + 1 for member in owned)])
    settings += [{} for _ in range(members - len(settings))]
    trusted = newest_means(rows, [f"acceptance_from_{source}" for source in range(members)], members)
    moves = copies(rows)
    now = time.time() if now is None else now
    found = []
    for member in range(members):
        own = owned.get(member, [])
        after = [copy.after for copy in moves if copy.member == member]
        others = np.delete(trusted[member], member)
        others = others[np.isfinite(others)]
        found.append(
            MemberStanding(
                member,
                _moved(settings[member], after),
                steps=max((int(row["step"]) for row in own), default=0),
                updates=max((int(row["update"]) for row in own), default=0),
                return_mean=_return_mean(own),
                **_evaluation(own),
                acceptance_own=_known(trusted[member, member]),
                acceptance_others=float(others.mean()) if len(others) else None,
                skipped=_count(own, "skipped_updates"),
                rollbacks=_count(own, "rollbacks"),
                exploits=len(after),
                silent_seconds=_silent(own, now),
            )
        )
    return found


def best(members: Iterable[MemberStanding]) -> MemberStanding | None:
    """The member with the highest mean in its last evaluation; of equals, or without evaluations, with the highest return in training.

    >>> first, second = MemberStanding(0, {}, return_mean=9.0, evaluation=1.0), MemberStanding(1, {}, return_mean=1.0, evaluation=5.0)
    >>> best([first, second]).member, best([]) is None
    (1, True)
    """
    members = list(members)
    for name in ("evaluation", "return_mean"):
        scored = [(score, one) for one in members if (score := getattr(one, name)) is not None]
        if scored:
            return max(scored, key=lambda pair: (pair[0], _trained(pair[1])))[1]
    return None


def state_of(last: Row | None, *, running: bool) -> str:
    """A run in a word. One that was killed says nothing of it, so it is known by the missing process."""
    if running:
        return "running"
    if last is None:
        return "not begun"
    return str(last["event"]) if last.get("event") in {"finished", "stopped"} else "broken off"


def settings_of(sweep: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settings of each member from the content of `sweep.json`; none if it has none."""
    settings = sweep.get("settings")
    if not isinstance(settings, list):
        return []
    return [dict(one) if isinstance(one, dict) else {} for one in settings]


def by_member(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """The rows of each member, in the order of members; rows of the sweep itself are left out."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        member = row.get("member")
        if isinstance(member, int):
            found.setdefault(member, []).append(row)
    return dict(sorted(found.items()))


def newest_means(rows: Iterable[Row], names: Sequence[str], members: int) -> Array:
    """[member, name]: means over the newest ten training rows of each member; NaN where there is no number.

    >>> row = {"kind": "train", "step": 10, "member": 0, "acceptance_from_0": 1.0, "acceptance_from_1": 0.25}
    >>> newest_means([row], ["acceptance_from_0", "acceptance_from_1"], 2)
    array([[1.  , 0.25],
           [ nan,  nan]])
    """
    trained = by_member(row for row in rows if row["kind"] == "train")
    cells = [[mean_of(trained.get(member, [])[-_LAST:], name) for name in names] for member in range(members)]
    return np.array(cells, dtype=np.float64).reshape(members, len(names))


def mean_of(rows: Iterable[Row], name: str) -> float:
    """The mean of the finite numbers of a name; NaN if there is none."""
    values = [float(row[name]) for row in rows if _finite(row.get(name))]
    return sum(values) / len(values) if values else math.nan


def copies(rows: Iterable[Row]) -> list[Copy]:
    """All exploits, in the order in which they happened.

    >>> row = {"kind": "event", "event": "exploit", "step": 10, "member": 1, "donor": 0, "score": 2.0, "donor_score": 5.0,
    ...        "before_learning_rate": 0.1, "after_learning_rate": 0.2}
    >>> copies([row])[0].after
    {'learning_rate': 0.2}
    """
    return [
        Copy(
            int(row["step"]),
            int(row["member"]),
            int(row["donor"]),
            float(row.get("score", math.nan)),
            float(row.get("donor_score", math.nan)),
            _prefixed(row, "before_"),
            _prefixed(row, "after_"),
        )
        for row in rows
        if row["kind"] == "event" and row.get("event") == "exploit" and "member" in row and "donor" in row
    ]


def _return_mean(rows: Sequence[Row]) -> float | None:
    """As the run reported it last, else the mean of its newest episodes; of a mixture the median of the normalised scores."""
    told = [row["return_mean"] for row in rows if row["kind"] == "train" and _finite(row.get("return_mean"))]
    if told:
        return float(told[-1])
    episodes = [row for row in rows if row["kind"] == "episode" and _finite(row.get("return"))]
    tasks = list(dict.fromkeys(str(row["task"]) for row in episodes if "task" in row))
    window = EpisodeWindow(tasks)
    for row in episodes:
        for _ in range(min(episodes_in(row), EPISODES)):  # of a row of several, their mean for each
            window.add(float(row["return"]), tasks.index(str(row.get("task", tasks[0]))) if tasks else 0)
    return window.numbers().get("return_mean")


def _trained(member: MemberStanding) -> float:
    return -math.inf if member.return_mean is None else member.return_mean


def _moved(settings: Mapping[str, Any], after: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The settings a member has after its exploits, which name them without their section."""
    found = dict(settings)
    full = {display.last_name(name): name for name in settings}
    for values in after:
        found |= {full.get(name, name): value for name, value in values.items()}
    return found


def _evaluation(rows: Iterable[Row]) -> dict[str, Any]:
    played = [row for row in rows if row["kind"] == "evaluation" and _finite(row.get("mean"))]
    if not played:
        return {}
    low, high = played[-1].get("ci95_low"), played[-1].get("ci95_high")
    interval = (low, high) if _finite(low) and _finite(high) else None
    return {"evaluation": float(played[-1]["mean"]), "evaluation_interval": interval}


def _count(rows: Iterable[Row], name: str) -> int | None:
    counts = [int(row[name]) for row in rows if row["kind"] == "train" and _finite(row.get(name))]
    return counts[-1] if counts else None


def _silent(rows: Sequence[Row], now: float) -> float | None:
    times = [float(row["time"]) for row in rows if _finite(row.get("time"))]
    return max(0.0, now - max(times)) if times else None


def _prefixed(row: Row, prefix: str) -> dict[str, float]:
    return {
        name.removeprefix(prefix): float(value)
        for name, value in row.items()
        if name.startswith(prefix) and isinstance(value, int | float)
    }


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
