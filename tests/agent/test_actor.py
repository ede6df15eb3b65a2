import numpy as np
import pytest
import torch

from laser_rl.agent.actor import Actor
from laser_rl.agent.policy import Decision
from laser_rl.envs.pool import PoolEnvironments
from laser_rl.envs.records import EnvironmentSpec, ObservationSpec, Rows
from laser_rl.envs.slot import SerialEnvironments
from laser_rl.types import UnrollLayout, Unrolls
from tests.agent.unroll_witness import UnrollWitness
from tests.envs.samples import WIDTH, Telltale

LAYOUT = UnrollLayout(7, 0, (WIDTH,), "float32", (), "int64", 3)


class RandomPolicy:
    """Random actions; its behaviour tells which call decided."""

    def __init__(self, seed=0):
        self.random, self.calls = np.random.default_rng(seed), 0
        self.generator = torch.Generator().manual_seed(seed)

    def act(self, rows, slots=None):
        self.calls += 1
        observation = rows.observation
        action = self.random.integers(3, size=len(observation))
        behaviour = np.stack([observation[:, 2], observation[:, 3], action], 1).astype(np.float32)
        return Decision(action, behaviour, action)


def telltales(slots=3, seed=5):
    return SerialEnvironments(Telltale, slots=slots, seed=seed)


def play(actor, steps):
    taken = [actor.step() for _ in range(steps)]
    return [one.unrolls for one in taken if one.unrolls is not None], taken


def test_every_row_of_every_unroll_is_the_one_that_has_to_be_there():
    actor = Actor(telltales(), RandomPolicy(), LAYOUT, member=4)
    actor.begin()
    blocks, taken = play(actor, 200)
    witness = UnrollWitness()
    for block in blocks:
        witness.hear(block)
        assert (block.member == 4).all()
        np.testing.assert_array_equal(block.behaviour[..., 0], block.observation[:, :-1, 2])  # decided at that very row
        np.testing.assert_array_equal(block.behaviour[..., 2], block.action)
    assert witness.unrolls >= 3 * (200 - LAYOUT.steps) // LAYOUT.steps
    assert witness.resets > 10
    assert witness.ends > 10
    finished = sum(len(one.episodes) for one in taken)
    assert 0 <= finished - witness.ends <= 3 + 3  # open unrolls, and rows before a staggered start


def test_staggered_slots_finish_at_different_times():
    actor = Actor(telltales(slots=4), RandomPolicy(), LAYOUT)
    actor.begin()
    blocks, _ = play(actor, 100)
    assert max(len(block.member) for block in blocks) == 1


def test_steps_count_transitions_and_episodes_their_returns():
    actor = Actor(telltales(), RandomPolicy(), LAYOUT)
    actor.begin()
    _, taken = play(actor, 300)
    episodes = [episode for one in taken for episode in one.episodes]
    assert all(one.raw_return == one.length * (one.length + 1) / 2 for one in episodes)  # rewards are 1, 2, 3, ...
    closed = sum(one.length for one in episodes)
    assert 0 <= sum(one.steps for one in taken) - closed <= 3 * 24


def test_versions_are_those_of_the_first_row():
    actor = Actor(telltales(slots=1), RandomPolicy(), LAYOUT)
    actor.begin()
    versions = []
    for number in range(3 * LAYOUT.steps):
        actor.version = number
        unrolls = actor.step().unrolls
        if unrolls is not None:
            versions += unrolls.version.tolist()
    assert versions == [0, LAYOUT.steps, 2 * LAYOUT.steps]


@pytest.mark.slow
def test_rows_that_come_late_are_recorded_where_they_belong(tmp_path):
    marker = tmp_path / "hang"
    marker.touch()
    pool = PoolEnvironments(HangingTelltale(str(marker)), slots=4, seed=3, workers=2, name="telltale", patience_s=0.05)
    try:
        actor = Actor(pool, RandomPolicy(), LAYOUT)
        actor.begin()
        blocks, taken = play(actor, 800)  # more than two seconds, of which one worker sleeps 0.3
    finally:
        pool.close()
    witness = UnrollWitness()
    for block in blocks:
        witness.hear(block)
    assert min(one.steps for one in taken if one.steps) < 4  # some rows did come without the others
    assert {int(slot) for block in blocks for slot in block.slot} == {0, 1, 2, 3}


class HangingTelltale:
    def __init__(self, marker):
        self.marker = marker

    def __call__(self):
        return Telltale(hang_in_step=self.marker, hang_s=0.3, pause_s=0.001)


