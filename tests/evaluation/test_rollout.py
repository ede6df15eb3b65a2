"""Exactly the episodes asked for, each slot its share, short ones not favoured, rows never mixed up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.errors import ConfigError
from laser_rl.evaluation.statistics import rollout
from laser_rl.types import Episode
from tests.evaluation.fakes import Scripted


def act(rows):
    """The action says which row it answers."""
    return (100 * rows.observation[:, 1] + rows.observation[:, 2]).astype(np.int64)


def expected(lengths, episodes):
    shares = [episodes // len(lengths) + (slot < episodes % len(lengths)) for slot in range(len(lengths))]
    return [
        Episode(slot, cycle[number % len(cycle)], float(cycle[number % len(cycle)] * (slot + 1)))
        for slot, cycle in enumerate(lengths)
        for number in range(shares[slot])
    ]


@given(
    lengths=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=5),
    episodes=st.integers(1, 12), partial=st.none() | st.integers(0, 99), truncate=st.booleans(),
)  # fmt: skip
def test_each_slot_plays_its_share_and_every_action_answers_its_row(lengths, episodes, partial, truncate):
    environments = Scripted(lengths, partial=partial, truncate=truncate)
    assert rollout(environments, act, episodes) == expected(lengths, episodes)
    assert all(chosen == 100 * episode + t for _, episode, t, chosen in environments.actions)


def test_short_episodes_are_not_favoured():
    """One slot ends after 1 step, the other after 100: taking the first ten that end would find ten short ones."""
    played = rollout(Scripted([[1], [100]]), act, 10)
    assert np.mean([episode.length for episode in played]) == 50.5


def test_an_episode_that_broke_off_is_not_counted():
    lengths = [[5], [4]]
    whole = rollout(Scripted(lengths), act, 4)
    broken = rollout(Scripted(lengths, broken=[(0, 0, 3), (1, 1, 1)]), act, 4)
    assert broken == whole


def test_an_endless_episode_is_an_error_with_advice():
    with pytest.raises(ConfigError, match=r"Scripted: .*within 50 steps, slot 1 .*TimeLimit"):
        rollout(Scripted([[3], [10**9]]), act, 2, max_steps=50)


def test_an_episode_of_exactly_the_limit_is_fine_and_a_slot_that_is_done_may_go_on():
    assert len(rollout(Scripted([[50]]), act, 2, max_steps=50)) == 2
    assert len(rollout(Scripted([[40], [3, 10**9]]), act, 3, max_steps=40)) == 3


def test_no_episodes_are_refused():
    with pytest.raises(ConfigError, match="at least one"):
        rollout(Scripted([[1]]), act, 0)
