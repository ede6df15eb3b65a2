"""Population based training: which member copies which, and what is tried next. Decisions only; the trainer or supervisor applies them.

The rule is that of IMPALA (Espeholt et al. 2018, appendix F) as docs/differences-from-the-paper.md, 14, reads it. After a burn-in, once
in `every_episodes` of its own episodes, a member looks at one other, drawn uniformly. If that one is better by more than `margin`, its
parameters and tuned settings are copied, and then each tuned setting moves: × factor with probability p/2, ÷ factor with probability p/2,
else it stays (p = 1/3 is the probability of a move in either direction, both equally likely).

What this rule settles:
- A decision uses up the interval whatever comes of it.
- Settings move only after a copy. Appendix F moves them without one too, for the sake of diversity: `move_always`.
- A score that is not finite is worse than any other, and its member is never copied.
- All decisions of a call rest on the standing at the call, but a member that has just been told to copy is no donor any more in that
  call: its parameters are about to change. So the decisions may be applied in order or all at once.
- The random numbers that a member uses depend neither on scores nor on outcomes, only on who is ready.
"""

import copy
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from laser_rl.config import Config, Count, CountOrNone, Frozen, Share, full_name, override
from laser_rl.errors import ConfigError
from laser_rl.metrics.standing import Exploit


class PbtConfig(Frozen):
    """When a member looks at another, what counts as better, and how settings move."""

    burn_in_steps: CountOrNone
    """Steps of a member before it copies or is copied."""
    every_episodes: Count
    """A member's own episodes between two of its decisions."""
    margin: Annotated[float, Field(ge=0)]
    """How much better another has to be, absolute: in returns, or in normalised scores if low and high are given."""
    score_low: float | None = None
    """Return that becomes a score of 0, such as a random player's; none: returns are the scores."""
    score_high: float | None = None
    """Return that becomes a score of 1, such as a human's; scores are capped there."""
    factor: Annotated[float, Field(gt=1)] = 1.2
    """A setting moves × or ÷ this."""
    probability: Share = 1 / 3
    """That a setting moves at all; up and down equally likely."""
    tuned: Annotated[tuple[str, ...], Field(min_length=1)] = ("learning_rate", "entropy_cost")
    """Settings that are copied and moved."""
    move_always: bool = False
    """Settings also move where the other is not better and nothing is copied, as in IMPALA's appendix F."""
    limits: dict[str, tuple[float, float]] = Field(default_factory=dict)
    """How far a move may lead, by name: (low, high)."""

    @model_validator(mode="after")
    def _consistent(self) -> "PbtConfig":
        if (self.score_low is None) != (self.score_high is None):
            raise ValueError("score_low and score_high belong together; give both or none")
        if self.score_low is not None and self.score_high is not None and self.score_low >= self.score_high:
            raise ValueError(f"score_low ({self.score_low}) is not below score_high ({self.score_high}); swap them")
        if unknown := sorted(set(self.limits) - set(self.tuned)):
            raise ValueError(f"limits of {', '.join(unknown)}, which are not tuned; tune them or leave the limits out")
        for name in self.tuned:
            low, high = self.limits.get(name, (1e-30, 1e30))
            if not 0 < low < high:
                raise ValueError(f"limits of {name} are {low, high}; expected 0 < low < high")
            require_real(name, (low, math.sqrt(low * high), high))
        if len({full_name(name) for name in self.tuned}) < len(self.tuned):
            raise ValueError(f"tuned names a setting twice: {', '.join(self.tuned)}; name each once")
        return self


def require_real(name: str, values: Iterable[Any]) -> None:
    """ValueError now if the configuration would refuse one of these values, or a number between: that would end the sweep hours later."""
    try:
        found = [functools.reduce(getattr, full_name(name).split("."), override(Config(), {name: v})) for v in values]
    except ConfigError as error:
        raise ValueError(
            f"{error}; a tuned setting is a real number, one with a range needs limits inside it"
        ) from None
    if not all(isinstance(value, float) for value in found):
        raise ValueError(f"{name} cannot be searched or tuned: expected a setting of real numbers")


def paper(*, score_low: float | None = None, score_high: float | None = None) -> PbtConfig:
    """IMPALA's numbers: a burn-in of 20 M frames (5 M steps of 4), 5,000 episodes, 5 % of the capped normalised score."""
    return PbtConfig(
        burn_in_steps=5_000_000, every_episodes=5_000, margin=0.05, score_low=score_low, score_high=score_high
    )


