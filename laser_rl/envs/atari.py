"""Atari 2600 games in ALE's own vector environment: C++ threads, NEXT_STEP resets, and our settings instead of its defaults.

Its defaults clip rewards, press fire on reset, and stack four frames: all off here. Rewards are raw; frames are stacked by the replay.
"""

import contextlib
import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from laser_rl.config import AtariConfig
from laser_rl.envs.border import LOGGER
from laser_rl.envs.pool import PoolEnvironments, wait_for_rows
from laser_rl.envs.records import (
    Array,
    DiscreteActions,
    Environments,
    EnvironmentSpec,
    Ints,
    ObservationSpec,
    RowBlock,
    Rows,
    VectorEpisodes,
)
from laser_rl.envs.scores import ATARI_57
from laser_rl.envs.slot import CONSTRUCTING, RESETTING, STEPPING
from laser_rl.envs.worker import ProcessLimits
from laser_rl.errors import EnvironmentRefused, require_modules

FRAME_SKIP = 4  # emulator frames of a step; of the last two, the brighter pixel is seen
SCREEN_SIZE = 84
MANY = 32  # emulators; their constructors run one after the other, each computes a palette (ale-py 0.12)


def atari_game(name: str) -> str:
    """The name of the game's ROM."""
    bare = re.sub(r"-v\d+$", "", name.removeprefix("ALE/"))
    bare = re.sub(r"(NoFrameskip|Deterministic|-ram)$", "", bare)
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", bare).lower()
    wanted = snake.replace("_", "")
    return next((game for game in ATARI_57 if game.replace("_", "") == wanted), snake)


def atari_vector(game: str, slots: int, settings: AtariConfig, **overrides: Any) -> Any:
    """ALE's vector environment with `settings`; refuses a game that has no ROM."""
    require_modules("Atari", "atari", "ale_py")
    from ale_py import roms, vector_env  # noqa: PLC0415  (an extra, under another licence: only when it is asked for)

    if game not in roms.get_all_rom_ids():
        raise EnvironmentRefused(
            f"expected an Atari game, got {game!r}; known are, for example, {', '.join(list(ATARI_57)[:8])} (ale_py.roms lists all)"
        )
    settled = {
        "num_threads": settings.threads,
        "max_num_frames_per_episode": settings.most_frames,
        "repeat_action_probability": settings.sticky_actions,
        "full_action_space": settings.full_action_space,
        "img_height": SCREEN_SIZE,
        "img_width": SCREEN_SIZE,
        "grayscale": True,
        "stack_num": 1,
        "frameskip": FRAME_SKIP,
        "maxpool": True,
        "noop_max": settings.most_noops + 1,  # ALE draws from 0 to noop_max − 1
        "episodic_life": False,
        "life_loss_info": False,
        "reward_clipping": False,
        "use_fire_reset": False,
    }
    return vector_env.AtariVectorEnv(game, slots, **(settled | overrides))


class AtariEnvironments(Environments):
    """One game in `slots` copies. A life lost is reported in `lost_life` and does not end the episode.

    ALE takes a seed for each slot once, at the first reset; later episodes draw on from there. So `seed` in the rows is nominal except in
    the first episode of each slot, and an episode cannot be rebuilt: `state_dict` is None. A wait for ALE has no limit, since `recv` takes
    none: `AtariWorkers` limits it from outside.
    """

    def __init__(
        self, game: str, *, slots: int, seed: int, settings: AtariConfig | None = None, first: int = 0
    ) -> None:
        settings, rom = settings or AtariConfig(), atari_game(game)
        if slots >= MANY:
            LOGGER.info("starting %d emulators, which takes ALE 0.1 to 0.2 s each", slots)
        self._games, self.slots, self._every = atari_vector(rom, slots, settings), slots, np.arange(slots)
        self._action = np.zeros(slots, np.int64)
        actions = DiscreteActions(int(self._games.single_action_space.n))
        seen = ObservationSpec((1, SCREEN_SIZE, SCREEN_SIZE), "uint8", 1 / 255)
        self.spec = EnvironmentSpec(f"ALE/{rom}", seen, actions)
        self.episodes = VectorEpisodes(slots, seed, first=first)

    def reset(self) -> Rows:
        observation, info = self._games.reset(seed=self.episodes.seeds(self._every))
        return self.episodes.begin(self._every.copy(), observation, info["lives"])

    def step(self, slots: Ints, action: Array) -> Rows:
        """Act in all slots."""
        self._action[slots] = action
        observation, reward, terminated, truncated, info = self._games.step(self._action)
        return self.episodes.advance(self._every.copy(), observation, reward, terminated, truncated, info["lives"])

    def close(self) -> None:
        """Ends ALE's threads, also those that are at work; they finish their frame."""
        games, self._games = self._games, None
        if games is not None:
            games.close()


