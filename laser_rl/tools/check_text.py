"""What `laser check-env` prints: the findings, what an agent would see, and what would be trained there."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from statistics import mean, stdev
from typing import Any

from laser_rl.envs.records import BoxActions, DiscreteActions, EnvironmentSpec
from laser_rl.tools.check_process import Examination
from laser_rl.tools.findings import Finding

MARKS = {"good": "good", "warning": "WARNING", "defect": "DEFECT", "not done": "not done"}
COLOURS = {"good": "32", "warning": "33", "defect": "31;1", "not done": "2"}
WIDEST_CHECK, WIDEST_MARK = 14, 10
NORMAL_95 = 1.96


def agent_facts(spec: EnvironmentSpec, name: str) -> dict[str, Any]:
    """What would be trained there by default: recipe, network, replay."""
    from laser_rl import recipes  # noqa: PLC0415 - loads torch, which takes as long as the examination
    from laser_rl.networks.build import family_of, parameter_count  # noqa: PLC0415
    from laser_rl.replay.memory_estimate import available_bytes, estimate  # noqa: PLC0415
    from laser_rl.training.build import layout_of, seeded_network  # noqa: PLC0415

    config = recipes.for_environment(spec, name)
    family = family_of(spec.action)
    layout = layout_of(spec, family, config)
    network = seeded_network(config, spec, None)
    need = estimate(layout, config.replay.capacity_steps, config.replay.codec, config.replay.budget_bytes)
    return {
        "recipe": config.recipe,
        "steps": config.run.steps,
        "policy": str(family),
        "torso": type(network.torso).__name__,
        "memory": config.network.memory,
        "parameters": parameter_count(network),
        "replay_steps": config.replay.capacity_steps,
        "replay_bytes": need.total,
        "replay": str(need),
        "free_bytes": available_bytes(),
    }


def as_json(found: Examination, agent: dict[str, Any] | None) -> dict[str, Any]:
    """All of it as plain values; what is not finite becomes null, since JSON has no word for it."""
    worst = "defect" if found.of("defect") else "warning" if found.of("warning") else "good"
    spec = None if found.spec is None else {**asdict(found.spec), "action_kind": type(found.spec.action).__name__}
    facts = {name: _finite(value) for name, value in found.facts.items()}
    findings = [asdict(one) for one in found.findings]
    parts = {"verdict": worst, "findings": findings, "spec": spec, "facts": facts, "agent": agent}
    return {"environment": found.name, **parts}


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_text(found: Examination, agent: dict[str, Any] | None, *, coloured: bool = False) -> Iterator[str]:
    """The table, then what an agent would see, then the result in a line."""
    yield f"{'check':<{WIDEST_CHECK}}  verdict"
    for one in found.findings:
        if one.verdict != "not done":
            yield from _finding(one, coloured=coloured)
    missing = [one.check for one in found.findings if one.verdict == "not done"]
    if missing:
        yield f"{'':<{WIDEST_CHECK}}  {_mark('not done', coloured=coloured)}{', '.join(missing)}"
    if found.spec is not None:
        yield ""
        yield from (f"{name:<{WIDEST_CHECK}}  {text}" for name, text in _seen(found, found.spec))
    if agent is not None:
        yield from (f"{name:<{WIDEST_CHECK}}  {text}" for name, text in _trained(found, agent))
    yield ""
    yield f"{found.name}: {_result(found)}"


def _finding(one: Finding, *, coloured: bool) -> Iterator[str]:
    mark = _mark(one.verdict, coloured=coloured)
    start, indent = f"{one.check:<{WIDEST_CHECK}}  {mark}", " " * (WIDEST_CHECK + WIDEST_MARK + 2)
    if one.verdict == "good":
        yield f"{start}{one.expected}"
        return
    yield f"{start}expected  {one.expected}"
    often = f"{one.times:,} times, first in " if one.times > 1 and one.where else ""
    yield f"{indent}got       {one.got}{f' ({often}{one.where})' if one.where else ''}"
    yield f"{indent}fix       {one.fix}"
    yield from (f"{indent}  | {line}" for line in one.trace.splitlines())


def _mark(verdict: str, *, coloured: bool) -> str:
    mark = f"{MARKS[verdict]:<{WIDEST_MARK}}"
    return f"\x1b[{COLOURS[verdict]}m{mark}\x1b[0m" if coloured else mark


def _seen(found: Examination, spec: EnvironmentSpec) -> Iterator[tuple[str, str]]:
    facts, seen = found.facts, spec.observation
    kind = "picture" if seen.is_image else "vector"
    yield "observation", f"{seen.dtype} {seen.shape}, a {kind}, scaled by {seen.scale:.4g}"
    yield "action", _action(spec)
    if spec.tasks:
        yield "tasks", ", ".join(spec.tasks)
    if "played_steps" in facts:
        lengths, steps = facts["lengths"], f"{facts['played_steps']:,} random steps"
        spread = f"{min(lengths):,} to {max(lengths):,} steps, {mean(lengths):,.1f} on average" if lengths else ""
        yield "episodes", f"{len(lengths):,} ended in {steps}: {spread}" if lengths else f"none ended in {steps}"
    returns = [value for value in facts.get("returns", []) if math.isfinite(value)]
    if len(returns) > 1:
        error = NORMAL_95 * stdev(returns) / math.sqrt(len(returns))
        spread = f"± {error:.2g} (95 %), from {min(returns):,.4g} to {max(returns):,.4g}"
        yield "random return", f"{mean(returns):,.4g} {spread}"
    if "steps_per_second" in facts:
        where = f"in {facts['slots']} slots" if "slots" in facts else (
            f"in one process; a step takes {facts['step_ms']:.3g} ms, a reset {facts['reset_ms']:.3g} ms"
        )  # fmt: skip
        yield "speed", f"{facts['steps_per_second']:,.0f} steps/s {where}"


def _action(spec: EnvironmentSpec) -> str:
    action = spec.action
    if isinstance(action, DiscreteActions):
        return f"one of {action.count} choices"
    if isinstance(action, BoxActions):
        return f"{len(action.low)} real numbers, from {list(action.low)} to {list(action.high)}"
    return f"{len(action.counts)} choices at once, among {', '.join(map(str, action.counts))}"


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
