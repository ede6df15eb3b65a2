"""Atari 2600 games in ALE's own vector environment: C++ threads, NEXT_STEP resets, and our settings instead of its defaults.

Its defaults clip rewards, press fire on reset, and stack four frames: all off here. Rewards are raw; frames are stacked by the replay.
"""

import re
from collections import deque
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

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
from laser_rl.errors import EnvironmentRefused, MissingExtra

SCREEN = (210, 160)


@dataclass(frozen=True)
class AtariSettings:
    """How the games are played; the defaults are the paper's."""

    screen_size: int = 84
    frame_skip: int = 4  # of the last two, the brighter pixel is seen
    most_noops: int = 37  # at the start of an episode, uniformly 0 to this many
    most_frames: int = 108_000  # 30 minutes; then the episode is truncated. Initial no-ops do not count
    sticky_actions: float = 0.0  # the probability that an action is repeated instead of the chosen one
    full_action_space: bool = False
    threads: int = 0  # of each group of slots; 0: as many as there are cores


def atari_game(name: str) -> str:
    """The name of the game's ROM.

    >>> [atari_game(name) for name in ("ALE/Breakout-v5", "BreakoutNoFrameskip-v4", "ms_pacman", "ALE/UpNDown-v5")]
    ['breakout', 'breakout', 'ms_pacman', 'up_n_down']
    """
    bare = re.sub(r"-v\d+$", "", name.removeprefix("ALE/"))
    bare = re.sub(r"(NoFrameskip|Deterministic|-ram)$", "", bare)
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", bare).lower()
    wanted = snake.replace("_", "")
    return next((game for game in ATARI_57 if game.replace("_", "") == wanted), snake)


def atari_vector(game: str, slots: int, settings: AtariSettings, **overrides: Any) -> Any:
    """ALE's vector environment with `settings`; refuses a game that has no ROM."""
    vector_env = _load()
    roms = set(vector_env.roms.get_all_rom_ids())
    if game not in roms:
        raise EnvironmentRefused(
            f"expected an Atari game, got {game!r}; known are, for example, {', '.join(list(ATARI_57)[:8])} (ale_py.roms lists all)"
        )
    arguments: dict[str, Any] = {
        "num_threads": settings.threads,
        "max_num_frames_per_episode": settings.most_frames,
        "repeat_action_probability": settings.sticky_actions,
        "full_action_space": settings.full_action_space,
        "img_height": settings.screen_size,
        "img_width": settings.screen_size,
        "grayscale": True,
        "stack_num": 1,
        "frameskip": settings.frame_skip,
        "maxpool": True,
        "noop_max": settings.most_noops + 1,  # ALE draws from 0 to noop_max − 1
        "episodic_life": False,
        "life_loss_info": False,
        "reward_clipping": False,
        "use_fire_reset": False,
    }
    return vector_env.AtariVectorEnv(game, slots, **{**arguments, **overrides})


def _load() -> ModuleType:
    try:
        from ale_py import vector_env  # noqa: PLC0415  (an extra, under another licence: only when it is asked for)
    except ImportError as error:
        raise MissingExtra("Atari", "atari") from error
    return vector_env


class _Group(NamedTuple):
    """Slots that ALE steps together."""

    slots: Ints
    env: Any


