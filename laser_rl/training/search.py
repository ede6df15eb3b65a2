"""A search for settings whose trials share one replay: Optuna proposes, members try, and what a trial has seen stays for all others.

A member is a place where trials run one after the other. After each `1 / looks` of its steps a trial reports its mean return, and Optuna's
pruner says whether it goes on. The place of one that has ended goes to the next: new settings from Optuna's sampler, new parameters (or
with `inherit` those of the best member), and the replay of all trials so far. Decisions only, as in `pbt`; the trainer applies them.

What this settles:
- The best complete trial keeps its member and goes on learning until another complete one is better: so the best policy is never thrown
  away, and a search needs two members.
- The first trials are the draws of `random`: what a run begins with does not depend on Optuna.
- Nothing of Optuna's is kept. Its study is made anew for every decision from the records below and from seeds, so a decision is a function
  of both, and a run that is resumed goes on with the same trials.
- When all `trials` have begun nothing is pruned any more, and every member goes on with the trial that it has.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from laser_rl.config import Count, CountOrNone, Frozen
from laser_rl.errors import require_modules
from laser_rl.metrics.standing import Exploit
from laser_rl.training.pbt import Standing, exploit_between, exploit_of, order_of

END = Literal["running", "complete", "pruned", "failed"]


class SearchConfig(Frozen):
    """How many settings are tried for how long, and who proposes and ends them. Of Optuna (extra `search`)."""

    trials: Annotated[int, Field(ge=2)]
    """Settings to try, at most; as many as there are members at a time."""
    trial_steps: CountOrNone = 0
    """Steps of a trial that is not pruned; 0: twice its share of all steps, since pruned trials leave the rest of theirs to others."""
    looks: Count = 10
    """How often a trial reports its mean return, and may be pruned."""
    sampler: Literal["tpe", "gp", "random"] = "tpe"
    """Proposes settings: Optuna's TPESampler, GPSampler (needs SciPy) or RandomSampler."""
    pruner: Literal["median", "halving", "hyperband", "none"] = "median"
    """Ends trials early: Optuna's MedianPruner, SuccessiveHalvingPruner, HyperbandPruner, or nothing."""
    inherit: bool = False
    """A new trial begins with the parameters of the best member instead of new ones."""


@dataclass
class Trial:
    """One setting that was tried, and where it stands."""

    number: int
    member: int
    born: int  # steps of the member before it
    settings: dict[str, float]
    reports: dict[int, float] = field(default_factory=dict)  # mean return by look
    looked: int = 0  # the newest look, also one that had nothing to report
    state: END = "running"
    attributes: dict[str, Any] = field(default_factory=dict)  # what Optuna's pruner notes about it

    @property
    def score(self) -> float:
        """The newest mean return; a complete trial that goes on has newer ones. −∞ before the first."""
        return self.reports[max(self.reports)] if self.reports else -math.inf


