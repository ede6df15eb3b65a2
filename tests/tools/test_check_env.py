"""Each planted defect is found, by its own name and with its fix; good environments have none."""

import gc
import re

import gymnasium
import numpy as np
import pytest

from laser_rl.envs.construct import constructor
from laser_rl.envs.make import make_environments
from laser_rl.envs.tasks import Catch, DeepSea, TaskEnv, TMaze
from laser_rl.tools import check_env
from laser_rl.tools.bench import VectorBench
from laser_rl.tools.check_env import EnvBench
from laser_rl.tools.findings import ALWAYS, CHECKS, Examination, merged
from laser_rl.tools.recordings import leaks, no_end, resets_itself
from tests.envs import planted

IN_PROCESS = [name for name in EnvBench.STAGES if name != "workers"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """An examination collects garbage before it measures; what the tests themselves hold (torch!) need not be walked each time."""
    monkeypatch.setattr(check_env, "ENDLESS_STEPS", 3_000)
    gc.freeze()
    yield
    gc.unfreeze()


def findings(make, steps=240, seconds=2.0, only=IN_PROCESS):
    found = Examination("Planted")
    EnvBench("Planted", steps, seconds, send=found.take, make=make).run(only)
    return [one for one in merged(found.findings) if one.verdict != "not done"]


# Environment; then what has to be found and nothing else: check, verdict, words of the finding, words of the fix.
PLANTED = [
    (planted.Doubles, [("observation", "defect", "float64", ".astype(np.float32)")]),
    (planted.Longer, [("observation", "defect", "(4,)", "observation_space")]),
    (planted.Lists, [("observation", "defect", "list", "np.asarray(")]),
    (planted.Outside, [("observation", "warning", "21.0", "clip")]),
    (planted.NotANumber, [("finite", "defect", "nan", "division by zero")]),
    (planted.NanReward, [("reward", "defect", "nan", "division by zero")]),
    (planted.ArrayReward, [("reward", "defect", "array of dtype float64 and shape (1,)", "float(reward)")]),
    (planted.WholeFlags, [("flags", "defect", "int", "bool(terminated)")]),
    (planted.OldReset, [("interface", "defect", "an array of dtype float32", "return a tuple of two")]),
    (planted.OldStep, [("interface", "defect", "a tuple of 4", "shimmy")]),
    (planted.Reuses, [("own arrays", "defect", "the next step wrote", ".copy()")]),
    (planted.Unseeded, [("repeatable", "defect", ", then ", "self.np_random")]),
    (planted.OwnStream, [("seed", "defect", "observation", "super().reset(seed=seed)")]),
    (
        planted.GlobalGenerator,
        [
            ("repeatable", "defect", "", "self.np_random"),
            ("generators", "defect", "numpy.random used", "self.np_random"),
        ],
    ),
    (planted.SeedsGlobally, [("generators", "warning", "numpy.random used", "self.np_random")]),
    (planted.IgnoresSeed, [("gymnasium", "warning", "random number generator", "super().reset(seed=seed)")]),
    (
        planted.ResetsItself,
        [("after the end", "defect", "last observations look like first ones", "do not call reset")],
    ),
    (planted.FinalInInfo, [("after the end", "defect", "final_observation", "do not call reset inside of step")]),
    (planted.Endless, [("length", "defect", "no end in 3,000 steps", "TimeLimit")]),
    (planted.Raises, [("errors", "defect", "IndexError: list index out of range", "every action of Discrete(3)")]),
    (planted.ChangesActions, [("action space", "defect", "Discrete(2)", "keep one space")]),
    (planted.WholeBox, [("spaces", "defect", "int64", "MultiDiscrete")]),
    (planted.HalfBounded, [("spaces", "defect", "high=inf", "RescaleAction")]),
    (planted.Unbounded, [("spaces", "warning", "no bounds", "Box(-1, 1")]),
    (planted.LeaksFiles, [("handles", "defect", "files left by", "close()")]),
    (planted.LeaksThreads, [("handles", "defect", "threads left by", "join")]),
    (planted.ClosesBadly, [("errors", "defect", "the window is gone", "close has to work")]),
    (planted.TerminatesByTime, [("time limit", "defect", "at step 10 exactly", "truncated=True")]),
    (planted.OnlyOnce, [("construction", "defect", "port 5555", "several copies at once")]),
    (planted.NotBuilt, [("errors", "defect", "KeyError: 'nowhere'", "correct the line")]),
    (planted.NearlySame, [("repeatable", "warning", "", "exact resumes")]),
    (
        planted.CarriesOver,
        [
            ("seed", "warning", "then", "set everything back in reset"),
            ("gymnasium", "warning", "same seed and action", "other libraries"),
        ],
    ),
    (planted.Walk, []),
    (planted.NoChance, []),
    (planted.BeginsAtFive, []),
    (planted.FixedHorizon, []),
]


@pytest.mark.parametrize(("environment", "expected"), PLANTED, ids=lambda value: getattr(value, "__name__", ""))
def test_exactly_the_planted_defect_is_found_and_its_fix_named(environment, expected):
    found = findings(environment)
    short = [(one.check, one.verdict, one.got, one.fix) for one in found]
    assert [one[:2] for one in short] == [one[:2] for one in expected], short
    for (_, _, got, fix), (_, _, words, advice) in zip(short, expected, strict=True):
        assert words in got
        assert advice in fix


def test_a_finding_names_slot_episode_and_step():
    (found,) = findings(planted.NotANumber)
    assert found.where == "slot 0, episode 0, step 4"
    assert found.times > 1  # once an episode


def test_an_exception_comes_with_the_users_own_lines_only():
    (found,) = findings(planted.Raises)
    assert "return self.table()[int(action) + 7]" in found.trace
    assert "laser_rl" not in found.trace
    assert "site-packages" not in found.trace
    assert found.expected.startswith("no exception in step(")


def test_memory_that_grows_is_found():
    (found,) = findings(planted.LeaksMemory, steps=900, only=["measure"])
    assert (found.check, found.verdict) == ("memory", "defect")
    gigabytes = float(re.search(r"([\d.]+) GB in a million steps", found.got)[1])
    assert 100 < gigabytes < 300  # 200 kB a step, as the allocator gives and keeps pages


def test_a_slow_reset_is_told_from_a_slow_step():
    (found,) = findings(planted.SlowReset, steps=30, seconds=0.5, only=["measure"])
    assert found.verdict == "warning"
    assert "of the time is spent in reset" in found.got


GOOD = ["CartPole-v1", "Pendulum-v1", "Acrobot-v1"]
MORE = [
    "MountainCar-v0",
    "FrozenLake-v1",
    "Blackjack-v1",
    "MinAtar/Breakout-v1",
    "MinAtar/Asterix-v1",
    "MiniGrid-DoorKey-5x5-v0",
]


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.filterwarnings("ignore:.*You are calling 'step..' even though")
def test_good_environments_have_neither_defect_nor_warning(name):
    assert findings(constructor(name, {})) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [*GOOD, *MORE])
