"""Each planted defect is found, by its own name and with its fix; good environments have none."""

import re

import gymnasium
import pytest

from laser_rl.tools import check_env
from laser_rl.tools.check_env import Bench, Order
from laser_rl.tools.check_process import Examination
from tests.envs import planted


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(check_env, "ENDLESS_STEPS", 3_000)


def examined(name, steps=240, seconds=2.0, **order):
    found = Examination(name)
    Bench(Order(name, steps=steps, seconds=seconds, **order), found.take).run()
    return found


def findings(name, **order):
    found = examined(f"tests.envs.planted:{name}", **order)
    return [one for one in found.findings if one.verdict != "good"]


# Environment; then what has to be found and nothing else: check, verdict, words of the finding and of its fix.
PLANTED = {
    "Doubles": [("rows", "defect", "float64", ".astype(np.float32)")],
    "Longer": [("rows", "defect", "(4,)", "observation_space")],
    "Lists": [("rows", "defect", "list", "np.asarray(")],
    "Outside": [("rows", "warning", "21.0", "clip")],
    "NotANumber": [("rows", "defect", "nan", "correct the environment")],
    "NanReward": [("rows", "defect", "nan", "correct the environment")],
    "ArrayReward": [("rows", "defect", "array of dtype float64 and shape (1,)", "float(reward)")],
    "WholeFlags": [("rows", "defect", "int", "bool(terminated)")],
    "OldReset": [("rows", "defect", "an array of dtype float32", "return a tuple of two")],
    "OldStep": [("rows", "defect", "a tuple of 4", "shimmy")],
    "Unseeded": [("repeatable", "defect", "observation differs", "self.np_random")],
    "unseeded_and_says_so": [
        ("repeatable", "warning", "observation differs", "self.np_random"),
        ("seed", "warning", "", ""),
    ],
    "OwnStream": [("seed", "warning", "resumed exactly", "super().reset(seed=seed)"), ("gymnasium", "warning", "", "")],
    "GlobalGenerator": [("repeatable", "defect", "", "self.np_random")],
    "SeedsGlobally": [("repeatable", "defect", "", "self.np_random")],
    "IgnoresSeed": [("gymnasium", "warning", "random number generator", "super().reset(seed=seed)")],
    "ResetsItself": [("after the end", "defect", "step calls reset", "do not call reset")],
    "FinalInInfo": [("after the end", "defect", "step calls reset", "do not call reset inside of step")],
    "Endless": [("length", "defect", "no end in 3,000 steps", "TimeLimit")],
    "Raises": [("errors", "defect", "IndexError: list index out of range", "every action has to be playable")],
    "ChangesActions": [("rows", "defect", "Discrete(2)", "keep one space")],
    "WholeBox": [("construction", "defect", "int64", "MultiDiscrete")],
    "HalfBounded": [("construction", "defect", "high=inf", "RescaleAction")],
    "OnlyOnce": [("construction", "defect", "port 5555", "several copies at once")],
    "NotBuilt": [("errors", "defect", "KeyError: 'nowhere'", "correct the line")],
    "NearlySame": [("repeatable", "warning", "", "exact resumes"), ("seed", "warning", "", "")],
    "CarriesOver": [("seed", "warning", "", "set everything back in reset"), ("gymnasium", "warning", "", "")],
    "running_statistics": [("seed", "warning", "", "running statistics"), ("gymnasium", "warning", "", "")],
    "Walk": [],
    "NoChance": [],
    "BeginsAtFive": [],
    "our_task": [],
    "auto_reset": [],  # on the next step, which training never takes
}


@pytest.mark.parametrize("name", PLANTED)
def test_exactly_the_planted_defect_is_found_and_its_fix_named(name):
    found = findings(name)
    assert [(one.check, one.verdict) for one in found] == [one[:2] for one in PLANTED[name]], found
    for one, (_, _, words, advice) in zip(found, PLANTED[name], strict=True):
        assert words in one.text
        assert advice in one.text


def test_a_finding_names_slot_episode_and_step():
    (found,) = findings("NotANumber")
    assert "(slot 0, episode 0, step 4)" in found.text


def test_an_exception_comes_with_its_place_and_the_users_own_lines_only():
    (found,) = findings("Raises")
    assert "return self.table()[int(action) + 7]" in found.trace
    assert "laser_rl" not in found.trace
    assert "site-packages" not in found.trace
    assert "IndexError: list index out of range in step (slot 0, episode 0, step 6)" in found.text


def test_a_slow_reset_is_told_from_a_slow_step(monkeypatch):
    monkeypatch.setattr(check_env, "STAGES", {name: check_env.STAGES[name] for name in ("build", "play")})
    (found,) = findings("SlowReset", steps=30)
    assert found.verdict == "warning"
    step_ms, reset_ms = map(float, re.search(r"step takes (\S+) ms, reset (\S+) ms", found.text).groups())
    assert reset_ms > 10 * step_ms


GOOD = ["CartPole-v1", "Pendulum-v1", "laser/Catch", "laser/TMaze-5,laser/TMaze-9"]
MORE = ["MountainCar-v0", "FrozenLake-v1", "Blackjack-v1", "MinAtar/Breakout-v1", "MinAtar/Asterix-v1"]


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.filterwarnings("ignore:.*You are calling 'step..' even though")
def test_good_environments_have_neither_defect_nor_warning(name):
    found = examined(name)
    assert {one.verdict for one in found.findings} == {"good"}
    assert "random steps" in found.facts["episodes"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*GOOD, *MORE, "MiniGrid-DoorKey-5x5-v0"])
@pytest.mark.filterwarnings("ignore:.*You are calling 'step..' even though")
def test_good_environments_have_no_defect_in_longer_play(name):
    assert examined(name, steps=5_000).of("defect") == []


def test_gymnasium_itself_would_not_have_found_most_of_them():
    """Why this exists: the checker that comes with Gymnasium passes these."""
    from gymnasium.utils.env_checker import check_env  # noqa: PLC0415

    for environment in (planted.ResetsItself, planted.NanReward):
        env = environment()
        env.spec = gymnasium.envs.registration.EnvSpec("Planted-v0", entry_point=environment)
        check_env(env, skip_render_check=True)
