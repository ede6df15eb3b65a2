"""Members get the settings that were asked for, the same ones again from the same seed, and nothing that one replay cannot hold."""

import math
import subprocess
import sys

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from laser_rl import Sweep
from laser_rl.config import Config, override
from laser_rl.errors import ConfigError
from laser_rl.training import settings as space
from laser_rl.training.settings import (
    Choice,
    LogUniform,
    SweepConfig,
    UniformDistribution,
    grid,
    member_configs,
    sweep_from,
)


def sweep(**given):
    return Sweep("CartPole-v1", **given).config


SPACE = {
    "learning_rate": LogUniform(low=1e-4, high=1e-2),
    "entropy_cost": LogUniform(low=5e-3, high=2e-2),
    "discount": UniformDistribution(low=0.9, high=1.0),
    "trust": Choice(values=["implied", "behaviour", "off"]),
}


def test_the_papers_atari_sweep_has_nine_members_first_name_slowest():
    members = sweep(grid={"learning_rate": [3e-4, 6e-4, 1.2e-3], "entropy_cost": [5e-3, 1e-2, 2e-2]}).settings
    assert [m["learning_rate"] for m in members] == [3e-4] * 3 + [6e-4] * 3 + [1.2e-3] * 3
    assert [m["entropy_cost"] for m in members] == [5e-3, 1e-2, 2e-2] * 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "expected one of grid, random and members"),
        ({"learning_rate": [1e-3], "discount": []}, "the list of discount is empty"),
        ({"trust": "off"}, "grid.trust is 'off': input should be a valid tuple"),
        ({"learning_rate": 1e-3}, "grid.learning_rate is 0.001: input should be a valid tuple"),
        ({1: [1e-3]}, "input should be a valid string"),
    ],
)
def test_a_grid_without_members_is_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        sweep(grid=values)


@given(seed=st.integers(0, 2**40), few=st.integers(1, 6), more=st.integers(0, 6))
def test_a_members_draw_depends_on_seed_and_number_alone(seed, few, more):
    some = space.random(SPACE, members=few, seed=seed)
    assert some == space.random(SPACE, members=few + more, seed=seed)[:few]
    alone = space.random({"discount": SPACE["discount"]}, members=few, seed=seed)
    assert [m["discount"] for m in alone] == [m["discount"] for m in some]
    assert some[0] != space.random(SPACE, members=1, seed=seed + 1)[0]


def test_draws_follow_their_distributions_and_are_independent():
    drawn = space.random(SPACE, members=4000, seed=0)
    rate, cost, discount = (
        np.array([m[name] for m in drawn]) for name in ("learning_rate", "entropy_cost", "discount")
    )
    assert stats.kstest(np.log(rate), stats.uniform(math.log(1e-4), math.log(100)).cdf).pvalue > 1e-3
    assert stats.kstest(np.log(cost), stats.uniform(math.log(5e-3), math.log(4)).cdf).pvalue > 1e-3
    assert stats.kstest(discount, stats.uniform(0.9, 0.1).cdf).pvalue > 1e-3
    counts = [sum(m["trust"] == value for m in drawn) for value in SPACE["trust"].values]
    assert sum(counts) == 4000
    assert stats.chisquare(counts).pvalue > 1e-3
    for a, b in ((rate, cost), (rate, discount), (rate[1:], rate[:-1])):
        assert abs(stats.spearmanr(a, b).statistic) < 4 / math.sqrt(len(a))


@given(low=st.floats(1e-300, 1e300), ratio=st.floats(1.0000001, 1e6), share=st.floats(0, 1))
def test_draws_stay_within_their_bounds(low, ratio, share):
    for kind in (UniformDistribution, LogUniform):
        assert low <= kind(low=low, high=low * ratio).at(share) <= low * ratio
    assert (
        UniformDistribution(low=-347.4100503616249, high=-1.9257766697057565e-4).at(1.0) == -1.9257766697057565e-4
    )  # rounds up without care


def test_distributions_can_stand_in_a_file():
    text = """
    learning_rate: {kind: log_uniform, low: 1.0e-4, high: 1.0e-2}
    entropy_cost: {kind: log_uniform, low: 5.0e-3, high: 2.0e-2}
    discount: {kind: uniform, low: 0.9, high: 1.0}
    trust: {kind: choice, values: [implied, behaviour, "off"]}
    """
    found = sweep_from({"random": yaml.safe_load(text), "draws": 5, "base": {"run": {"seed": 2}}})
    assert list(found.settings) == space.random(SPACE, members=5, seed=2)
    assert type(SPACE["discount"]).model_validate(SPACE["discount"].model_dump()) == SPACE["discount"]


