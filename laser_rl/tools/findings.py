"""What `laser check-env` finds out about an environment, and how that is printed."""

import math
import re
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

import gymnasium

from laser_rl.envs.records import BoxActions, DiscreteActions, EnvironmentSpec, read_spec
from laser_rl.errors import EnvironmentRefused

Verdict = Literal["good", "warning", "defect", "not done"]

# What a good environment does, by the name of the check.
CHECKS = {
    "construction": "it can be built twice, with the same spaces, which an agent can be built for",
    "rows": "five values of the right types; observations of the declared dtype, shape and bounds; finite numbers",
    "errors": "no exception in the constructor, reset or step",
    "answers": "an answer in time",
    "repeatable": "the same seed and the same actions give the same episode",
    "seed": "an episode depends on its seed, not on the episodes before it",
    "generators": "random numbers come from self.np_random alone",
    "gymnasium": "nothing that Gymnasium's own checker objects to",
    "after the end": "an episode's last observation is its own, and nothing resets by itself",
    "length": "episodes end, or are cut off",
    "time limit": "an episode that is cut off is truncated, not terminated",
    "memory": "memory does not grow from step to step",
    "workers": "it runs in two worker processes at once",
    "speed": "at least 100 steps a second in one process",
}
MOST_FRAMES = 4  # of a traceback: the last ones are the user's own
FOREIGN = (str(Path(gymnasium.__file__).parent), str(Path(__file__).parents[1]), "<frozen importlib")
MARKS = {"good": "good", "warning": "WARNING", "defect": "DEFECT", "not done": "not done"}
COLOURS = {"good": "32", "warning": "33", "defect": "31;1", "not done": "2"}
NAME_WIDTH, MARK_WIDTH = 14, 10
NORMAL_95 = 1.96


@dataclass(frozen=True)
class Order:
    """What is to be examined, as it travels to the process and as flags ask for it."""

    id: str
    steps: int = 2_000
    """Random ones, at most; slow environments are played for fewer."""
    slots: int = 4
    """Of environments that step many at once; of a mixture at least so many, the same for each task."""
    seconds: float = 4.0
    """For each stage of the examination, about."""
    seed: int = 0
    """Of episodes and actions."""
    options: str = "{}"
    """Keyword arguments of the environment as JSON, e.g. '{"size": 5}'."""
    step_limit: float = 20.0
    """Seconds that one step may take before it counts as hanging."""
    reset_limit: float = 60.0
    """The same for one reset."""
    constructor_limit: float = 120.0
    """The same for the import and the constructor."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one check; `trace` has the user's own lines."""

    check: str
    verdict: Verdict
    expected: str
    got: str = ""
    fix: str = ""
    where: str = ""
    trace: str = ""


def refusal(check: str, text: str) -> Finding:
    """A refusal of ours, which says what was expected, what came and what to do, as a finding.

    >>> refusal("rows", "Maze (slot 0, episode 1, step 2): expected reward to be a real number, got None; return float(reward)")
    Finding(check='rows', verdict='defect', expected='reward to be a real number', got='None', fix='return float(reward)',
            where='slot 0, episode 1, step 2', trace='')
    """
    sentence, _, fix = text.partition("\n")[0].rpartition("; ")
    expected, _, got = sentence.partition(", got ")
    where = re.search(r"\((slot \d+, episode -?\d+, step \d+)\): ", expected)
    expected = expected.partition("expected ")[2] or expected
    return Finding(check, "defect", expected, got, fix, "" if where is None else where[1])


