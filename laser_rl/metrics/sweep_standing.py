"""How the members of a sweep stand: one record each, from the files of a run directory, also while the sweep is writing them."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laser_rl.errors import ConfigError
from laser_rl.metrics import display, page
from laser_rl.metrics.condensed import Condensed
from laser_rl.metrics.log import FILE
from laser_rl.metrics.sink import Row
from laser_rl.metrics.sweep_curves import acceptance_matrix, by_member, copies, member_returns, own_and_others_of

SWEEP = "sweep.json"


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

    @property
    def label(self) -> str:
        """What tells it from the others."""
        return display.label(self.settings)

    def record(self) -> dict[str, Any]:
        """One line of a table, settings as columns of their own.

        >>> list(MemberStanding(0, {"learning_rate": 0.1}).record())[:4]
        ['member', 'learning_rate', 'steps', 'updates']
        """
        low, high = self.evaluation_interval or (None, None)
        return {
            "member": self.member,
            **self.settings,
            "steps": self.steps,
            "updates": self.updates,
            "return_mean": self.return_mean,
            "evaluation": self.evaluation,
            "evaluation_low": low,
            "evaluation_high": high,
            "acceptance_own": self.acceptance_own,
            "acceptance_others": self.acceptance_others,
            "skipped": self.skipped,
            "rollbacks": self.rollbacks,
            "exploits": self.exploits,
            "silent_seconds": self.silent_seconds,
        }


def standing(run_dir: str | Path) -> list[MemberStanding]:
    """All members, in order.

    >>> import tempfile
    >>> from laser_rl.metrics.log import MetricsLog
    >>> run_dir = tempfile.mkdtemp()
    >>> with MetricsLog(run_dir) as log:
    ...     log.write("train", 640, 4, {"member": 0, "return_mean": 20.0})
    >>> [(one.member, one.steps, one.return_mean) for one in standing(run_dir)]
    [(0, 640, 20.0)]
    """
    run_dir = Path(run_dir)
    found = standing_of(Condensed.read(run_dir / FILE).rows(), page.read_json(run_dir / SWEEP))
    if not found:
        raise ConfigError(
            f"expected {run_dir / SWEEP} or {run_dir / FILE} with rows of members, got neither; "
            f"is this the directory of a sweep? 'laser sweep --out {run_dir}' makes one"
        )
    return found


def standing_of(rows: Sequence[Row], sweep: Mapping[str, Any], now: float | None = None) -> list[MemberStanding]:
    """The same from rows and the content of `sweep.json`, at a time.

    >>> standing_of([], {"settings": [{"learning_rate": 0.1}, {"learning_rate": 0.2}]})[1].label
    'learning_rate 0.2'
    """
    settings = settings_of(sweep)
    owned = by_member(rows)
    members = max([len(settings), *(member + 1 for member in owned)])
    settings += [{} for _ in range(members - len(settings))]
    trusted = acceptance_matrix(rows, members)
    moves, curves = copies(rows), member_returns(rows)
    now = time.time() if now is None else now
    found = []
    for member in range(members):
        own = owned.get(member, [])
        after = [copy.after for copy in moves if copy.member == member]
        shares = own_and_others_of(trusted, member)
        found.append(
            MemberStanding(
                member,
                _moved(settings[member], after),
                steps=max((int(row["step"]) for row in own), default=0),
                updates=max((int(row["update"]) for row in own), default=0),
                return_mean=float(curves[member][1][-1]) if member in curves else None,
                **_evaluation(own),
                acceptance_own=_known(shares[0]),
                acceptance_others=_known(shares[1]),
                skipped=_count(own, "skipped_updates"),
                rollbacks=_count(own, "rollbacks"),
                exploits=len(after),
                silent_seconds=_silent(own, now),
            )
        )
    return found


def settings_of(sweep: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settings of each member from the content of `sweep.json`; none if it has none.

    >>> settings_of({"settings": [{"learning_rate": 0.1}]}), settings_of({})
    ([{'learning_rate': 0.1}], [])
    """
    settings = sweep.get("settings")
    if not isinstance(settings, list):
        return []
    return [dict(one) if isinstance(one, dict) else {} for one in settings]


def best(members: Iterable[MemberStanding]) -> MemberStanding | None:
    """The member with the highest mean in its last evaluation; of equals, or if nobody was evaluated, with the highest return in training.

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


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
