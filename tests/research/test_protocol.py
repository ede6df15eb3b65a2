"""The protocol against a naive twin, on synthetic runs with a known answer, and where the order of its steps matters."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.atari_paper import sweep_curve
from laser_rl.config import AtariConfig
from laser_rl.envs.scores import Reference
from laser_rl.research.protocol import (
    ATARI_BUCKET_FRAMES,
    DMLAB_BUCKET_FRAMES,
    Episodes,
    agent_curve,
    bucketed,
    carried,
    episodes_of,
    normalised,
)
from tests.references.protocol import naive_agent, naive_buckets, naive_sweep


def as_episodes(pairs):
    columns = np.array(pairs, dtype=float).reshape(-1, 2)
    return Episodes(columns[:, 0], columns[:, 1], np.ones(len(columns)))


def random_pairs(random, total, longest):
    """Episodes of random lengths, one after the other."""
    pairs, frames = [], 0
    while (frames := frames + int(random.integers(1, longest))) <= total:
        pairs.append((frames, float(random.normal())))
    return pairs


def with_none(values):
    return [None if math.isnan(value) else pytest.approx(value) for value in values]


@pytest.mark.parametrize("seed", range(20))
def test_a_sweep_against_the_naive_twin(seed):
    """Long episodes leave buckets empty, at the beginning too; members and tasks differ in it."""
    random = np.random.default_rng(seed)
    total, bucket, tasks = int(random.integers(50, 200)), int(random.integers(5, 20)), int(random.integers(1, 5))
    references = [(float(random.normal()), float(5 + random.random())) for _ in range(tasks)]
    members = [[random_pairs(random, total, random.integers(2, 60)) for _ in range(tasks)] for _ in range(3)]
    raw = [
        [bucketed(as_episodes(own), bucket_frames=bucket, total_frames=total) for own in member] for member in members
    ]
    scores = normalised(raw, [Reference(*one) for one in references])
    assert naive_sweep(members, references, bucket, total) == with_none(sweep_curve(scores))
    assert naive_agent(members[0], references, bucket, total) == with_none(agent_curve(scores[0]))
    assert naive_buckets(members[0][0], bucket, total) == with_none(carried(raw[0][0]))


def test_median_over_tasks_comes_before_the_best_member():
    """A known answer, from rows of metrics on: three games, two members, each good at one game, and one at which both are."""
    references = [Reference(0.0, 10.0), Reference(100.0, 200.0), Reference(-20.0, 20.0)]
    shares = {0: (0.9, 0.1, 0.3), 1: (0.1, 0.8, 0.2)}  # of the way from random play to a person
    curves = []
    for member, own in shares.items():
        tasks = []
        for task, (share, reference) in enumerate(zip(own, references, strict=True)):
            mean = reference.random + share * (reference.best - reference.random)
            rows = [
                {"kind": "episode", "step": step, "return": mean + noise, "member": member, "task": str(task)}
                for step, noise in ((10, -1.0), (20, 1.0), (30, 2.0), (40, -2.0))
            ]
            episodes = episodes_of(rows, frames_a_step=4, member=member, task=str(task))
            tasks.append(bucketed(episodes, bucket_frames=80, total_frames=160))
        curves.append(normalised(tasks, references))
    scores = np.stack(curves)
    assert sweep_curve(scores).tolist() == pytest.approx([0.3, 0.3])  # medians 0.3 and 0.2, the best of them
    # The other way round nobody's agent scores 0.8, and that is why it is wrong.
    assert agent_curve(scores.max(axis=0)).tolist() == pytest.approx([0.8, 0.8])


def test_an_episode_at_the_last_frame_of_a_bucket_belongs_to_it():
    episodes = as_episodes([(10, 1.0), (10.5, 2.0), (20, 4.0)])
    assert bucketed(episodes, bucket_frames=10, total_frames=20).tolist() == [1.0, 3.0]
    with pytest.raises(ValueError, match="the run has 19"):
        bucketed(episodes, bucket_frames=10, total_frames=19)


def test_a_run_without_episodes_is_all_nan():
    assert np.isnan(bucketed(as_episodes([]), bucket_frames=10, total_frames=30)).tolist() == [True] * 3


def test_a_task_with_long_episodes_does_not_leave_the_median():
    """Its second bucket is empty because its episode goes on; without it the median would fall."""
    scores = [[0.9, math.nan, 0.9], [0.5, 0.5, 0.5], [0.1, 0.1, 0.1]]
    assert agent_curve(scores).tolist() == [0.5, 0.5, 0.5]
    assert np.nanmedian(scores, axis=0)[1] == pytest.approx(0.3)


@given(st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(math.nan)), min_size=1, max_size=30))
def test_carrying_keeps_numbers_and_leaves_no_hole_after_the_first(values):
    found = carried(values)
    known = [place for place, value in enumerate(values) if not math.isnan(value)]
    assert all(found[place] == values[place] for place in known)
    assert np.isnan(found).tolist() == [place < (known[0] if known else len(values)) for place in range(len(values))]


def test_episodes_of_a_member_and_a_task_in_the_order_of_frames():
    rows = [
        {"kind": "episode", "step": 30, "return": 3.0, "member": 1, "task": "a"},
        {"kind": "episode", "step": 10, "return": 1.0, "member": 1, "task": "a"},
        {"kind": "episode", "step": 20, "return": 9.0, "member": 0, "task": "a"},
        {"kind": "episode", "step": 20, "return": 9.0, "member": 1, "task": "b"},
        {"kind": "evaluation", "step": 20, "mean": 9.0, "member": 1},
    ]
    found = episodes_of(rows, frames_a_step=4, member=1, task="a")
    assert (found.frames.tolist(), found.returns.tolist()) == ([40.0, 120.0], [1.0, 3.0])


def test_games_are_played_as_the_protocol_says():
    settings = AtariConfig()
    assert settings.most_noops == 37
    assert settings.most_frames == 30 * 60 * 60  # 30 minutes of 60 frames a second
    assert settings.sticky_actions == 0
    assert (ATARI_BUCKET_FRAMES, DMLAB_BUCKET_FRAMES) == (10**6, 10**7)
    with pytest.raises(ValueError, match="2 tasks, references of 1"):
        normalised([[1.0], [2.0]], [Reference(0.0, 1.0)])