class Emulators(AtariEnvironments):
    """All slots of a worker process, stepped by one thread of ALE; `advance` writes their rows where a `Slot` would write its own.

    `members` says of each slot its number, that of its last episode and whether that was cut off, as for a worker that is replaced.
    """

    def __init__(
        self,
        game: str,
        settings: AtariConfig,
        members: Sequence[tuple[int, int, bool]],
        *,
        seed: int,
        watch: Callable[[int, int], None],
    ) -> None:
        self._watch, self._first = watch, members[0][0]
        watch(CONSTRUCTING, self._first)
        alone = settings.model_copy(update={"threads": 1})
        super().__init__(game, slots=len(members), seed=seed, settings=alone, first=self._first)
        self.episodes.number[:] = [episode + 1 for _, episode, _ in members]
        self._broken: list[bool] | None = [broken for *_, broken in members]  # None after the first rows

    def bind(self, block: RowBlock, index: int) -> None:
        own = slice(index, index + self.slots)
        self._own, self._rows = own, Rows(*(column[own] for column in block.rows))  # type: ignore[arg-type]

    def advance(self, action: Array) -> None:
        """Rows of all slots; the first ones ignore the actions."""
        broken, self._broken = self._broken, None
        self._watch(STEPPING if broken is None else RESETTING, self._first)
        rows = self.reset() if broken is not None else self.step(self._every, action[self._own])
        columns: Any = zip(self._rows[1:], rows[1:], strict=True)
        for column, newest in columns:
            np.copyto(column, newest)
        if broken is not None:
            self._rows.restarted[:] = broken


class AtariWorkers(PoolEnvironments):
    """A game in worker processes: its emulators start side by side and step apart from the learner's interpreter lock.

    Without `lockstep` the workers are two groups that take turns: a step sends off those of `slots` and brings the rows of the group that
    was sent longest ago, so that one group plays while the actor decides for the other.
    """

    # ALE cannot play an episode again: there is no state, and one is refused.
    state_dict, load_state_dict = Environments.state_dict, Environments.load_state_dict

    def __init__(
        self,
        game: str,
        *,
        slots: int,
        seed: int,
        settings: AtariConfig,
        workers: int,
        lockstep: bool,
        limits: ProcessLimits,
    ) -> None:
        make, name = partial(Emulators, game, settings), f"ALE/{atari_game(game)}"
        many: dict[str, Any] = {"slots": slots, "workers": workers, "lockstep": lockstep, "whole": True}
        with contextlib.closing(AtariEnvironments(game, slots=1, seed=seed, settings=settings)) as one:
            super().__init__(make, seed=seed, name=name, limits=limits, spec=one.spec, **many)
        half = self.workers[len(self.workers) // 2].slots.start
        self._groups = [range(slots)] if lockstep or not half else [range(half), range(half, slots)]
        self._sent: deque[range] = deque()  # groups, longest ago first; their rows are owed

    def reset(self) -> Rows:
        self._sent.clear()
        return super().reset()

    def step(self, slots: Ints, action: Array) -> Rows:
        self.send(slots, action)
        self._sent.extend(group for group in self._groups if np.isin(group, slots).all())
        group = self._sent.popleft()
        wait_for_rows([self], all_rows=True, among=group)
        self.arrived.clear()  # the order of groups says which rows are handed out
        return self._block.take(np.arange(group.start, group.stop))


class AtariScreen(gymnasium.Env[NDArray[np.uint8], Any]):
    """A game with its screen in colour: a twin that takes the same seed and the same actions draws it. ALE gives one format at a time."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012  (Gymnasium's own way)
    render_mode = "rgb_array"

    def __init__(self, game: str, settings: AtariConfig) -> None:
        rom = atari_game(game)
        self._player = atari_vector(rom, 1, settings, num_threads=1)
        full_size = {"img_height": 210, "img_width": 160}
        self._painter = atari_vector(rom, 1, settings, num_threads=1, grayscale=False, **full_size)
        self.observation_space = self._player.single_observation_space
        self.action_space = self._player.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        chosen = np.array([int(self.np_random.integers(2**31)) if seed is None else seed])
        observation, info = self._player.reset(seed=chosen)
        self._frame: NDArray[np.uint8] = self._painter.reset(seed=chosen)[0][0, 0]
        return observation[0], {"lives": int(info["lives"][0])}

    def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        actions = np.array([action], np.int64)
        observation, reward, terminated, truncated, info = self._player.step(actions)
        self._frame = self._painter.step(actions)[0][0, 0]
        lives = {"lives": int(info["lives"][0])}
        return observation[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), lives

    def render(self) -> NDArray[np.uint8]:
        return self._frame.copy()


class MinAtarScreen(gymnasium.Wrapper[Any, Any, Any, Any]):
    """MinAtar draws with seaborn, which is not among our dependencies; here every channel has its colour."""

    render_mode = "rgb_array"

    def render(self) -> Any:
        bare: Any = self.unwrapped
        board = np.asarray(bare.game.state())
        hue = np.linspace(0.0, 2.0 * np.pi, board.shape[-1], endpoint=False)
        palette = 140 + 110 * np.stack([np.cos(hue), np.cos(hue - 2.1), np.cos(hue + 2.1)], axis=1)
        top = (board * (1 + np.arange(board.shape[-1]))).max(-1)
        pixels = np.concatenate([np.zeros((1, 3)), palette])[top].astype(np.uint8)
        return pixels.repeat(16, axis=0).repeat(16, axis=1)
