"""What an environment may return, and what it may not: one error, naming expected and got."""

import functools

import numpy as np
import pytest
from gymnasium import spaces

from laser_rl.envs.border import FULL_ROWS
from laser_rl.envs.slot import SerialEnvironments
from laser_rl.errors import EnvironmentFailed, EnvironmentRefused
from tests.envs.samples import GOOD, MALFORMED, NOT_FINITE, Scripted, malformed, not_finite


def returned(value):
    return lambda env: value


def change_action_space(env):
    env.action_space = spaces.Discrete(3)
    return GOOD, 0.0, False, False, {}


MESSAGES = {
    "float64": r"dtype float32, got float64; .*astype",
    "shape": r"shape \(2,\), got \(3,\)",
    "list": r"NumPy array, got list",
    "none": r"NumPy array, got None",
    "reward none": r"real number, got None; return float",
    "reward array": r"real number, got an array of dtype float64",
    "reward text": r"real number, got str",
    "reward complex": r"real number, got complex",
    "old gym": r"5 values from step, got a tuple of 4; .* the old Gym",
    "not a tuple": r"5 values from step, got None",
    "terminated": r"terminated to be a bool, got int",
    "truncated": r"truncated to be a bool, got None",
    "info": r"info to be a dict, got object",
}


def one_slot(env, **settings):
    envs = SerialEnvironments(env, slots=1, seed=1, name="Odd-v0", **settings)
    return envs, lambda: envs.step(np.array([0]), np.array([0]))


@pytest.mark.fault(5)
@pytest.mark.parametrize("case", [*MALFORMED, "action space"])
def test_a_malformed_step_is_refused_by_name_and_place(case):
    wrong = change_action_space if case == "action space" else functools.partial(malformed, case=case)
    message = MESSAGES.get(case, r"action_space to stay Discrete\(2\), got Discrete\(3\)")
    envs, step = one_slot(functools.partial(Scripted, step=wrong))
    envs.reset()
    for _ in range(3):
        step()
    with pytest.raises(EnvironmentRefused, match=r"Odd-v0 \(slot 0, episode 0, step 4\): expected .*" + message):
        step()


@pytest.mark.fault(5)
@pytest.mark.parametrize("case", ["float64", "shape", "list", "none", "reward none", "old gym", "terminated", "info"])
def test_the_cheap_check_of_later_rows_sees_it_too(case):
    wrong, message = functools.partial(malformed, case=case), MESSAGES[case]
    envs, step = one_slot(functools.partial(Scripted, step=wrong, good_steps=FULL_ROWS + 5))
    envs.reset()
    for _ in range(FULL_ROWS + 5):
        step()
    with pytest.raises(EnvironmentRefused, match=message):
        step()


@pytest.mark.fault(5)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (GOOD, r"\(observation, info\) from reset"),
        ((GOOD, None), "info to be a dict"),
        ((GOOD.astype(np.float16), {}), "dtype float32, got float16"),
    ],
)
def test_a_malformed_reset_is_refused(wrong, message):
    envs, _ = one_slot(functools.partial(Scripted, reset=returned(wrong)))
    with pytest.raises(EnvironmentRefused, match=message):
        envs.reset()


@pytest.mark.parametrize("reward", [1, 1.5, np.float32(2), np.float64(3), np.int64(4), True, np.uint8(5)])
@pytest.mark.parametrize("flag", [True, np.True_])
def test_every_kind_of_number_and_bool_is_welcome(reward, flag):
    envs, step = one_slot(
        functools.partial(Scripted, step=returned((GOOD, reward, flag, False, {"o": object()})), good_steps=0)
    )
    envs.reset()
    rows = step()
    assert rows.reward[0] == np.float32(reward)
    assert rows.terminated[0]


BAD_MESSAGES = {
    "observation": "nan in observation",
    "infinite": "-inf in observation",
    "reward": "nan in reward",
    "infinite reward": "inf in reward",
    "negative infinite reward": "-inf in reward",
    "too large for float32": r"1e\+39 in reward",
}


@pytest.mark.fault(4)
@pytest.mark.parametrize("good_steps", [3, FULL_ROWS + 5])
@pytest.mark.parametrize("case", NOT_FINITE)
def test_what_is_not_finite_fails_and_says_where(case, good_steps):
    wrong, message = functools.partial(not_finite, case=case), BAD_MESSAGES[case]
    envs, step = one_slot(functools.partial(Scripted, step=wrong, good_steps=good_steps))
    envs.reset()
    for _ in range(good_steps):
        step()
    with pytest.raises(EnvironmentRefused, match=rf"Odd-v0 \(slot 0, episode 0, step {good_steps + 1}\).*{message}"):
        step()