@pytest.mark.filterwarnings("ignore:.*You are calling 'step..' even though")
def test_good_environments_have_no_defect_in_longer_play(name):
    assert [
        one for one in findings(constructor(name, {}), steps=5_000, only=EnvBench.STAGES) if one.verdict == "defect"
    ] == []


@pytest.mark.parametrize("task", [Catch(), DeepSea(10), TMaze(5)], ids=lambda task: type(task).__name__)
def test_our_own_tasks_have_no_finding_as_environments_of_gymnasium(task):
    assert findings(lambda: TaskEnv(task)) == []


def test_every_check_belongs_to_a_stage_or_to_all():
    made = {check for checks in EnvBench.STAGES.values() for check in checks}
    assert made | ALWAYS == set(CHECKS)


def many(make, steps=200):
    """What is found in environments that step many slots at once, and their facts."""
    found = Examination("Planted")
    VectorBench("Planted", steps, send=found.take, make=make).run()
    return found.findings, found.facts


@pytest.mark.parametrize("name", ["laser/Catch", "laser/DeepSea-10", "laser/TMaze-5,laser/TMaze-9"])
def test_many_slots_at_once_are_examined_by_their_rows(name):
    found, facts = many(lambda seed: make_environments(name, slots=2, seed=seed))
    assert found == []
    assert facts["lengths"]