class Standing(NamedTuple):
    """Where one member is; after a copy, its score should count the episodes since only."""

    member: int
    steps: int
    episodes: int
    score: float  # mean return of the newest episodes, NaN if there are none


SCORES = ("score", "donor_score")


class PbtState:
    """The rule, and all that decisions depend on besides the standing."""

    def __init__(self, config: PbtConfig, members: int, seed: int) -> None:
        self.config, self.tuned = config, config.tuned
        self.decided_at = [0] * members  # episodes of each member at its last decision
        self.history: list[Exploit] = []
        self.random = np.random.Generator(np.random.PCG64(seed))

    def is_due(self, steps: Sequence[int], episodes: Sequence[int]) -> bool:
        """Whether a member has to decide now; asked in every turn, so the usual answer has to be quick."""
        since = (now - before for now, before in zip(episodes, self.decided_at, strict=True))
        return max(since) >= self.config.every_episodes

    def decide(self, standing: Sequence[Standing], tuned: Sequence[Mapping[str, float]]) -> list[Exploit]:
        """The copies that are due now, in the order in which they may be applied; `tuned` are the present values of tuned settings."""
        config, values = self.config, [{name: float(own[name]) for name in self.tuned} for own in tuned]
        scores = [normalised(row.score, config) for row in standing]
        donors = {row.member for row in standing if row.steps >= config.burn_in_steps and math.isfinite(row.score)}
        exploits: list[Exploit] = []
        for row in standing:
            since = row.episodes - self.decided_at[row.member]
            if row.steps < config.burn_in_steps or since < config.every_episodes:
                continue
            self.decided_at[row.member] = int(row.episodes)
            chance, *moves = self.random.random(1 + len(self.tuned)).tolist()
            peers = sorted(donors - {row.member})
            donor = peers[int(chance * len(peers))] if peers else row.member
            if not scores[donor] > scores[row.member] + config.margin:
                if not config.move_always:
                    continue
                donor = row.member
            after = _moved(values[donor], moves, config)
            if donor != row.member:
                donors.discard(row.member)
            elif after == values[donor]:
                continue
            number = len(self.history) + len(exploits)
            exploits.append(exploit_between(number, row, standing[donor], values[row.member], after))
        self.history += exploits
        return exploits

    def state_dict(self) -> dict[str, Any]:
        return {
            "decided_at": list(self.decided_at),
            "history": [order_of(exploit) for exploit in self.history],
            "random": self.random.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.decided_at = [int(episodes) for episodes in state["decided_at"]]
        self.history = [exploit_of(record) for record in state["history"]]
        self.random.bit_generator.state = state["random"]


def order_of(exploit: Exploit) -> dict[str, Any]:
    """As strict JSON: a score that is not a number is null; what only a search says is left out elsewhere."""
    record = copy.deepcopy(exploit._asdict())
    record |= {name: None for name in SCORES if math.isnan(record[name])}
    return {name: one for name, one in record.items() if exploit.trial is not None or name not in {"trial", "ended"}}


def exploit_of(record: Mapping[str, Any]) -> Exploit:
    lost = {name: math.nan for name in SCORES if record[name] is None}
    return Exploit(**copy.deepcopy({**record, **lost}))


def exploit_between(
    number: int, row: Standing, donor: Standing, before: dict[str, float], after: dict[str, float], **trial: Any
) -> Exploit:
    """A score that is not finite is the same object each time, so that records compare equal."""
    score, other = (float(one.score) if math.isfinite(one.score) else math.nan for one in (row, donor))
    return Exploit(number, int(row.steps), row.member, donor.member, score, other, before, after, **trial)


def normalised(score: float, config: PbtConfig) -> float:
    """The score that is compared: (score − low) / (high − low), at most 1; −∞ if it is not finite."""
    if not math.isfinite(score):
        return -math.inf
    if config.score_low is None or config.score_high is None:
        return float(score)
    return min(1.0, (float(score) - config.score_low) / (config.score_high - config.score_low))


def _moved(values: Mapping[str, float], moves: Sequence[float], config: PbtConfig) -> dict[str, float]:
    after = dict(values)
    for name, move in zip(config.tuned, moves, strict=True):
        if move < config.probability:
            moved = values[name] * config.factor if move < config.probability / 2 else values[name] / config.factor
            low, high = config.limits.get(name, (-math.inf, math.inf))
            after[name] = min(max(moved, low), high)
    return after