def test_a_state_goes_on_bit_for_bit():
    def blocks_of(actor, steps):
        return play(actor, steps)[0]

    one = Actor(telltales(), RandomPolicy(), LAYOUT)
    one.begin()
    play(one, 33)
    state = one.state_dict()
    other = Actor(telltales(), RandomPolicy(seed=9), LAYOUT)
    assert other.load_state_dict(state) == 0
    other.policy = one.policy  # its random numbers go on in both
    bits = one.policy.random.bit_generator.state
    first = blocks_of(one, 40)
    one.policy.random.bit_generator.state = bits
    second = blocks_of(other, 40)
    assert len(first) == len(second) > 3
    for a, b in zip(first, second, strict=True):
        for name, left, right in zip(Unrolls._fields, a, b, strict=True):
            np.testing.assert_array_equal(left, right, err_msg=name)


def test_environments_that_cannot_be_saved_start_anew_and_say_so():
    actor = Actor(telltales(), RandomPolicy(), LAYOUT)
    actor.begin()
    play(actor, 10)
    state = {**actor.state_dict(), "environments": {}}
    other = Actor(telltales(seed=8), RandomPolicy(), LAYOUT)
    assert other.load_state_dict(state) == 3
    witness = UnrollWitness()
    for block in play(other, 60)[0]:
        witness.hear(block)
    assert witness.unrolls > 10


class Frames:
    """Pictures of one pixel that count 1, 2, 3, ... in episodes of 4 rows."""

    slots = 1
    spec = EnvironmentSpec("frames", ObservationSpec((1, 1, 1), "uint8"), None)

    def __init__(self):
        self._t = 0

    def reset(self):
        return self._row()

    def step(self, slots, action):
        self._t += 1
        return self._row()

    def _row(self):
        within, flag, zero = self._t % 4, np.array([False]), np.zeros(1, np.int64)
        observation = np.full((1, 1, 1, 1), self._t + 1, np.uint8)
        ends, first = np.array([within == 3]), np.array([within == 0])
        return Rows(zero, observation, first, np.ones(1, np.float32), ends, flag, flag, flag, zero + self._t // 4, zero)


def test_stacks_are_cut_at_the_first_row_and_carried_between_unrolls():
    layout = UnrollLayout(3, 2, (1, 1, 1), "uint8", (), "int64", 3)
    seen = []

    class Looking(RandomPolicy):
        def act(self, rows, slots=None):
            seen.append(rows.observation.reshape(-1).tolist())
            return Decision(np.zeros(1, np.int64), np.zeros((1, 3), np.float32), np.zeros(1, np.int64))

    actor = Actor(Frames(), Looking(), layout)
    actor.begin()
    blocks, _ = play(actor, 9)
    assert seen == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [0, 0, 5], [0, 5, 6], [5, 6, 7], [6, 7, 8], [0, 0, 9]]
    frames = [block.observation.reshape(-1).tolist() for block in blocks]
    assert frames == [[0, 0, 1, 2, 3, 4], [2, 3, 4, 5, 6, 7], [5, 6, 7, 8, 9, 10]]
    firsts = [block.is_first.reshape(-1).tolist() for block in blocks]
    assert firsts[1] == [False, False, False, True, False, False]


def test_the_replay_rebuilds_the_stacks_that_the_actor_saw():
    from laser_rl.replay.memory_layout import allocate  # noqa: PLC0415
    from laser_rl.replay.store import Replay  # noqa: PLC0415

    layout = UnrollLayout(5, 3, (1, 1, 1), "uint8", (), "int64", 3)
    seen = []

    class Looking(RandomPolicy):
        def act(self, rows, slots=None):
            seen.append(rows.observation.reshape(-1).tolist())
            return Decision(np.zeros(1, np.int64), np.zeros((1, 3), np.float32), np.zeros(1, np.int64))

    actor = Actor(Frames(), Looking(), layout)
    actor.begin()
    blocks, _ = play(actor, 41)
    replay, batch = Replay(layout, 1000), allocate(layout, len(blocks))
    for block in blocks:
        replay.insert(block)
    replay.gather(np.arange(len(blocks)), batch, 0)
    gathered = [batch.observation[t, b].reshape(-1).tolist() for b in range(len(blocks)) for t in range(layout.steps)]
    assert gathered == seen[: len(gathered)]


@pytest.mark.parametrize(("state_size", "most"), [(0, 1), (2, 4)])
def test_slots_whose_episodes_were_lost_are_shifted_anew_unless_there_is_a_memory(state_size, most):
    layout = UnrollLayout(7, 0, (WIDTH,), "float32", (), "int64", 3, state_size)
    actor = Actor(telltales(slots=4), RandomPolicy(), layout)
    actor.begin()
    play(actor, 20)
    kept = actor.state_dict()["actor"]
    resumed = Actor(telltales(slots=4), RandomPolicy(), layout)
    assert resumed.load_state_dict({"actor": kept, "environments": {}}) == 4
    blocks, _ = play(resumed, 60)
    assert max(len(block.member) for block in blocks) == most
