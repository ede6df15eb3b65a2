"""How a run or the members of a sweep stand: one record each, from the files of a run directory, also while they are written."""

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self

from laser_rl.disk import read_json
from laser_rl.metrics import display
from laser_rl.metrics.log import FILE, Limit, rows_of
from laser_rl.metrics.rows import Kind, Row, mean

SWEEP = "sweep.json"
_NEWEST, _EPISODES, _EVALUATIONS, _EVENTS, _EXPLOITS = 10, 100, 50, 200, 5000
_MOST_MEMBERS = 256
_PIECE = 2000  # rows that are sorted at once


class Newest:
    """The newest rows of each kind and member, events and exploits, without those that a later resume made void.

    It grows with the number of members, not of rows. A log may be forged, so the number of members is bounded.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.last: Row | None = None
        self.began: float | None = None
        self.has_members = False
        self.marks: list[tuple[float, float]] = []  # where the run was resumed: step and time
        self.events: deque[Row] = deque(maxlen=_EVENTS)
        self.exploits: deque[Row] = deque(maxlen=_EXPLOITS)
        self._newest: dict[tuple[str, int], deque[Row]] = {}

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Take the rows of a log that hold."""
        found = cls()
        found.add(rows_of(path))
        return found

    def add(self, rows: Iterable[Row]) -> None:
        """Take rows as they were written; a mark of a resume makes earlier ones of its member void."""
        groups: dict[tuple[str, int], list[Row]] = {}
        for number, row in enumerate(rows, start=1):
            member = row.get("member")
            if isinstance(member, int) and not 0 <= member < _MOST_MEMBERS:
                continue
            self.rows += 1
            self.last = row
            self.has_members = self.has_members or isinstance(member, int)
            if self.began is None and "time" in row:
                self.began = float(row["time"])
            if row["kind"] == "event":
                self._flush(groups)
                self.events.append(row)
                self._newest_of("event", own(row)).append(row)
                who = row.get("member"), row.get("donor")
                if row.get("event") == "exploit" and all(isinstance(one, int) and one < _MOST_MEMBERS for one in who):
                    self.exploits.append(row)
                if row.get("event") == "resumed":
                    self._void(row)
            else:
                groups.setdefault((str(row["kind"]), own(row)), []).append(row)
            if number % _PIECE == 0:
                self._flush(groups)
        self._flush(groups)

    def newest(self, kind: Kind | None, member: int) -> list[Row]:
        """The newest rows of a kind, or of each kind, of a member."""
        key = self._key(member)
        found = [rows for (its, whose), rows in self._newest.items() if whose == key and kind in {None, its}]
        return list(chain.from_iterable(found))

    def values(self, kind: Kind, member: int) -> Row:
        """The newest value of every number in the rows of a kind that are kept of a member."""
        return {name: value for row in self.newest(kind, member) for name, value in row.items()}

    @property
    def members(self) -> int:
        """How many there are by the numbers in the rows; 0 of a single run."""
        return 1 + max((member for _, member in self._newest), default=-1)

    def _newest_of(self, kind: str, member: int) -> deque[Row]:
        most = {"episode": _EPISODES, "evaluation": _EVALUATIONS}.get(kind, _NEWEST)
        return self._newest.setdefault((kind, member), deque(maxlen=most))

    def _key(self, member: int) -> int:
        return member if self.has_members else -1

    def _void(self, mark: Row) -> None:
        whose, limit = own(mark), Limit.of(mark)
        self.marks.append((limit.step, float(mark.get("time", math.nan))))
        del self.marks[:-_EVENTS]
        for rows in [*self._newest.values(), self.exploits]:
            held = [row for row in rows if own(row) != whose or not limit.voids(row)]
            rows.clear()
            rows.extend(held)

    def _flush(self, groups: dict[tuple[str, int], list[Row]]) -> None:
        for (kind, member), rows in groups.items():
            self._keep(kind, member, rows)
        groups.clear()

    def _keep(self, kind: str, member: int, rows: list[Row]) -> None:
        self._newest_of(kind, member).extend(rows)


class MemberStanding(NamedTuple):
    """What is known of a member; None where nothing is yet."""

    member: int
    settings: dict[str, Any]  # as they are now: population based training may have moved them
    steps: int = 0
    updates: int = 0
    return_mean: float | None = None  # of the last 100 episodes
    evaluation: float | None = None  # mean of the last one
    evaluation_interval: tuple[float, float] | None = None
    acceptance_own: float | None = None  # share of its own replayed steps that it trusts, over the last rows
    acceptance_others: float | None = None  # likewise of others' steps, each source counted the same
    exploits: int = 0
    silent_seconds: float | None = None  # since its last row


class Exploit(NamedTuple):
    """One copy: the member takes the donor's parameters and goes on with the settings `after`.

    With the member itself as donor only its settings move; where a `trial` begins, with new parameters.
    """

    number: int  # counted through the whole sweep, from 0
    step: int  # of the member that copies
    member: int
    donor: int
    score: float  # as in the standing; math.nan, this very object, if not finite, so that records compare equal
    donor_score: float
    before: dict[str, float]  # tuned settings of the member
    after: dict[str, float]
    trial: int | None = None  # of a search: the one that begins
    ended: str = ""  # of a search: how the trial before it ended

    def row(self) -> Row:
        """What the member's row of the event says; `copies` reads it again."""
        values: Row = {"donor": self.donor, "score": self.score, "donor_score": self.donor_score}
        if self.trial is not None:
            values |= {"trial": self.trial, "ended": self.ended}
        values |= {f"before_{name}": value for name, value in self.before.items()}
        return values | {f"after_{name}": value for name, value in self.after.items()}