def test_rows_that_differ_are_found():
    made = []

    def make(seed):
        made.append(seed)
        return make_environments("laser/Catch", slots=2, seed=seed + len(made))

    (found,), _ = many(make, steps=100)
    assert (found.check, found.verdict) == ("repeatable", "defect")


def test_an_environment_that_says_it_is_not_deterministic_is_only_warned():
    def make():
        env = planted.Unseeded()
        env.spec = gymnasium.envs.registration.EnvSpec(
            "Planted-v0", entry_point=planted.Unseeded, nondeterministic=True
        )
        return env

    (found,) = findings(make, only=["play", "repeat"])
    assert (found.check, found.verdict) == ("repeatable", "warning")


@pytest.mark.parametrize(
    ("first", "middle", "last", "verdicts"),
    [
        ([0.0, 1.0], 5.0, 0.5, ["defect"]),
        ([1.0, 1.0], 5.0, 1.0, ["warning"]),  # back at the start?
        ([0.0, 1.0], 5.0, 4.0, []),
        ([0.0, 1.0], 0.5, 0.5, []),  # a bandit: everything looks like that
    ],
)
def test_last_observations_that_look_like_first_ones_say_something_only_where_the_others_do_not(
    first, middle, last, verdicts
):
    ends = [np.array([last])] * 4
    found = resets_itself([np.array([value]) for value in first], [np.array([middle])] * 30, ends, ends)
    assert [one.verdict for one in found] == verdicts


def test_episodes_that_do_not_end_are_a_defect_only_after_many_steps():
    assert [no_end(900, enough=enough).verdict for enough in (True, False)] == ["defect", "warning"]


def test_what_is_opened_once_and_kept_is_no_leak():
    def counted(files):
        return leaks([{"files": number, "threads": 1, "processes": 0} for number in files])

    assert [one.check for one in counted([9, 10, 11, 12])] == ["handles"]
    assert counted([9, 9, 10, 10]) == []
    assert counted([9, 12]) == []


def test_after_an_exception_a_fresh_copy_plays_and_the_third_is_enough():
    made = []

    def make():
        made.append(planted.Raises())
        return made[-1]

    (found,) = findings(make, steps=500, only=["play"])
    assert found.times == 3
    assert len(made) == 4


def test_gymnasium_itself_would_not_have_found_most_of_them():
    """Why this exists: the checker that comes with Gymnasium passes these."""
    from gymnasium.utils.env_checker import check_env  # noqa: PLC0415

    for environment in (planted.ResetsItself, planted.TerminatesByTime, planted.LeaksFiles):
        env = environment()
        env.spec = gymnasium.envs.registration.EnvSpec("Planted-v0", entry_point=environment)
        check_env(env, skip_render_check=True)


def test_running_statistics_of_a_wrapper_are_a_warning_that_names_it():
    """They depend on the episodes before: that is what the wrapper is for."""
    made = lambda: gymnasium.wrappers.NormalizeObservation(gymnasium.make("CartPole-v1", disable_env_checker=True))  # noqa: E731
    found = findings(made, only=["play", "repeat"])
    assert [one.verdict for one in found] == ["warning"]
    assert "NormalizeObservation carries statistics from episode to episode" in found[0].fix