class AtariEnvironments(Environments):
    """One game in `slots` copies. A life lost is reported in `lost_life` and does not end the episode.

    ALE takes a seed for each slot once, at the first reset; later episodes draw on from there. So `seed` in the rows is nominal except in
    episode 0, and an episode cannot be rebuilt: `state_dict` is None.

    With two groups, a step sends one group off and brings the rows of the other: the emulators of one work while the
    actor decides for the other. Rows of a slot are the same for any number of groups. A wait for ALE has no limit,
    since `recv` takes none; its threads do nothing but emulate.

    Args:
        game: by any of its names.
        slots: how many copies.
        seed: of all of them.
        settings: how it is played. Each group has `settings.threads` of its own. With one for each core, a group that emulates alone has
            the whole machine, and two at once share it; halves would leave cores idle whenever one group waits for its actions.
        groups: into which the slots are split, evenly; no more than there are slots.
    """

    def __init__(
        self, game: str, *, slots: int, seed: int, settings: AtariSettings | None = None, groups: int = 1
    ) -> None:
        settings, rom = settings or AtariSettings(), atari_game(game)
        self._groups = [
            _Group(own, atari_vector(rom, len(own), settings))
            for own in np.array_split(np.arange(slots), max(1, min(groups, slots)))
        ]
        self._sent: deque[_Group] = deque()  # longest ago first; their rows are owed
        self.slots = slots
        shape = (1, settings.screen_size, settings.screen_size)
        actions = DiscreteActions(int(self._groups[0].env.single_action_space.n))
        self.spec = EnvironmentSpec(f"ALE/{rom}", ObservationSpec(shape, "uint8", 1 / 255), actions)
        self._episodes, self._action = VectorEpisodes(slots, seed), np.zeros(slots, np.int64)

    def reset(self) -> Rows:
        """Start every slot; rows that are owed are dropped."""
        while self._sent:
            self._sent.popleft().env.recv()
        answers = [env.reset(seed=self._episodes.seeds(slots)) for slots, env in self._groups]
        observation = answers[0][0] if len(answers) == 1 else np.concatenate([seen for seen, _ in answers])
        lives = np.concatenate([info["lives"] for _, info in answers])
        return self._episodes.begin(np.arange(self.slots), observation, lives)

    def step(self, slots: Ints, action: Array) -> Rows:
        """Send off the groups of `slots`, each as a whole, and wait for the group that was sent longest ago."""
        self._action[slots] = action
        for group in self._groups:
            if np.isin(group.slots, slots).all():
                group.env.send(self._action[group.slots])
                self._sent.append(group)
        group = self._sent.popleft()
        observation, reward, terminated, truncated, info = group.env.recv()
        slots = group.slots.copy()
        return self._episodes.advance(slots, observation, reward, terminated, truncated, info["lives"])

    def close(self) -> None:
        """Ends ALE's threads, also those that are at work; they finish their frame."""
        self._sent.clear()
        while self._groups:
            self._groups.pop().env.close()


class AtariScreen(gymnasium.Env[NDArray[np.uint8], Any]):
    """A game with its screen in colour: a twin that takes the same seed and the same actions draws it. ALE gives one format at a time."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012  (Gymnasium's own way)
    render_mode = "rgb_array"

    def __init__(self, game: str, settings: AtariSettings) -> None:
        rom = atari_game(game)
        self._player = atari_vector(rom, 1, settings, num_threads=1)
        height, width = SCREEN
        size = {"img_height": height, "img_width": width}
        self._painter = atari_vector(rom, 1, settings, num_threads=1, grayscale=False, **size)
        self.observation_space = self._player.single_observation_space
        self.action_space = self._player.single_action_space
        self._frame = np.zeros((*SCREEN, 3), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Both from the same seed."""
        super().reset(seed=seed)
        chosen = np.array([int(self.np_random.integers(2**31)) if seed is None else seed])
        observation, info = self._player.reset(seed=chosen)
        self._frame = self._painter.reset(seed=chosen)[0][0, 0]
        return observation[0], {"lives": int(info["lives"][0])}

    def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Both take the same action."""
        actions = np.array([action], np.int64)
        observation, reward, terminated, truncated, info = self._player.step(actions)
        self._frame = self._painter.step(actions)[0][0, 0]
        lives = {"lives": int(info["lives"][0])}
        return observation[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), lives

    def render(self) -> NDArray[np.uint8]:
        """The screen after the last step."""
        return self._frame.copy()


class MinAtarScreen(gymnasium.Wrapper[Any, Any, Any, Any]):
    """MinAtar draws with seaborn, which is not among our dependencies; here every channel has its colour."""

    render_mode = "rgb_array"

    def render(self) -> Any:
        """The board, the upper channels over the lower ones."""
        bare: Any = self.unwrapped
        board = np.asarray(bare.game.state())
        hue = np.linspace(0.0, 2.0 * np.pi, board.shape[-1], endpoint=False)
        palette = 140 + 110 * np.stack([np.cos(hue), np.cos(hue - 2.1), np.cos(hue + 2.1)], axis=1)
        top = (board * (1 + np.arange(board.shape[-1]))).max(-1)
        pixels = np.concatenate([np.zeros((1, 3)), palette])[top].astype(np.uint8)
        return pixels.repeat(16, axis=0).repeat(16, axis=1)