def error_finding(error: BaseException, phase: str, where: str = "", fix: str = "correct the line below") -> Finding:
    """An exception with the last frames of the user's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(FOREIGN)]
    trace = "".join([*traceback.format_list(own[-MOST_FRAMES:]), *traceback.format_exception_only(error)]).rstrip()
    got = f"{type(error).__name__}: {error}".partition("\n\n")[0][:300]
    return Finding("errors", "defect", f"no exception in {phase}", got, fix, where, trace)


@dataclass
class Examination:
    """What was found out about an environment, collected from the messages of a `check_env.Bench`."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)  # neither good nor bad
    spec: EnvironmentSpec | None = None
    checks: list[str] = field(default_factory=lambda: list(CHECKS))  # those that apply
    done: set[str] = field(
        default_factory=lambda: {"errors", "answers"}
    )  # of stages that came to their end, and of all

    def take(self, message: Mapping[str, Any]) -> None:
        """Add one message; a refused name is raised."""
        if "refused" in message:
            raise EnvironmentRefused(message["refused"])
        if "finding" in message:
            self.findings.append(Finding(**message["finding"]))
        if "spec" in message:
            self.spec = read_spec(message["spec"].encode())
        if "checks" in message:
            self.checks = message["checks"]
        self.facts |= message.get("facts", {})
        self.done |= set(message.get("done", ()))

    def of(self, verdict: str) -> list[Finding]:
        """The findings with this verdict."""
        return [one for one in self.findings if one.verdict == verdict]

    def complete(self) -> None:
        """Put the findings in the order of the checks, and add what is good and what could not be looked at."""
        found, self.findings = self.findings, []
        for check, expected in CHECKS.items():
            own = [one for one in found if one.check == check]
            if not own and check in {*self.checks, *self.done}:
                own = [Finding(check, "good" if check in self.done else "not done", expected)]
            self.findings += own


def agent_facts(spec: EnvironmentSpec, name: str) -> dict[str, Any]:
    """What would be trained there by default: recipe, network, replay."""
    from laser_rl import recipes  # noqa: PLC0415 - loads torch, which takes as long as the examination
    from laser_rl.networks.build import family_of, parameter_count  # noqa: PLC0415
    from laser_rl.replay.memory_estimate import available_bytes, estimate  # noqa: PLC0415
    from laser_rl.training.build import layout_of, seeded_network  # noqa: PLC0415

    config = recipes.for_environment(spec, name)
    family = family_of(spec.action)
    network, replay = seeded_network(config, spec, None), config.replay
    need = estimate(layout_of(spec, family, config), replay.capacity_steps, replay.codec, replay.budget_bytes)
    return {
        "recipe": config.recipe,
        "steps": config.run.steps,
        "policy": str(family),
        "torso": type(network.torso).__name__,
        "memory": config.network.memory,
        "parameters": parameter_count(network),
        "replay_steps": replay.capacity_steps,
        "replay_bytes": need.total,
        "replay": str(need),
        "free_bytes": available_bytes(),
    }


def as_json(found: Examination, agent: dict[str, Any] | None) -> dict[str, Any]:
    """All of it as plain values."""
    return {
        "environment": found.name,
        "verdict": "defect" if found.of("defect") else "warning" if found.of("warning") else "good",
        "findings": [asdict(one) for one in found.findings],
        "spec": found.spec and {**asdict(found.spec), "action_kind": type(found.spec.action).__name__},
        "facts": found.facts,
        "agent": agent,
    }


def as_text(found: Examination, agent: dict[str, Any] | None, *, coloured: bool = False) -> Iterator[str]:
    """The table, then what an agent would see, then the result in a line."""
    yield f"{'check':<{NAME_WIDTH}}  verdict"
    for one in found.findings:
        if one.verdict != "not done":
            yield from _finding(one, coloured=coloured)
    if missing := found.of("not done"):
        names = ", ".join(one.check for one in missing)
        yield f"{'':<{NAME_WIDTH}}  {_mark('not done', coloured=coloured)}{names}"
    if found.spec is not None:
        yield ""
        lines = [*_seen(found, found.spec), *(_trained(found, agent) if agent is not None else ())]
        yield from (f"{name:<{NAME_WIDTH}}  {text}" for name, text in lines)
    yield ""
    yield f"{found.name}: {_result(found)}"


