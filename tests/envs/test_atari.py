"""ALE's vector environment as we set it up, against ALE's bare interface and against its own words."""

import os
import signal
import sys
import time

import numpy as np
import pytest
import torch

ale_py = pytest.importorskip("ale_py")

from laser_rl.config import AtariConfig  # noqa: E402
from laser_rl.envs.atari import FRAME_SKIP, AtariEnvironments, AtariWorkers, atari_game  # noqa: E402
from laser_rl.envs.make import make_environments, make_renderable  # noqa: E402
from laser_rl.envs.scores import ATARI_57  # noqa: E402
from laser_rl.envs.worker import ProcessLimits  # noqa: E402
from laser_rl.errors import ConfigError, EnvironmentRefused, MissingExtra  # noqa: E402


def area_weights(size, out):
    """How much of each old pixel lies in each new one."""
    edges = np.arange(out + 1) * size / out
    low, high = edges[:-1, None], edges[1:, None]
    pixel = np.arange(size)
    return np.clip(np.minimum(high, pixel + 1) - np.maximum(low, pixel), 0, None).astype(np.float32) * np.float32(
        out / size
    )


ROWS, COLUMNS = torch.from_numpy(area_weights(210, 84)), torch.from_numpy(area_weights(160, 84))


def shrink(screen):
    return (ROWS @ torch.from_numpy(screen.astype(np.float32)) @ COLUMNS.T).numpy()  # torch has one thread in the tests


class BareBreakout:
    """Frame skip 4, the brighter of the last two frames, averaged down to 84×84: written out."""

    def __init__(self):
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.loadROM(ale_py.roms.get_rom_path("breakout"))
        self.actions = self.ale.getMinimalActionSet()

    def step(self, action):
        reward, screens = 0, [self.ale.getScreenGrayscale()] * 2
        for _ in range(4):
            reward += self.ale.act(self.actions[action])
            screens.append(self.ale.getScreenGrayscale())
            if self.ale.game_over():
                break
        return shrink(np.maximum(screens[-1], screens[-2])), reward, self.ale.lives()


def test_breakout_is_what_the_bare_emulator_shows():
    envs, bare = (
        AtariEnvironments("Breakout", slots=1, seed=1, settings=AtariConfig(most_noops=0, threads=1)),
        BareBreakout(),
    )
    rows, rng = envs.reset(), np.random.default_rng(0)
    assert np.abs(rows.observation[0, 0] - shrink(bare.ale.getScreenGrayscale())).max() <= 1
    lives, rewards, lost, compared = bare.ale.lives(), 0, 0, 0
    while compared < 300 and not rows.terminated[0]:
        action = rng.integers(4, size=1)
        rows = envs.step(np.array([0]), action)
        screen, reward, now = bare.step(action[0])
        if not rows.terminated[0]:  # within the last skip the two may stop on different frames
            assert np.abs(rows.observation[0, 0] - screen).max() <= 1  # they round differently
        assert rows.reward[0] == reward
        assert rows.lost_life[0] == (now < lives)
        rewards, lost, lives, compared = rewards + reward, lost + (now < lives), now, compared + 1
    assert compared > 100
    assert rewards > 0
    assert lost >= 2


def test_rewards_are_raw_and_a_lost_life_does_not_end_the_episode():
    envs, rng = (
        AtariEnvironments("ALE/SpaceInvaders-v5", slots=4, seed=1, settings=AtariConfig(threads=1)),
        np.random.default_rng(0),
    )
    rows, rewards, lost, ended = envs.reset(), set(), 0, 0
    for _ in range(450):
        rows = envs.step(np.arange(4), rng.integers(6, size=4))
        rewards |= set(rows.reward.tolist())
        lost += int((rows.lost_life & ~rows.terminated).sum())
        ended += int(rows.terminated.sum())
    assert max(rewards) >= 10
    assert lost > 0
    assert ended > 0


def test_the_clock_is_ours_and_the_cap_is_a_truncation():
    settings = AtariConfig(most_frames=80, threads=1)
    envs = AtariEnvironments("pong", slots=2, seed=1, settings=settings)
    rows = [envs.reset(), *(envs.step(np.arange(2), np.zeros(2, np.int64)) for _ in range(43))]
    assert settings.most_frames // FRAME_SKIP == 20
    assert [index for index, row in enumerate(rows) if row.truncated.all()] == [20, 41]
    assert [index for index, row in enumerate(rows) if row.is_first.all()] == [0, 21, 42]
    assert [int(row.episode[0]) for row in (rows[20], rows[21], rows[42])] == [0, 1, 2]
    assert not any(row.terminated.any() or row.lost_life.any() for row in rows)
    assert all((row.reward[row.is_first] == 0).all() for row in rows)