@pytest.mark.parametrize(
    "given",
    [
        {"kind": "log_uniform", "low": 0, "high": 1},
        {"kind": "log_uniform", "low": 1},
        {"kind": "uniform", "low": 1, "high": 1},
        {"kind": "uniform", "low": 2, "high": 1},
        {"kind": "uniform", "low": 0, "high": math.inf},
        {"kind": "uniform", "low": 0, "high": 1, "hihg": 2},
        {"kind": "choice", "values": []},
        {"kind": "choice", "values": "off"},
        {"kind": "normal", "low": 0, "high": 1},
        {"low": 0, "high": 1},
        {1: 2, "kind": "uniform"},
        0.5,
    ],
)
def test_bad_distributions_are_refused_by_name(given):
    with pytest.raises(ConfigError, match="random"):
        sweep(random={"learning_rate": given}, draws=2)


def test_distributions_and_their_number_belong_together():
    for arguments in ({"random": {}, "draws": 2}, {"random": SPACE, "draws": 0}):
        with pytest.raises(ConfigError, match="random and draws belong together"):
            sweep_from(arguments)


def test_members_share_no_value_that_can_be_changed():
    options = {"size": 5}
    for members in (
        SweepConfig(members=({"options": options}, {"options": options})).settings,
        grid({"options": [options], "discount": [0.9, 0.99]}),
        space.random({"options": Choice(values=[options])}, members=2),
    ):
        members[0]["options"]["size"] = 6
        assert members[1]["options"] == options == {"size": 5}


@pytest.mark.parametrize("settings", [[], {}, "abc", [1], [{}, {1: 2}], None])
def test_a_list_that_is_none_is_refused(settings):
    with pytest.raises(ConfigError):
        sweep(members=settings)


def seeds_of(seed, members):
    base = override(Config(), {"run.seed": seed})
    return [member.run.seed for member in member_configs(base, [{}] * members)]


def test_members_differ_in_their_settings_and_seeds_only():
    base = override(Config(), {"run.seed": 7, "run.steps": 1234})
    settings = [{"learning_rate": 1e-4, "hidden": (8,)}, {"loss.discount": 0.5, "options": {"size": 3}}, {}]
    members = member_configs(base, settings)
    for k, (member, own) in enumerate(zip(members, settings, strict=True)):
        assert member == override(base, {**own, "run.seed": seeds_of(7, k + 1)[k]})


def test_seeds_of_members_are_written_down():
    """A resumed or repeated sweep of another version has the same members."""
    assert seeds_of(0, 2) == [69705171924740, 103192617711093]
    assert max(seeds_of(0, 200)) > 2**46


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("environment.id", "laser/Catch"),
        ("slots", 4),
        ("environment.slots", 8),  # also where it is the base's own value
        ("frame_stack", 4),
        ("full_action_space", True),
        ("unroll_steps", 5),
        ("replay.fraction", 0.5),
        ("capacity_steps", 50),
        ("run.seed", 3),
        ("steps", 10),
        ("device", "cpu"),
        ("recipe", "atari"),
    ],
)
def test_what_one_replay_or_one_speed_forbids_is_refused(name, value):
    with pytest.raises(
        ConfigError, match=rf"member 1: [a-z._]*{name.split('.')[-1]} cannot differ between members: .*base"
    ):
        sweep(members=[{}, {name: value}])


@pytest.mark.parametrize(
    "settings",
    [
        {"trust": "off"},
        {"batch_unrolls": 4},
        {"kind": "rmsprop"},
        {"width": 2},
        {"options": {"a": 1}},
        {"sticky_actions": 0.1},
    ],
)
def test_what_members_may_differ_in(settings):
    one, other = (config.model_dump(exclude={"run"}) for config in sweep(members=[settings, {}]).configs)
    assert one != other


def test_a_wrong_name_is_reported_as_everywhere():
    for name in ("learning_rat", "threads"):
        with pytest.raises(ConfigError) as expected:
            override(Config(), {name: 1})
        with pytest.raises(ConfigError) as found:
            sweep(members=[{name: 1}])
        assert str(found.value) == str(expected.value)


def test_one_setting_under_two_names_is_refused():
    for names in (("discount", "loss.discount"), ("loss.discount", "discount")):
        with pytest.raises(ConfigError, match=f"member 0: {names[0]} and {names[1]} are the same setting"):
            sweep(members=[dict.fromkeys(names, 0.9)])


def test_sweeps_are_planned_without_torch():
    code = "import laser_rl.training.settings, laser_rl.training.pbt, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