class SearchState:
    """The trials so far, and all that decisions depend on besides the standing of the members.

    `space` has the distributions by name, `first` the settings that the members begin with, `steps` are those of each member in the run.
    """

    def __init__(
        self,
        config: SearchConfig,
        space: Mapping[str, Any],
        first: Sequence[Mapping[str, float]],
        seed: int,
        steps: int,
    ) -> None:
        require_modules("a search", "search", "optuna")
        import optuna  # noqa: F401, PLC0415 - an extra; here, since it takes a second, which no decision should

        self.config, self.space, self.seed, self.tuned = config, space, seed, tuple(space)
        self.trial_steps = config.trial_steps or max(1, min(steps, 2 * steps * len(first) // config.trials))
        self.trials = [Trial(k, k, 0, dict(own)) for k, own in enumerate(first)]
        self.history: list[Exploit] = []

    def current(self) -> dict[int, Trial]:
        """The newest trial of each member."""
        return {trial.member: trial for trial in self.trials}

    def is_due(self, steps: Sequence[int], episodes: Sequence[int]) -> bool:
        """Whether a trial has come to its next look; asked in every turn."""
        return any(self._look(trial, steps[member]) > trial.looked for member, trial in self.current().items())

    def _look(self, trial: Trial, steps: int) -> int:
        return (steps - trial.born) * self.config.looks // self.trial_steps

    def decide(self, standing: Sequence[Standing], tuned: Sequence[Mapping[str, float]]) -> list[Exploit]:
        """Take the reports that are due; the trials that begin now, which may be applied in any order."""
        current, rows = self.current(), {row.member: row for row in standing}
        for member, trial in current.items():
            look = self._look(trial, rows[member].steps)
            if look > trial.looked:
                self._report(trial, look, rows[member].score)
        complete = [trial for trial in current.values() if trial.state == "complete"]
        leader = max(complete, key=lambda trial: trial.score, default=None)
        ended = [member for member, one in current.items() if one.state != "running" and one is not leader]
        known = [row for row in standing if row.member not in ended and math.isfinite(row.score)]
        heir = max(known, key=lambda row: row.score).member if self.config.inherit and known else None
        exploits: list[Exploit] = []
        for member in ended[: max(0, self.config.trials - len(self.trials))]:
            row, donor = rows[member], rows[member if heir is None else heir]  # its own stands for new parameters
            number = len(self.trials)
            asked = self._study(sampler_seed=(self.seed + number) % 2**32).ask(self._distributions())
            after = {name: float(asked.params[name]) for name in self.space}
            before = {name: float(tuned[member][name]) for name in self.space}
            told = {"trial": number, "ended": current[member].state}
            exploits.append(exploit_between(len(self.history) + len(exploits), row, donor, before, after, **told))
            self.trials.append(Trial(number, member, int(row.steps), after))
        self.history += exploits
        return exploits

    def _report(self, trial: Trial, look: int, score: float) -> None:
        """A score that is no number is no report: no episode has ended, or the parameters are lost."""
        looks = self.config.looks
        trial.looked = look
        if not math.isfinite(score):
            # Not at once: members elsewhere are seen as they last published themselves, at first without an episode of this trial.
            if trial.state == "running" and look >= looks + max(1, looks // 2):
                trial.state = "failed"
            return
        if trial.state == "running":
            trial.looked = min(look, looks)  # looked at late, a trial has the result that it has then
        trial.reports[trial.looked] = float(score)
        if trial.state == "running" and trial.looked >= looks:
            trial.state = "complete"
        elif trial.state == "running" and len(self.trials) < self.config.trials:
            trial.state = "pruned" if self._prunes(trial) else "running"

    def _prunes(self, trial: Trial) -> bool:
        study = self._study(sampler_seed=0)
        pruned = bool(study.pruner.prune(study, study.trials[trial.number]))
        trial.attributes = dict(study.trials[trial.number].system_attrs)
        return pruned

    def _distributions(self) -> dict[str, Any]:
        """Optuna's for ours; the numbers of a choice may be text, as YAML reads 1e-3."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution  # noqa: PLC0415 - an extra

        return {
            name: CategoricalDistribution(list(map(float, own.values)))
            if own.kind == "choice"
            else FloatDistribution(own.low, own.high, log=own.kind == "log_uniform")
            for name, own in self.space.items()
        }

    def _study(self, *, sampler_seed: int) -> Any:
        """Optuna's view of the records."""
        import optuna  # noqa: PLC0415

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        samplers: Any = optuna.samplers
        pruners: Any = optuna.pruners
        with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
            sampler: Any = {
                "tpe": lambda: samplers.TPESampler(seed=sampler_seed, constant_liar=True),
                "gp": lambda: samplers.GPSampler(seed=sampler_seed),
                "random": lambda: samplers.RandomSampler(seed=sampler_seed),
            }[self.config.sampler]()
            pruner: Any = {
                "median": lambda: pruners.MedianPruner(n_warmup_steps=self.config.looks // 5),
                "halving": pruners.SuccessiveHalvingPruner,
                "hyperband": lambda: pruners.HyperbandPruner(max_resource=self.config.looks),
                "none": pruners.NopPruner,
            }[self.config.pruner]()
        study = optuna.create_study(direction="maximize", study_name="laser", sampler=sampler, pruner=pruner)
        states, spaces = optuna.trial.TrialState, self._distributions()
        of = {"running": states.RUNNING, "complete": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}
        for trial in self.trials:
            # A complete trial that goes on is judged by what it had when it was complete: others have had no more steps.
            reports = {look: score for look, score in trial.reports.items() if look <= self.config.looks}
            value = reports[max(reports)] if reports and trial.state in {"complete", "pruned"} else None
            study.add_trial(
                optuna.trial.create_trial(
                    state=of[trial.state] if value is not None or trial.state != "pruned" else states.FAIL,
                    value=value,
                    params={name: _parameter(own, trial.settings[name]) for name, own in self.space.items()},
                    distributions=spaces,
                    intermediate_values=reports,
                    system_attrs=dict(trial.attributes),
                )
            )
        return study

    def state_dict(self) -> dict[str, Any]:
        records = [{**asdict(trial), "reports": [*map(list, trial.reports.items())]} for trial in self.trials]
        return {"trial_steps": self.trial_steps, "trials": records, "history": [order_of(one) for one in self.history]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.trial_steps = int(state["trial_steps"])  # a run that goes on for more steps has other ones by default
        self.trials = [
            Trial(**{**record, "reports": {int(look): float(score) for look, score in record["reports"]}})
            for record in state["trials"]
        ]
        self.history = [exploit_of(record) for record in state["history"]]


def _parameter(own: Any, value: float) -> float:
    return float(value) if own.kind == "choice" else min(max(value, own.low), own.high)