@pytest.mark.slow
def test_the_first_no_ops_are_up_to_37():
    envs = AtariEnvironments("breakout", slots=4, seed=1, settings=AtariConfig(threads=1))
    frames = [envs._games.reset(seed=np.arange(4) + 4 * turn)[1]["episode_frame_number"] for turn in range(6)]
    counted = set(np.concatenate(frames).tolist())
    assert counted <= set(range(38))
    assert max(counted) >= 33
    assert len(counted) > 12


def test_the_same_seed_gives_the_same_game_on_any_number_of_threads():
    games = [
        AtariEnvironments("Seaquest", slots=3, seed=seed, settings=AtariConfig(threads=threads))
        for seed, threads in ((1, 1), (1, 2), (2, 1))
    ]
    for game in games:
        game.reset()
    rng, same, differs = np.random.default_rng(0), True, False
    for _ in range(30):
        action = rng.integers(18, size=3)
        one, two, other = (game.step(np.arange(3), action).observation for game in games)
        same, differs = same and np.array_equal(one, two), differs or not np.array_equal(one, other)
    assert same
    assert differs


def opening(game):
    envs = AtariEnvironments(game, slots=1, seed=1, settings=AtariConfig(threads=1))
    assert envs.spec.observation.shape == (1, 84, 84)
    assert 3 <= envs.spec.action.count <= 18
    envs.reset()
    for _ in range(3):
        rows = envs.step(np.array([0]), np.array([envs.spec.action.count - 1]))
    envs.close()
    envs.close()
    return rows.observation.tobytes()


def test_games_with_difficult_names_run():
    games = ("up_n_down", "ms_pacman", "jamesbond", "qbert", "surround")
    assert len({opening(game) for game in games}) == len(games)


@pytest.mark.slow
def test_every_game_of_the_57_runs_and_is_another_one():
    assert len({opening(game) for game in ATARI_57}) == 57


@pytest.mark.parametrize("game", ATARI_57)
def test_every_name_of_a_game_is_understood(game):
    camel = "".join(part.capitalize() for part in game.split("_"))
    for name in (game, camel, f"ALE/{camel}-v5", f"{camel}NoFrameskip-v4", f"{camel}Deterministic-v0", f"ALE/{game}"):
        assert atari_game(name) == game


def test_there_are_57():
    assert len(set(ATARI_57)) == 57


def test_the_full_set_of_actions():
    settings = AtariConfig(full_action_space=True, threads=1)
    assert AtariEnvironments("pong", slots=1, seed=1, settings=settings).spec.action.count == 18
    assert AtariEnvironments("breakout", slots=1, seed=1).spec.action.count == 4


def test_an_unknown_game_is_refused():
    with pytest.raises(EnvironmentRefused, match="got 'breakin'"):
        AtariEnvironments("Breakin", slots=1, seed=1)


def test_it_has_no_state():
    envs = AtariEnvironments("pong", slots=2, seed=1, settings=AtariConfig(threads=1))
    envs.reset()
    assert envs.state_dict() is None
    with pytest.raises(ConfigError, match="a state to restore"):
        envs.load_state_dict({})


def test_without_the_extra_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(MissingExtra, match=r"pip install 'laser-rl\[atari\]'"):
        AtariEnvironments("pong", slots=1, seed=1)


def test_the_screen_to_look_at_plays_the_same_game():
    settings = AtariConfig(threads=1)
    envs, screen = (
        AtariEnvironments("pong", slots=1, seed=4, settings=settings),
        make_renderable("ALE/Pong-v5", atari=settings),
    )
    rows, rng = envs.reset(), np.random.default_rng(0)
    seen, _ = screen.reset(seed=int(rows.seed[0]))
    for _ in range(40):
        np.testing.assert_array_equal(seen, rows.observation[0])
        frame = screen.render()
        assert frame.shape == (210, 160, 3)
        grey = (frame * np.array([0.299, 0.587, 0.114])).sum(-1)
        assert np.abs(shrink(grey) - seen[0]).mean() < 2  # the twin is at the same moment
        action = rng.integers(6, size=1)
        rows = envs.step(np.array([0]), action)
        seen, reward, *_ = screen.step(action[0])
        assert reward == rows.reward[0]


def collect(envs, steps, actions):
    """Rows by slot; each slot's actions are its own, so they do not depend on who acts when."""
    taken = np.zeros(envs.slots, np.int64)
    streams = [[] for _ in range(envs.slots)]

    def note(rows):
        for index, slot in enumerate(rows.slots):
            streams[slot].append(tuple(field[index].tobytes() for field in rows))
        return rows.slots

    ready = note(envs.reset())
    while min(map(len, streams)) <= steps:
        chosen = actions[ready, taken[ready]]
        taken[ready] += 1
        ready = note(envs.step(ready, chosen))
    return [stream[: steps + 1] for stream in streams]