def _finding(one: Finding, *, coloured: bool) -> Iterator[str]:
    mark = _mark(one.verdict, coloured=coloured)
    start, indent = f"{one.check:<{NAME_WIDTH}}  {mark}", " " * (NAME_WIDTH + MARK_WIDTH + 2)
    if one.verdict == "good":
        yield f"{start}{one.expected}"
        return
    yield f"{start}expected  {one.expected}"
    yield f"{indent}got       {one.got}{f' ({one.where})' if one.where else ''}"
    yield f"{indent}fix       {one.fix}"
    yield from (f"{indent}  | {line}" for line in one.trace.splitlines())


def _mark(verdict: str, *, coloured: bool) -> str:
    mark = f"{MARKS[verdict]:<{MARK_WIDTH}}"
    return f"\x1b[{COLOURS[verdict]}m{mark}\x1b[0m" if coloured else mark


def _seen(found: Examination, spec: EnvironmentSpec) -> Iterator[tuple[str, str]]:
    facts, seen, action = found.facts, spec.observation, spec.action
    kind = "picture" if seen.is_image else "vector"
    yield "observation", f"{seen.dtype} {seen.shape}, a {kind}, scaled by {seen.scale:.4g}"
    if isinstance(action, DiscreteActions):
        yield "action", f"one of {action.count} choices"
    elif isinstance(action, BoxActions):
        yield "action", f"{len(action.low)} real numbers, from {list(action.low)} to {list(action.high)}"
    else:
        yield "action", f"{len(action.counts)} choices at once, among {', '.join(map(str, action.counts))}"
    if spec.tasks:
        yield "tasks", ", ".join(spec.tasks)
    if "played_steps" in facts:
        lengths, steps = facts["lengths"], f"{facts['played_steps']:,} random steps"
        spread = f"{min(lengths):,} to {max(lengths):,} steps, {mean(lengths):,.1f} on average" if lengths else ""
        yield "episodes", f"{len(lengths):,} ended in {steps}: {spread}" if lengths else f"none ended in {steps}"
    returns = facts.get("returns", [])
    if len(returns) > 1:
        error = NORMAL_95 * stdev(returns) / math.sqrt(len(returns))
        spread = f"± {error:.2g} (95 %), from {min(returns):,.4g} to {max(returns):,.4g}"
        yield "random return", f"{mean(returns):,.4g} {spread}"
    if "steps_per_second" in facts:
        where = (
            f"in {facts['slots']} slots"
            if "slots" in facts
            else "in one process; a step takes {step_ms:.3g} ms, a reset {reset_ms:.3g} ms"
        )
        yield "speed", f"{facts['steps_per_second']:,.0f} steps/s {where.format(**facts)}"


def _trained(found: Examination, agent: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "policy", agent["policy"]
    yield "recipe", f"{agent['recipe']}: laser train --env {found.name}"
    memory = "" if agent["memory"] == "none" else f", memory {agent['memory']}"
    yield "network", f"{agent['torso']}{memory}, {agent['parameters']:,} parameters"
    yield "replay", f"{agent['replay'].removeprefix('replay of ')}; {agent['free_bytes'] / 1e9:.1f} GB are free"
    if found.facts.get("steps_per_second"):
        minutes = agent["steps"] / found.facts["steps_per_second"] / 60
        yield "time", f"{agent['steps']:,} steps take {minutes:,.1f} minutes for the environment alone, at this speed"


def _result(found: Examination) -> str:
    defects, warnings = len(found.of("defect")), len(found.of("warning"))
    checks = len({one.check for one in found.findings if one.verdict != "not done"})
    if not defects and not warnings:
        return f"fine, {checks} checks"
    numbers = f"{_plural(defects, 'defect')}, {_plural(warnings, 'warning')} in {checks} checks"
    return f"{numbers}; {'mend the defects, then check again' if defects else 'it can be trained'}"


def _plural(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'s' * (number > 1)}"
