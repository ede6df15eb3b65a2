"""Several ranks learn exactly what one device learns, and are the same as each other bit for bit."""

import math

import pytest
import torch

from laser_rl.agent.loss import require_splittable
from laser_rl.agent.parallel import ALONE, Drifted, Team, own_columns, part_of, require_together
from laser_rl.agent.parameters import GIVE_UP_AFTER
from laser_rl.config import LossConfig
from laser_rl.errors import ConfigError
from laser_rl.ops.gaussian import DiagonalGaussian
from tests.agent.teams import (
    COLUMNS,
    FAMILY,
    ThreadTeam,
    flat_state,
    largest_difference,
    learner,
    network,
    together,
    uneven_batch,
)

REPORTED = {"sums", "tally"}  # float32, and compared as a report
UPDATES = 9  # two of them are counted by source and age

CASES = {
    "mean": ({"reduction": "mean", "entropy_cost": 0.3}, {}, {}),
    "sum": ({"reduction": "sum"}, {"clip_gradient_norm": 0.5}, {}),
    "adam": ({"reduction": "mean"}, {"kind": "adam", "clip_gradient_norm": 0.1}, {}),
    "target acceptance": ({"target_acceptance": 0.5}, {}, {}),
    "PopArt": ({"popart": True, "popart_step": 0.05}, {}, {"tasks": 3}),
    "normalised observations": ({}, {}, {"normalised": True}),
    "PixelControl": ({"pixel_control_cost": 0.5}, {}, {"picture": True}),
    "LSTM": ({}, {"momentum": 0.5}, {"memory": "lstm"}),
    "GRU": ({}, {}, {"memory": "gru"}),
    "PreCo with PopArt": ({"popart": True}, {}, {"memory": "preco", "tasks": 2}),
}


def batches_for(kind, updates=UPDATES, bad=None):
    shape = {name: kind[name] for name in ("picture", "tasks") if name in kind}
    net = network(**kind)
    return [uneven_batch(net, update, **shape, bad=(bad or {}).get(update)) for update in range(updates)]


@pytest.mark.parametrize(("case", "ranks"), [*((case, 2) for case in CASES), ("mean", 4), ("PreCo with PopArt", 8)])
def test_ranks_learn_what_one_device_learns(case, ranks):
    loss, rates, kind = CASES[case]
    batches = batches_for(kind)
    alone = learner(network(**kind), loss, rates)
    for batch in batches:
        assert alone.update(batch, progress=0.0)
    team = together(lambda team: learner(network(**kind), loss, rates, team=team), batches, ranks)
    state = flat_state(alone, without=REPORTED)
    assert largest_difference(state, flat_state(team[0], without=REPORTED)) < 1e-12
    assert max(abs(value).max() for value in state.values() if value.size) > 0
    for other in team[1:]:
        assert flat_state(other).keys() == flat_state(team[0]).keys()
        assert all((flat_state(other)[name] == value).all() for name, value in flat_state(team[0]).items())
    expected, reported = alone.report(), team[0].report()
    assert expected.keys() == reported.keys() >= {"acceptance", "lag_updates", "acceptance_from_1", "gradient_norm"}
    assert reported == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_the_gradient_is_that_of_the_whole_batch_and_not_the_mean_of_the_parts():
    """The parts have different counts of learnable steps: the mean of their means is another vector, and by far."""
    loss, ranks = {"reduction": "mean"}, 2
    batch = batches_for({}, updates=1)[0]
    alone = learner(network(), loss)
    alone.update(batch, progress=0.0)
    team = together(lambda team: learner(network(), loss, team=team), [batch], ranks)
    parts = []
    for rank in range(ranks):
        part = learner(network(), loss)
        part.update(part_of(batch, own_columns(COLUMNS, ThreadTeam(rank, ranks, None, None))), progress=0.0)
        parts.append(part.flat.gradient)
    whole = alone.flat.gradient
    torch.testing.assert_close(team[1].flat.gradient, whole, rtol=1e-12, atol=1e-12)
    assert (torch.stack(parts).mean(0) - whole).norm() > 0.05 * whole.norm()


