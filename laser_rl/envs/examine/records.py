"""What an examination writes down, and what it finds."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gymnasium import spaces

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
    "info": "info is a dict that can be copied and sent",
    "own arrays": "an observation stays as it is after it was returned",
    "action space": "an action_space that stays the same",
    "errors": "no exception in the constructor, reset, step or close",
    "answers": "an answer in time",
    "repeatable": "the same seed and the same actions give the same episode",
    "seed": "reset honours its seed",
    "generators": "random numbers come from self.np_random alone",
    "after the end": "an episode's last observation is its own, and nothing resets by itself",
    "length": "episodes end, or are cut off",
    "time limit": "an episode that is cut off is truncated, not terminated",
    "memory": "memory does not grow from step to step",
    "handles": "files, threads and processes go away with close",
    "workers": "it runs in two worker processes at once",
    "speed": "at least 100 steps a second in one process",
}


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    >>> Finding("reward", "defect", "a finite reward", "nan", "divide by zero nowhere", "slot 0, episode 1, step 2").check
    'reward'
    """

    check: str
    verdict: Verdict
    expected: str
    got: str = ""
    fix: str = ""
    where: str = ""
    trace: str = ""  # of the user's code, shortened
    times: int = 1  # how often it was seen; the place is that of the first time


@dataclass(frozen=True)
class Fault:
    """An exception of the environment's own code."""

    phase: str
    error: str
    trace: str


@dataclass
class Row:
    """What one call of reset or step returned, read as kindly as possible; row 0 of an episode is that of reset."""

    observation: Any
    reward: Any = 0.0
    terminated: Any = False
    truncated: Any = False
    info: Any = field(default_factory=dict)
    odd: str = ""  # what came instead of two values from reset, or of five from step
    action: Any = None  # as an agent sends it; of the step that led here
    altered: bool = False  # a later call changed the array that had been returned
    action_space: str = ""  # what it became, where it did not stay as it was

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
    slot: int = 0
    rows: list[Row] = field(default_factory=list)
    fault: Fault | None = None
    drew: frozenset[str] = frozenset()  # global generators that were used meanwhile

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


@dataclass
class Recording:
    """What was played, and with what it has to agree."""

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    episodes: list[Episode]
    step_limit: int | None = None  # Gymnasium's TimeLimit, where there is one
    own_limits: dict[str, int] = field(default_factory=dict)  # attributes of the environment that look like one

    def rows(self) -> Iterator[tuple[Episode, int, Row]]:
        """All rows with their places."""
        for episode in self.episodes:
            for step, row in enumerate(episode.rows):
                yield episode, step, row

    @property
    def steps(self) -> int:
        """In all episodes."""
        return sum(max(0, episode.length) for episode in self.episodes)


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
