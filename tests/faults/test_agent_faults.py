"""Faults of environments while an agent, or a sweep, learns: rows 1 to 4 of the list, through the whole ring."""

import logging
from functools import partial

import numpy as np
import pytest

from laser_rl.errors import EnvironmentRefused
from tests.envs.samples import Telltale
from tests.faults.bad_environments import Poisoned
from tests.faults.environment_runs import Kept, Killing, Stopping, learn, learn_in_a_sweep, within

LEARNERS = {
    "serial": partial(learn, runtime="serial"),
    "local": partial(learn, runtime="local"),
    "sweep side by side": partial(learn_in_a_sweep, stack="on"),
    "sweep in turn": partial(learn_in_a_sweep, stack="off", workers=1),
}

BACK_S = 2.0
LIMIT_S = 0.5  # of a step, for workers that hang


def also_slow(*cases):
    """Cases of a parametrised test for the slow tier only."""
    return [pytest.param(*(case if isinstance(case, tuple) else [case]), marks=pytest.mark.slow) for case in cases]


def kill_and_learn(who, times, steps, figure):
    killing = Killing(times)
    learned = LEARNERS[who](partial(Telltale, pause_s=0.001), disturb=killing, steps=steps)
    looked_at = learned.check()
    assert killing.done == learned.count("restarts") == times
    assert learned.broken > 0
    assert within(learned.silence_s, BACK_S)
    figure(
        f"{who}: {times} kills, {learned.updates:,} updates for {learned.offered:,} new unrolls, 0 mixed of {looked_at:,} steps, "
        f"back within {learned.silence_s:.2f} s, 0 zombies"
    )


@pytest.mark.fault(1)
@pytest.mark.parametrize("who", ["serial", "local", "sweep side by side"])
def test_workers_killed_while_an_agent_learns(who, figure):
    kill_and_learn(who, times=3, steps=300, figure=figure)


@pytest.mark.slow
@pytest.mark.fault(1)
@pytest.mark.parametrize("who", LEARNERS)
def test_workers_killed_a_hundred_times_while_an_agent_learns(who, figure):
    kill_and_learn(who, times=100, steps=4_000 if "sweep" in who else 10_000, figure=figure)


@pytest.mark.fault(2)
@pytest.mark.parametrize("who", ["local", *also_slow("serial", "sweep side by side", "sweep in turn")])
def test_a_worker_that_hangs_is_replaced_and_learning_goes_on(who, figure):
    stopping = Stopping()
    source = partial(Telltale, pause_s=0.001)
    learned = LEARNERS[who](source, disturb=stopping, step_timeout_s=LIMIT_S, reset_timeout_s=LIMIT_S, steps=900)
    learned.check()
    assert learned.count("timeouts") == learned.count("restarts") == 1
    late_s = stopping.replaced_s - LIMIT_S
    assert within(late_s, 1.0)
    said = f"{who}: replaced {late_s:.2f} s after its time-out, {learned.broken} open unrolls discarded"
    if who == "local":  # in lockstep, as in serial and in sweeps on a CPU, all wait for the slowest
        others_s = learned.rhythms[0].silence[2:].max()
        assert within(others_s, 1.0)
        said += f", others idle for {others_s:.2f} s at most"
    figure(said)


@pytest.mark.fault(3)
@pytest.mark.parametrize(
    ("who", "placement"),
    [
        ("local", "process"),
        ("sweep in turn", "thread"),
        *also_slow(("serial", "thread"), ("sweep side by side", "process"), ("sweep in turn", "process")),
    ],
)
def test_errors_now_and_then_cost_their_episodes_only(who, placement, figure, caplog):
    with caplog.at_level(logging.WARNING, "laser_rl.envs"):
        learned = LEARNERS[who](partial(Telltale, raise_with=0.01), steps=400, **{"environment.placement": placement})
    learned.check()
    errors = learned.count("errors")
    assert errors == learned.broken > 0
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1  # for all slots, workers and members
    assert "Traceback" in said[0]
    assert "samples.py" in said[0]
    assert "the telltale stumbled" in said[0]
    figure(f"{who}, {placement}: {errors} errors survived, logged {len(said)} time, all steps made")


@pytest.mark.fault(4)
@pytest.mark.parametrize(
    ("who", "placement"),
    [
        ("local", "process"),
        ("sweep side by side", "thread"),
        *also_slow(("serial", "thread"), ("sweep side by side", "process"), ("sweep in turn", "process")),
    ],
)
def test_nothing_that_is_not_finite_is_ever_learned(who, placement, figure):
    kept, settings = Kept(), {"environment.placement": placement, "on_bad_value": "drop"}
    learned = LEARNERS[who](Poisoned, sinks=[kept], **settings)
    replay = learned.trainings[0].member.replay
    unrolls = replay.export(np.arange(replay.first_id, replay.next_id))
    parts = (unrolls.observation, unrolls.reward, unrolls.behaviour)
    assert all(np.isfinite(part).all() for part in parts)
    dropped = learned.count("dropped_episodes")
    assert dropped > 5
    assert sum(training.member.learner.recovery.counts.skipped for training in learned.trainings) == 0
    newest = {row.get("member", 0): row["environment_dropped_episodes"] for row in kept.rows if row["kind"] == "train"}
    assert dropped - 3 <= sum(newest.values()) <= dropped  # an episode or two may be dropped after the last update
    figure(
        f"{who}, {placement}: 0 of {sum(part.size for part in parts):,} values not finite, {dropped} episodes dropped"
    )


@pytest.mark.fault(4)
@pytest.mark.parametrize("placement", ["thread", "process"])
@pytest.mark.parametrize("who", ["serial", "local", "sweep side by side"])
def test_what_is_not_finite_ends_the_run_and_is_named(who, placement, figure):
    with pytest.raises(EnvironmentRefused) as refused:
        LEARNERS[who](Poisoned, **{"environment.placement": placement})
    message = str(refused.value)
    assert message.startswith("Poisoned (slot ")
    assert any(f"got {bad}; " in message for bad in ("nan in observation", "inf in reward"))
    assert "step " in message.partition(")")[0]
    figure(f"`fail`: {message.partition(';')[0]}")