@pytest.mark.fault(4)
@pytest.mark.parametrize("case", NOT_FINITE)
def test_or_its_episode_is_dropped_and_counted(case):
    envs, step = one_slot(
        functools.partial(Scripted, step=functools.partial(not_finite, case=case)), on_bad_value="drop"
    )
    rows = [envs.reset(), *(step() for _ in range(11))]
    assert [bool(row.is_first[0]) for row in rows] == [True, False, False, False] * 3
    assert [bool(row.restarted[0]) for row in rows] == [False] * 4 + [True, False, False, False] * 2
    assert [int(row.episode[0]) for row in rows] == [0] * 4 + [1] * 4 + [2] * 4
    assert all(np.isfinite(row.observation).all() and np.isfinite(row.reward).all() for row in rows)
    assert envs.counters()["dropped_episodes"] == 2


def test_a_reset_that_is_never_finite_does_not_loop_for_ever():
    nan = returned((np.full(2, np.nan, np.float32), {}))
    envs, _ = one_slot(functools.partial(Scripted, reset=nan), on_bad_value="drop")
    with pytest.raises(EnvironmentFailed, match="5 times in a row"):
        envs.reset()


@pytest.mark.fault(4)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_in_a_dimension_without_bounds_fails_beside_one_with_bounds(bad):
    half = spaces.Box(np.array([-1, -np.inf], np.float32), np.array([1, np.inf], np.float32))
    wrong = returned((np.array([0.5, bad], np.float32), 0.0, False, False, {}))
    envs, step = one_slot(functools.partial(Scripted, half, step=wrong, good_steps=FULL_ROWS + 5))
    envs.reset()
    for _ in range(FULL_ROWS + 5):
        step()
    with pytest.raises(EnvironmentRefused, match=f"{bad} in observation"):
        step()


def test_large_but_finite_observations_pass():
    wide = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    large = np.full(2, 1e30, np.float32)  # its square is not finite
    envs, step = one_slot(
        functools.partial(Scripted, wide, step=returned((large, 0.0, False, False, {})), good_steps=FULL_ROWS + 1)
    )
    envs.reset()
    for _ in range(FULL_ROWS + 3):
        rows = step()
    np.testing.assert_array_equal(rows.observation[0], large)


@pytest.mark.fault(4)
def test_float64_that_does_not_fit_float32_is_not_stored():
    wide = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    envs, step = one_slot(
        functools.partial(Scripted, wide, step=returned((np.array([0, 1e300]), 0.0, False, False, {})))
    )
    envs.reset()
    for _ in range(3):
        step()
    with pytest.raises(EnvironmentRefused, match="inf in observation"):
        step()


NESTED = spaces.Dict({"place": spaces.Box(-1, 1, (2,), np.float32), "kinds": spaces.Tuple([spaces.Discrete(3)])})


@pytest.mark.fault(5)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"place": GOOD}, r"observation\['kinds'\]\[0\] in the observation, got a dict with the keys \['place'\]"),
        ({"place": GOOD.astype(np.float64), "kinds": (0,)}, r"observation\['place'\] of dtype float32"),
        ({"place": GOOD * np.nan, "kinds": (0,)}, r"nan in observation\['place'\]"),
        ({"place": GOOD, "kinds": (3,)}, r"observation\['kinds'\]\[0\] in Discrete\(3\)"),
        ({"place": GOOD, "kinds": ()}, r"observation\['kinds'\]\[0\] in the observation, got a dict"),
    ],
)
@pytest.mark.parametrize("good_steps", [2, FULL_ROWS + 2])
def test_nested_observations_are_named_by_their_key(value, message, good_steps):
    if good_steps > FULL_ROWS and ("Discrete" in message or "nan" in message or "dtype" in message):
        pytest.skip("the cheap check looks at the whole")
    envs, step = one_slot(
        functools.partial(Scripted, NESTED, step=returned((value, 0.0, False, False, {})), good_steps=good_steps)
    )
    envs.reset()
    for _ in range(good_steps):
        step()
    with pytest.raises(EnvironmentRefused, match=message):
        step()


def test_something_that_is_no_environment_is_refused():
    with pytest.raises(EnvironmentRefused, match=r"expected a gymnasium.Env from its constructor, got int"):
        SerialEnvironments(lambda: 3, slots=1, seed=1)
