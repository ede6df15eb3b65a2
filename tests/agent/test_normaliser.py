"""The statistics of observations move with the parameters: in a step that is taken, after the loss, and back with them."""

import pytest
import torch

from laser_rl.agent import learner as learner_module
from laser_rl.agent.learner import Learner
from laser_rl.agent.parameters import GIVE_UP_AFTER
from laser_rl.config import LossConfig
from laser_rl.envs.records import DiscreteActions, EnvironmentSpec, ObservationSpec
from laser_rl.errors import ConfigError
from laser_rl.training.vectorized import can_stack
from tests.agent import test_graphed
from tests.agent.test_graphed import ADAM, poisoned
from tests.agent.test_learner import ACTIONS, FAMILY, B, T, output_of, random_batch
from tests.networks.make import build_network


def network(shape=(4,)):
    torch.manual_seed(1)
    spec = EnvironmentSpec("x", ObservationSpec(shape), DiscreteActions(ACTIONS))
    return build_network(spec, hidden=(8,), normalise_observation=True)


def learner():
    return Learner(network(), FAMILY, LossConfig(), ADAM, seed=3)


def far(seed, online=2):
    batch = random_batch(seed, online)
    return batch._replace(observation=100.0 + 7.0 * batch.observation)


def state(one):
    normaliser = one.network.normaliser
    return [part.clone() for part in (*normaliser.moments, normaliser.shift.data, normaliser.scale.data)]


def test_online_rows_are_counted_once_and_all_columns_where_none_is_online():
    one = learner()
    for seed in range(3):
        one.update(far(seed), progress=0.0)
    rows = torch.cat([far(seed).observation[:-1, :2].flatten(0, 1) for seed in range(3)]).double()
    count, mean, spread, shift, scale = state(one)
    assert count == len(rows) == 3 * T * 2
    torch.testing.assert_close(mean, rows.mean(0))
    torch.testing.assert_close(spread / count, rows.var(0, correction=0))
    torch.testing.assert_close(shift, rows.mean(0).float())
    torch.testing.assert_close(scale, 1 / rows.std(0, correction=0).float())
    own = [place for place in one.flat.places if place.name.startswith("normaliser")]
    assert sum(place.last - place.first for place in own) == 2 * 4
    assert not any(one.flat.gradient[place.first : place.last].any() for place in own)
    one.update(far(3, online=0), progress=0.0)
    assert state(one)[0] == count + T * B


def test_the_loss_sees_what_the_actor_of_that_version_saw():
    """An unroll of the present version has relevance 0, however far its rows move the statistics."""
    one = learner()
    for seed in range(4):
        batch = far(seed, online=B)
        batch = batch._replace(behaviour=output_of(one.network, batch).policy[:-1].detach())
        before = one.network.normaliser.mean.clone()
        assert one._compute(batch).loss.relevance.abs().max() < 1e-6
        assert not torch.equal(one.network.normaliser.mean, before)
        one.version += 1


def test_a_skipped_update_moves_nothing_and_a_roll_back_takes_the_statistics_along():
    one = learner()
    good = [part.clone() for part in one.recovery.good.values()]
    one.update(far(0), progress=0.0)
    before = state(one)
    assert not one.update(poisoned(far(1)), progress=0.0)
    assert all(map(torch.equal, state(one), before))
    for seed in range(GIVE_UP_AFTER):
        one.update(poisoned(far(seed)), progress=0.0)
    assert one.report()["rollbacks"] == 1
    assert state(one)[0] == 0  # the last state that learned, by `GOOD_EVERY`, was the first
    assert all(map(torch.equal, one.recovery.good.values(), good))


def test_another_learner_adopts_the_statistics_and_a_state_restores_them():
    one, other, third = learner(), learner(), learner()
    one.update(far(0), progress=0.0)
    other.adopt(one.state_dict().tensors)
    third.load_state_dict(*one.state_dict())
    for copy in (other, third):
        assert all(map(torch.equal, state(copy), state(one)))
        one_policy, same = (output_of(x.network, far(1)).policy for x in (one, copy))
        assert torch.equal(one_policy, same)


def test_the_update_can_be_recorded(monkeypatch):
    monkeypatch.setattr(learner_module, "fits", lambda *_: False)  # what NumPy computes differs in the last bits
    watching, launching, recorder = test_graphed.learners(network)
    test_graphed.run((watching, launching), [far(seed) for seed in range(12)])
    test_graphed.assert_same(watching, launching)
    assert recorder.replays > 5


def test_members_with_statistics_of_their_own_learn_in_turn():
    assert not can_stack([learner(), learner()])


def test_pictures_are_refused():
    with pytest.raises(ConfigError, match=r"is for vectors, x has pictures; leave it out"):
        network((1, 8, 8))
