"""Finite observations outside their Box, in training, in evaluation and under examination: row 36 of the list."""

import logging

import gymnasium
import pytest

from laser_rl import LASER, cli
from tests.faults.bad_environments import Leaves, LeavesInAProcess, LeavesLate, LeavesTwice

TINY = {"slots": 2, "unroll_steps": 5, "hidden": (8,)}


def said_about(name, source, caplog, **settings):
    """Train and evaluate; returns the warnings that name the environment."""
    with caplog.at_level(logging.WARNING):
        agent = LASER(source, **TINY | settings).learn(900)
        played = agent.evaluate(2, deterministic=True)
        agent.close()
    assert played.episodes == 2
    return [record.getMessage() for record in caplog.records if name in record.getMessage()]


@pytest.mark.fault(36)
@pytest.mark.parametrize(
    ("source", "settings"),
    [
        (Leaves, {}),
        (LeavesLate, {"runtime": "local"}),
        (LeavesInAProcess, {"environment.placement": "process", "workers": 2}),
    ],
)
def test_a_value_outside_its_box_is_told_of_once_and_ends_nothing(source, settings, caplog, figure):
    said = said_about(source.__name__, source, caplog, **settings)
    assert len(said) == 1
    assert f"step {source.at}): observation[1] is 2.5, outside of [-1.0, 1.0]" in said[0]
    figure(f"{source.__name__}: 900 steps and 2 episodes of evaluation, {len(said)} warning with value and bound")


@pytest.mark.fault(36)
def test_a_part_of_a_dict_is_named(caplog):
    said = said_about("LeavesTwice", LeavesTwice, caplog)
    assert len(said) == 1
    assert "observation['arm'][0] is 1.5, outside of [-1.0, 1.0]" in said[0]


@pytest.mark.fault(36)
def test_a_vector_of_environments_is_told_of_once(caplog):
    gymnasium.register("LeavesInAVector-v0", entry_point=Leaves)
    vector = gymnasium.make_vec("LeavesInAVector-v0", num_envs=2, vectorization_mode="sync")
    with caplog.at_level(logging.WARNING):
        LASER(vector, **TINY).learn(900)
    said = [record.getMessage() for record in caplog.records if "LeavesInAVector" in record.getMessage()]
    assert len(said) == 1
    assert "observation[1] is 2.5, outside of [-1.0, 1.0]" in said[0]


@pytest.mark.fault(36)
def test_check_env_warns_with_the_value_and_the_bound(capsys):
    name = "tests.faults.bad_environments:Leaves"
    assert cli.main(["check-env", name, "--steps", "300", "--seconds", "1"]) == 0
    out = capsys.readouterr().out
    assert "rows            WARNING" in out
    assert "observation[1] is 2.5, outside of [-1.0, 1.0]" in out
    assert f"{name}: 0 defects, 1 warnings" in out
