"""Changes of a task's sweep, each of which is one step of an experiment: no replay, one each, every row trusted, another mixture."""

from typing import Any

from laser_rl.config import full_name, override
from laser_rl.errors import ConfigError
from laser_rl.research.experiment import Condition, Task
from laser_rl.sweep.settings import SweepConfig


def shared(task: Task, name: str = "shared", **settings: Any) -> Condition:
    """One replay for all members; other settings by name.

    >>> from laser_rl.research import suite_of
    >>> condition = shared(suite_of("small").task("catch"), "naive", trust="off", trust_bound=None)
    >>> condition.sweep.share, condition.sweep.base.loss.bound
    ('shared', inf)
    """
    return Condition(name, changed(task.sweep, settings), task.seconds)


def separate(task: Task, name: str = "separate", **settings: Any) -> Condition:
    """A replay for each member.

    >>> from laser_rl.research import suite_of
    >>> separate(suite_of("small").task("catch")).sweep.base.replay.capacity_steps
    6000
    """
    sweep = changed(task.sweep, {"replay.capacity_steps": task.each_steps, **settings})
    return Condition(name, sweep.model_copy(update={"share": "separate"}), task.seconds)


def without_replay(task: Task, name: str = "no replay") -> Condition:
    """Online unrolls only, every row trusted: IMPALA.

    >>> from laser_rl.research import suite_of
    >>> sweep = without_replay(suite_of("small").task("catch")).sweep
    >>> sweep.configs[0].replay.fraction, sweep.configs[0].loss.batch_unrolls
    (0.0, 2)
    """
    return Condition(name, _online_only(task.sweep, task.online_unrolls), 0.7 * task.seconds)


def with_pbt(task: Task, name: str = "shared, PBT") -> Condition:
    """One replay for all members, and population based training."""
    return Condition(name, task.sweep.model_copy(update={"pbt": task.pbt}), task.seconds)


def alone(task: Task, name: str) -> Condition:
    """A single agent with the middle of the sweep's settings.

    >>> from laser_rl.research import suite_of
    >>> alone(suite_of("small").task("catch"), "one agent").sweep.settings
    ({'learning_rate': 0.001},)
    """
    base = task.sweep.base
    sweep = SweepConfig(
        base=override(base, {"replay.capacity_steps": task.each_steps}),
        members=({"learning_rate": base.optimiser.learning_rate},),
        share="separate",
    )
    return Condition(name, sweep, task.seconds / len(task.sweep.settings) ** 0.5)


def few(task: Task, name: str, **settings: Any) -> Condition:
    """Fewer members, with a replay each.

    >>> from laser_rl.research import suite_of
    >>> sweep = few(suite_of("small").task("catch"), "small replay", capacity_steps=1000).sweep
    >>> sweep.share, len(sweep.settings), sweep.base.replay.capacity_steps
    ('separate', 3, 1000)
    """
    sweep = changed(task.few, {"replay.capacity_steps": task.each_steps, **settings})
    return Condition(name, sweep.model_copy(update={"share": "separate"}), task.few_seconds)


def few_without_replay(task: Task, name: str, online: int) -> Condition:
    """Fewer members without replay, so many unrolls a batch."""
    return Condition(name, _online_only(task.few, online), 0.7 * task.few_seconds)


def mixture(online: int, replayed: int) -> dict[str, Any]:
    """Settings for a batch of so many unrolls.

    >>> mixture(2, 14)
    {'loss.batch_unrolls': 16, 'replay.fraction': 0.875}
    """
    return {"loss.batch_unrolls": online + replayed, "replay.fraction": replayed / (online + replayed)}


def changed(sweep: SweepConfig, settings: dict[str, Any]) -> SweepConfig:
    """A copy with other settings of the base; what members differ in stays."""
    taken = {full_name(name) for member in sweep.settings for name in member} & set(map(full_name, settings))
    if taken:
        raise ConfigError(f"members differ in {', '.join(sorted(taken))}, so the base cannot change that; leave it out")
    return sweep.model_copy(update={"base": override(sweep.base, settings)})


def _online_only(sweep: SweepConfig, online: int) -> SweepConfig:
    settings = {"replay.fraction": 0.0, "loss.batch_unrolls": online, "loss.trust": "off", "loss.trust_bound": None}
    return changed(sweep, settings).model_copy(update={"share": "none"})
