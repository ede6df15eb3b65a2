"""Does it learn? Seeds and thresholds were fixed before the last run of docs/results; a wrong sign anywhere fails these."""

import pytest

from laser_rl import LASER

SPARSE = {"loss.reward_scale": 1.0, "loss.entropy_cost": 0.01}


def after(environment, steps, **settings):
    agent = LASER(environment, seed=3, **settings).learn(steps)
    result = agent.evaluate(40)
    agent.close()
    return result.mean


def test_cartpole_is_learned_in_six_thousand_steps():
    assert after("CartPole-v1", 6_000) > 60  # 22 is chance


def test_deep_sea_is_solved():
    assert after("laser/DeepSea-6", 10_000, **{**SPARSE, "slots": 16}) == pytest.approx(0.99)


@pytest.mark.slow
def test_catch_is_solved():
    assert after("laser/Catch", 60_000, **SPARSE) > 0.95


@pytest.mark.slow
def test_deep_sea_of_ten_is_solved():
    assert after("laser/DeepSea-10", 60_000, **{**SPARSE, "slots": 16}) == pytest.approx(0.99)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_cartpole_is_solved(runtime):
    assert after("CartPole-v1", 60_000, runtime=runtime) > 450


@pytest.mark.slow
def test_pendulum_swings_up():
    assert after("Pendulum-v1", 100_000, recipe="pendulum") > -500  # -1200 is chance


@pytest.mark.slow
def test_pure_replay_and_no_replay_learn_too():
    assert after("CartPole-v1", 30_000, fraction=1.0) > 100
    assert after("CartPole-v1", 60_000, fraction=0.0, trust="off", batch_unrolls=1) > 100
