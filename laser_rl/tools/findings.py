"""What `laser check-env` writes down while it plays, and what it reports."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

Verdict = Literal["good", "warning", "defect", "not done"]

# What a good environment does, by the name of the check.
CHECKS = {
    "construction": "it can be built twice, and both copies have the same spaces",
    "spaces": "an observation_space and an action_space that an agent can be built for",
    "interface": "(observation, info) from reset, five values from step",
    "observation": "observations of the dtype, shape and bounds that observation_space declares",
    "finite": "finite numbers in observations",
    "reward": "one finite real number as reward",
    "flags": "terminated and truncated are bools",
    "info": "info is a dict",
    "own arrays": "an observation stays as it is after it was returned",
    "action space": "an action_space that stays the same",
    "errors": "no exception in the constructor, reset, step or close",
    "answers": "an answer in time",
    "repeatable": "the same seed and the same actions give the same episode",
    "seed": "an episode depends on its seed, not on the episodes before it",
    "generators": "random numbers come from self.np_random alone",
    "gymnasium": "nothing that Gymnasium's own checker objects to",
    "after the end": "an episode's last observation is its own, and nothing resets by itself",
    "length": "episodes end, or are cut off",
    "time limit": "an episode that is cut off is truncated, not terminated",
    "memory": "memory does not grow from step to step",
    "handles": "files, threads and processes go away with close",
    "workers": "it runs in two worker processes at once",
    "speed": "at least 100 steps a second in one process",
}
ALWAYS = frozenset({"errors", "answers"})  # belong to every stage


@dataclass(frozen=True)
class Finding:
    """The outcome of one check; `where` and `trace` (the user's own lines) are of the first time."""

    check: str
    verdict: Verdict
    expected: str
    got: str = ""
    fix: str = ""
    where: str = ""
    trace: str = ""
    times: int = 1


@dataclass
class Stop(Exception):
    """The stage under way cannot go on."""

    finding: Finding


@dataclass
class Row:
    """What one call of reset or step returned; row 0 of an episode is that of reset."""

    observation: Any
    reward: Any = 0.0
    terminated: Any = False
    truncated: Any = False
    info: Any = field(default_factory=dict)
    action: Any = None  # of the step that led here, as the environment takes it

    @property
    def ends(self) -> bool:
        """Whether nothing follows, by the truth values of whatever the flags are."""
        try:
            return bool(self.terminated) or bool(self.truncated)
        except ValueError:  # an array
            return False


@dataclass
class Episode:
    """One episode, from its reset on."""

    number: int
    seed: int
    rows: list[Row] = field(default_factory=list)
    slot: int = 0
    broken: bool = False  # by an exception

    @property
    def length(self) -> int:
        """Steps."""
        return len(self.rows) - 1

    @property
    def ended(self) -> bool:
        """Whether it came to its end."""
        return len(self.rows) > 1 and self.rows[-1].ends

    def place(self, step: int) -> str:
        """Where, for people."""
        return f"slot {self.slot}, episode {self.number}, step {step}"


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in every bit that counts; NaN equals NaN.

    >>> same({"a": np.zeros(2)}, {"a": np.zeros(2)}), same((1.0,), (2.0,))
    (True, False)
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    try:
        first, second = np.asarray(one), np.asarray(other)
        nan = first.dtype.kind in "fc" and second.dtype.kind in "fc"
        return bool(np.array_equal(first, second, equal_nan=nan))
    except (TypeError, ValueError):  # something that is neither a number nor an array
        return type(one) is type(other)


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """The first of each kind, with how often it was seen.

    >>> twice = [Finding("reward", "defect", "a number", "nan", "mend it", f"step {step}") for step in (1, 2)]
    >>> [(one.where, one.times) for one in merged(twice)]
    [('step 1', 2)]
    """
    first: dict[tuple[str, str, str], Finding] = {}
    for one in findings:
        key = (one.check, one.verdict, one.fix)
        known = first.get(key)
        first[key] = one if known is None else replace(known, times=known.times + one.times)
    return list(first.values())


def completed(found: Iterable[Finding], stages: Mapping[str, Iterable[str]], done: Iterable[str]) -> list[Finding]:
    """In the order of the checks: what was found, what is good, and what could not be looked at.

    Args:
        found: all findings.
        stages: the checks of every stage; empty if not even the stages are known.
        done: the stages that came to their end.
    """
    merged_findings, made = merged(found), {check for stage in done for check in stages[stage]} | ALWAYS
    applies = {check for checks in stages.values() for check in checks} | made
    complete: list[Finding] = []
    for check, expected in CHECKS.items():
        own = [one for one in merged_findings if one.check == check]
        if own:
            complete += own
        elif check in made:
            complete.append(Finding(check, "good", expected))
        elif check in applies or not stages:
            complete.append(Finding(check, "not done", expected))
    return complete