def in_workers(slots, settings, workers=2, *, lockstep=False, limits=None):
    more = {"workers": workers, "lockstep": lockstep, "limits": limits or ProcessLimits()}
    return AtariWorkers("pong", slots=slots, seed=3, settings=settings, **more)


@pytest.mark.parametrize(
    ("slots", "steps"), [(2, 40), *(pytest.param(slots, 75, marks=pytest.mark.slow) for slots in (1, 4, 5))]
)
def test_a_slot_plays_the_same_in_any_process(slots, steps):
    settings = AtariConfig(most_frames=120, threads=1)  # a truncation every 30 steps
    actions = np.random.default_rng(0).integers(6, size=(slots, 2 * steps + 9))
    ways = [AtariEnvironments("pong", slots=slots, seed=3, settings=settings), in_workers(slots, settings)]
    ways += [in_workers(slots, settings, workers=3 + lockstep, lockstep=lockstep) for lockstep in (True, False)]
    one, *others = (collect(way, steps, actions) for way in ways)
    assert all(other == one for other in others)
    assert slots == 1 or one[0] != one[-1]
    for way in ways:
        way.close()


def test_workers_construct_while_the_caller_goes_on_and_answer_in_turn():
    envs = in_workers(5, AtariConfig(threads=1))
    assert not any(worker.ready for worker in envs.workers)
    assert envs.spec == AtariEnvironments("pong", slots=1, seed=3, settings=AtariConfig(threads=1)).spec
    assert envs.reset().slots.tolist() == [0, 1, 2, 3, 4]
    assert envs.step(np.arange(5), np.zeros(5, np.int64)).slots.tolist() == [0, 1]
    orders = [np.array([1, 0]), np.array([4, 2, 3]), np.array([0, 1])]
    answers = [envs.step(order, np.zeros(len(order), np.int64)).slots.tolist() for order in orders]
    assert answers == [[2, 3, 4], [0, 1], [2, 3, 4]]
    nobody = np.zeros(0, np.int64)
    assert envs.step(nobody, nobody).slots.tolist() == [0, 1]
    envs.close()


def test_rows_that_are_owed_do_not_hinder_the_end():
    envs = in_workers(4, AtariConfig(most_frames=40, threads=1))
    ready = envs.reset().slots
    ended = []
    for _ in range(20):
        rows = envs.step(ready, np.zeros(len(ready), np.int64))
        ready = rows.slots
        ended.append(bool(rows.truncated.all()))
    assert ended[-2:] == [True, True]  # both groups; the first is on its way to the next episode
    assert envs.state_dict() is None
    with pytest.raises(ConfigError, match="a state to restore"):
        envs.load_state_dict({})
    begin = time.monotonic()
    envs.close()
    envs.close()
    assert time.monotonic() - begin < 10


@pytest.mark.fault(1)
@pytest.mark.parametrize(
    ("lockstep", "number"), [(True, signal.SIGKILL), (False, signal.SIGKILL), (False, signal.SIGSTOP)]
)
def test_emulators_that_are_killed_or_hang_begin_new_episodes(lockstep, number):
    envs = in_workers(4, AtariConfig(threads=1), lockstep=lockstep, limits=ProcessLimits(step_s=1.0))
    ready = envs.reset().slots
    for _ in range(4):
        ready = envs.step(ready, np.zeros(len(ready), np.int64)).slots
    victim = envs.workers[0]
    os.kill(victim.process.pid, number)
    restarted, others = {}, 0
    for _ in range(6):
        rows = envs.step(ready, np.zeros(len(ready), np.int64))
        ready = rows.slots
        for index in np.flatnonzero(rows.restarted):
            restarted[int(rows.slots[index])] = int(rows.episode[index]), bool(rows.is_first[index])
        others += int((~rows.restarted & (rows.slots > 1) & ~rows.is_first).sum())
    assert restarted == {0: (1, True), 1: (1, True)}  # the next number, so another seed
    assert others >= 6
    assert envs.counters()["restarts"] == 1
    envs.close()


@pytest.mark.parametrize(("lockstep", "answering"), [(True, 4), (False, 2)])
def test_only_without_lockstep_do_workers_take_turns(lockstep, answering):
    envs = make_environments("ALE/Pong-v5", slots=4, seed=1, atari=AtariConfig(threads=1), lockstep=lockstep)
    envs.reset()
    assert isinstance(envs, AtariWorkers) is not lockstep
    assert len(envs.step(np.arange(4), np.zeros(4, np.int64)).slots) == answering
    envs.close()


@pytest.mark.slow
def test_games_in_workers_can_be_mixed():
    envs = make_environments("pong,breakout", slots=8, seed=1, atari=AtariConfig(threads=1))
    ready, answered = envs.reset().slots, np.zeros(8, int)
    for _ in range(10):
        rows = envs.step(ready, np.zeros(len(ready), np.int64))
        ready = rows.slots
        answered[ready] += 1
    assert answered.tolist() == [10] * 8
    envs.close()