class TrialStanding(NamedTuple):
    """A trial of a search: from which to which step of its member, how it ended, and its newest mean return."""

    trial: int
    member: int
    begun: int
    until: int
    state: str
    score: float | None
    settings: dict[str, Any]


def standing(run_dir: Path) -> list[MemberStanding]:
    """All members of a sweep, in order."""
    return standing_of(Newest.read(run_dir / FILE), read_json(run_dir / SWEEP))


def standing_of(history: Newest, sweep: Mapping[str, Any], now: float | None = None) -> list[MemberStanding]:
    """The same from what is remembered of the rows and the content of `sweep.json`, at a time."""
    listed = sweep.get("settings")
    settings = dict(enumerate(listed)) if isinstance(listed, list) else {}
    members = max(len(settings), history.members)
    trusted = newest_means(history, [f"acceptance_from_{source}" for source in range(members)], members)
    moves, now = copies(history), time.time() if now is None else now
    found = []
    for member in range(members):
        own, begun = history.newest(None, member), settings.get(member)
        trained, times = history.newest("train", member), _numbers(own, "time")
        trusts = _known(trusted[member][member])  # a single run has no sources to tell apart
        played = [row for row in history.newest("evaluation", member) if _numbers([row], "mean")][-1:]
        interval = [*_numbers(played, "ci95_low"), *_numbers(played, "ci95_high")]
        now_set = dict(begun) if isinstance(begun, dict) else {}
        full = {display.last_name(name): name for name in now_set}
        after = [copy.after for copy in moves if copy.member == member]
        for values in after:  # an exploit names settings without their section
            now_set |= {full.get(name, name): value for name, value in values.items()}
        found.append(
            MemberStanding(
                member,
                now_set,
                steps=max((int(row["step"]) for row in own), default=0),
                updates=max((int(row["update"]) for row in own), default=0),
                return_mean=_last(trained, "return_mean"),
                evaluation=_last(played, "mean"),
                evaluation_interval=(interval[0], interval[1]) if len(interval) > 1 else None,
                acceptance_own=_last(trained, "acceptance") if trusts is None else trusts,
                acceptance_others=_known(mean([*trusted[member][:member], *trusted[member][member + 1 :]])),
                exploits=len(after),
                silent_seconds=max(0.0, now - max(times)) if times else None,
            )
        )
    return found


def best(members: Iterable[MemberStanding]) -> MemberStanding | None:
    """The member with the highest mean in its last evaluation; of equals, or without evaluations, with the highest return in training."""

    def rank(one: MemberStanding) -> list[float]:
        return [-math.inf if score is None else score for score in (one.evaluation, one.return_mean)]

    return max((one for one in members if rank(one) > [-math.inf] * 2), key=rank, default=None)


def state_of(last: Row | None, *, running: bool) -> str:
    """A run in a word. One that was killed says nothing of it, so it is known by the missing process."""
    if running:
        return "running"
    if last is None:
        return "not begun"
    return str(last["event"]) if last.get("event") in {"finished", "stopped"} else "broken off"


def newest_means(history: Newest, names: Sequence[str], members: int) -> list[list[float]]:
    """[member, name]: means over the newest ten training rows of each member; NaN where there is no number."""
    newest = [history.newest("train", member) for member in range(members)]
    return [[mean(row.get(name) for row in own) for name in names] for own in newest]


def copies(history: Newest) -> list[Exploit]:
    """All exploits, in the order in which they happened, numbered by it."""
    found = list[Exploit]()
    for row in history.exploits:
        who = len(found), int(row["step"]), int(row["member"]), int(row["donor"])
        scores = float(row.get("score", math.nan)), float(row.get("donor_score", math.nan))
        trial = (int(row["trial"]), str(row.get("ended", ""))) if "trial" in row else (None, "")
        found.append(Exploit(*who, *scores, _prefixed(row, "before_"), _prefixed(row, "after_"), *trial))
    return found


def trials(history: Newest, members: Sequence[MemberStanding]) -> list[TrialStanding]:
    """All trials of a search, in order: each ends where the next one of its member begins. None of a sweep that is no search."""
    births = [one for one in copies(history) if one.trial is not None]
    newest, found = {one.member: (one.member, 0) for one in members}, list[TrialStanding]()
    for one in births:
        trial, begun = newest[one.member]
        found.append(TrialStanding(trial, one.member, begun, one.step, one.ended, _known(one.score), one.before))
        newest[one.member] = one.trial or 0, one.step
    for member in members if births else ():
        trial, begun = newest[member.member]
        now = {display.last_name(name): value for name, value in member.settings.items()}
        found.append(TrialStanding(trial, member.member, begun, member.steps, "goes on", member.return_mean, now))
    return sorted(found)


def own(row: Row) -> int:
    return int(row.get("member", -1))


def _last(rows: Iterable[Row], name: str) -> Any:
    return [None, *_numbers(rows, name)][-1]


def _prefixed(row: Row, prefix: str) -> dict[str, float]:
    numbers = {name: float(value) for name, value in row.items() if isinstance(value, int | float)}
    return {name.removeprefix(prefix): value for name, value in numbers.items() if name.startswith(prefix)}


def _numbers(rows: Iterable[Row], name: str) -> list[float]:
    values = [row.get(name) for row in rows]
    return [float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
