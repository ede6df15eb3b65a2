"""Atari 2600 games in ALE's own vector environment: C++ threads, NEXT_STEP resets, and our settings instead of its defaults.

Its defaults clip rewards, press fire on reset, and stack four frames: all off here. Rewards are raw; frames are stacked by the replay.
"""

import re
from collections import deque
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from laser_rl.config import AtariConfig
from laser_rl.envs.border import LOGGER
from laser_rl.envs.records import (
    Array,
    DiscreteActions,
    Environments,
    EnvironmentSpec,
    Ints,
    ObservationSpec,
    Rows,
    VectorEpisodes,
)
from laser_rl.envs.scores import ATARI_57
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
    episode 0, and an episode cannot be rebuilt: `state_dict` is None.

    With two groups of slots, a step sends one group off and brings the rows of the other: the emulators of one work while the actor
    decides for the other. Rows of a slot are the same for any number of groups. Each group has `settings.threads` of its own: halves would
    leave cores idle whenever one group waits for its actions. A wait for ALE has no limit, since `recv` takes none.
    """

    def __init__(
        self, game: str, *, slots: int, seed: int, settings: AtariConfig | None = None, groups: int = 1
    ) -> None:
        settings, rom = settings or AtariConfig(), atari_game(game)
        shares = np.array_split(np.arange(slots), min(groups, slots))
        if slots >= MANY:
            LOGGER.info("starting %d emulators, which takes ALE 0.1 to 0.2 s each", slots)
        self._groups = [(own, atari_vector(rom, len(own), settings)) for own in shares]
        self._sent: deque[tuple[Ints, Any]] = deque()  # groups, longest ago first; their rows are owed
        self.slots = slots
        shape = (1, SCREEN_SIZE, SCREEN_SIZE)
        actions = DiscreteActions(int(self._groups[0][1].single_action_space.n))
        self.spec = EnvironmentSpec(f"ALE/{rom}", ObservationSpec(shape, "uint8", 1 / 255), actions)
        self._episodes, self._action = VectorEpisodes(slots, seed), np.zeros(slots, np.int64)

    def reset(self) -> Rows:
        """Start every slot; rows that are owed are dropped."""
        while self._sent:
            self._sent.popleft()[1].recv()
        answers = [env.reset(seed=self._episodes.seeds(slots)) for slots, env in self._groups]
        observation = answers[0][0] if len(answers) == 1 else np.concatenate([seen for seen, _ in answers])
        lives = np.concatenate([info["lives"] for _, info in answers])
        return self._episodes.begin(np.arange(self.slots), observation, lives)

    def step(self, slots: Ints, action: Array) -> Rows:
        """Send off the groups of `slots`, each as a whole, and wait for the group that was sent longest ago."""
        self._action[slots] = action
        for own, env in self._groups:
            if np.isin(own, slots).all():
                env.send(self._action[own])
                self._sent.append((own, env))
        own, env = self._sent.popleft()
        observation, reward, terminated, truncated, info = env.recv()
        return self._episodes.advance(own.copy(), observation, reward, terminated, truncated, info["lives"])

    def close(self) -> None:
        """Ends ALE's threads, also those that are at work; they finish their frame."""
        self._sent.clear()
        while self._groups:
            self._groups.pop()[1].close()


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