def test_what_is_not_finite_on_one_rank_is_skipped_on_all():
    batches = batches_for({}, updates=4, bad={1: COLUMNS - 1})
    batches[1].behaviour.zero_()  # so that the broken step is trusted
    everything = {"trust": "off"}
    team = together(lambda team: learner(network(), everything, team=team), batches, 2)
    alone = learner(network(), everything)
    learned = [alone.update(batch, progress=0.0) for batch in batches]
    assert learned == [True, False, True, True]
    assert [one.recovery.counts.skipped for one in team] == [1, 1]
    torch.testing.assert_close(team[0].flat.value, alone.flat.value, rtol=1e-12, atol=1e-12)
    assert torch.equal(team[0].flat.value, team[1].flat.value)


def test_all_roll_back_at_the_same_update():
    bad = dict.fromkeys(range(2, 2 + GIVE_UP_AFTER), COLUMNS - 1)
    team = together(
        lambda team: learner(network(), {"trust": "off"}, team=team), batches_for({}, GIVE_UP_AFTER + 4, bad), 2
    )
    assert [one.recovery.counts.rollbacks for one in team] == [1, 1]
    assert torch.equal(team[0].flat.value, team[1].flat.value)
    assert math.isfinite(team[0].flat.value.sum().item())


def test_priorities_are_those_of_all_columns():
    batches = batches_for({}, updates=2)
    alone = learner(network(), prioritise=True)
    for batch in batches:
        alone.update(batch, progress=0.0)
    team = together(lambda team: learner(network(), prioritise=True, team=team), batches, 4)
    for one in team:
        assert torch.equal(one.priorities[0], alone.priorities[0])
        torch.testing.assert_close(one.priorities[1], alone.priorities[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("before", "after"), [(2, 4), (1, 2), (4, 1)])
def test_a_state_goes_on_with_another_number_of_ranks(before, after):
    """Carried states, statistics and counters are those of the whole batch, whoever saved them."""
    kind, loss = {"memory": "lstm", "tasks": 2}, {"popart": True, "target_acceptance": 0.4}
    batches = batches_for(kind, updates=6)

    def make(team, state=None):
        made = learner(network(**kind), loss, team=team)
        if state is not None:
            made.load_state_dict(*state)
        return made

    def run(ranks, part, state=None):
        if ranks == 1:
            one = make(ALONE, state)
            for batch in part:
                one.update(batch, progress=0.0)
            return [one]
        return together(lambda team: make(team, state), part, ranks)

    expected = run(1, batches)[0]
    middle = run(before, batches[:3])[-1].state_dict()
    found = run(after, batches[3:], middle)[0]
    assert largest_difference(flat_state(expected, REPORTED), flat_state(found, REPORTED)) < 1e-12


def test_ranks_that_drift_apart_are_found():
    def drifted(team):
        made = learner(network(), team=team)
        if team.rank == 1:
            made.flat.value[3] += 1e-16 * made.flat.value[3].abs().clamp(min=1.0) * 4
        return made

    with pytest.raises(Drifted, match="rank 1 are not those of rank 0"):
        together(drifted, batches_for({}, updates=1), 2)


def test_the_checksum_sees_exchanged_values_and_costs_one_rank_nothing():
    value = torch.arange(6, dtype=torch.float32)

    class Two(Team):
        size = 2

        def columns(self, part):
            found.append(part)
            return torch.cat(found)

    for other, drifted in ((value.clone(), False), (value.flip(0), True)):
        found = []
        require_together(Two(), other)
        if drifted:
            with pytest.raises(Drifted):
                require_together(Two(), value)
        else:
            require_together(Two(), value)
    require_together(ALONE, value)


def test_relevance_by_random_actions_is_refused():
    family = DiagonalGaussian((-1.0,), (1.0,))
    with pytest.raises(ConfigError, match=r"--loss\.trust behaviour"):
        require_splittable(family, LossConfig(), 2)
    require_splittable(family, LossConfig(), 1)
    require_splittable(family, LossConfig(trust="behaviour"), 2)
    require_splittable(FAMILY, LossConfig(), 8)
