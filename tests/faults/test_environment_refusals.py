"""Environments that do not keep Gymnasium's contract, through whole agents and sweeps: row 5 of the list."""

import functools
import logging

import pytest

from laser_rl.errors import EnvironmentRefused
from tests.envs.samples import Scripted
from tests.faults.bad_environments import EXPECTED, mistaken
from tests.faults.test_agent_faults import LEARNERS, also_slow

FEW = ["float64", "old gym", "action space"]  # for workers in processes, in the fast tier


def refused(who, placement, case, caplog):
    """Train with an environment whose second step is wrong; returns what is said."""
    source, begun = functools.partial(Scripted, step=functools.partial(mistaken, case=case), good_steps=1), []
    caplog.clear()
    with caplog.at_level(logging.WARNING), pytest.raises(EnvironmentRefused) as error:
        LEARNERS[who](source, begun=begun, slots=2, **{"workers": 1, "environment.placement": placement})
    assert begun
    assert all(training.update == 0 for training in begun)
    assert not caplog.records  # once: not logged before, and no worker was tried again
    return str(error.value)


@pytest.mark.fault(5)
@pytest.mark.parametrize(
    ("who", "placement", "cases"),
    [
        ("serial", "thread", [*EXPECTED]),
        ("sweep side by side", "thread", [*EXPECTED]),
        ("local", "process", FEW),
        *also_slow(
            ("local", "thread", [*EXPECTED]),
            ("serial", "process", [*EXPECTED]),
            ("sweep side by side", "process", [*EXPECTED]),
            ("sweep in turn", "process", [*EXPECTED]),
        ),
    ],
    ids=lambda part: f"{len(part)}" if isinstance(part, list) else part,
)
def test_a_mistake_is_refused_before_the_first_update(who, placement, cases, caplog, figure):
    for case in cases:
        said = refused(who, placement, case, caplog)
        assert f"step 2): expected {EXPECTED[case]}; " in said, case
    figure(f"{who}, {placement}: {len(cases)} of {len(cases)} mistakes refused with expected and got, 0 updates")
