"""DeepMind Lab's levels as Gymnasium environments; `dmlab/rooms_watermaze` names one.

The package `deepmind_lab` is on no registry: it is built from its own repository (docs/dmlab.md). Rewards are raw. An episode is a function
of its seed and of the actions: Lab's own counter of episodes, from which a level might draw too, always says 0.
"""

import difflib
import functools
import importlib
import logging
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from laser_rl.disk import whole
from laser_rl.envs.scores import SUITES, read_table
from laser_rl.envs.spaces import WORDS, PictureWithInstruction, with_instruction
from laser_rl.errors import EnvironmentRefused

LEVELS = tuple(task.id.removeprefix("dmlab/") for task in SUITES["dmlab-30"])  # by the names of their training versions
TRAINED = {version: level for level in LEVELS for version in (level, re.sub("_train$", "_test", level))}
NEEDS_PICTURES = frozenset({"psychlab_arbitrary_visuomotor_mapping", "psychlab_continuous_recognition"})
LOGGER = logging.getLogger("laser_rl.envs")
FOLDER = "contributed/dmlab30/"
PICTURE, INSTRUCTION = "RGB_INTERLEAVED", "INSTR"
FRAMES_PER_SECOND = 60  # Lab's own default
HELD_OUT_SEEDS = 0x600D5EED  # IMPALA's: mixed into every seed, so that tests play levels that no training has seen
SEEDS = 2**31  # Lab keeps a seed in a C int
PICTURES = ("0001.png", "2400.png")  # the first and the last

Picture = NDArray[np.uint8]


# Action sets by their size, IMPALA's nine and the fifteen of PopArt and R2D2: for each action the value of every control, in Lab's order.
# Turns are pixels of a mouse in each frame, about 57 are one turn a second; Lab's LOOK_DOWN_UP looks down with positive numbers.
_TABLE = read_table("dmlab_actions.csv")
CONTROLS = tuple(_TABLE[0])[3:]
ACTIONS = {
    count: tuple(tuple(int(row[name]) for name in CONTROLS) for row in _TABLE if row["actions"] == str(count))
    for count in (9, 15)
}


@dataclass(frozen=True)
class DmlabSettings:
    """How a level is played; the defaults are IMPALA's, and the names those of `environment.options`."""

    level: str  # one of DMLab-30's; a name with a slash is any level of Lab's, as it is
    width: int = 96
    height: int = 72
    action_repeat: int = 4
    actions: int = 9  # or 15
    test: bool = False  # the version and the seeds that are held out
    instructions: bool = True  # in the picture's last row, see `envs.spaces`
    renderer: str = "software"  # or "hardware"
    level_cache: str | Path | None = None  # a directory where compiled maps are kept
    dataset_path: str | Path | None = None  # pictures for two of the psychlab levels
    lab_config: Mapping[str, Any] = field(default_factory=dict)  # handed to Lab as it is
    render_mode: str | None = None

    def __post_init__(self) -> None:
        for name in ("width", "height", "action_repeat"):
            value = getattr(self, name)
            self._expect(name, isinstance(value, int) and value >= 1, "a whole number of at least 1")
        for name in ("test", "instructions"):
            self._expect(name, isinstance(getattr(self, name), bool), "true or false")
        self._expect("lab_config", isinstance(self.lab_config, Mapping), "a mapping of names to values")
        self._expect("actions", self.actions in ACTIONS, f"one of {', '.join(map(str, ACTIONS))}")
        self._expect("renderer", self.renderer in {"software", "hardware"}, "software or hardware")
        self._expect("render_mode", self.render_mode in {None, "rgb_array"}, "rgb_array or nothing")
        self._check_level()

    @property
    def lab_level(self) -> str:
        """The level's path in Lab."""
        trained = TRAINED.get(self.level)
        if trained is None:
            return self.level
        return FOLDER + (re.sub("_train$", "_test", trained) if self.test else trained)

    @property
    def config(self) -> dict[str, str]:
        """Lab's own settings: it takes nothing but strings."""
        config: dict[str, Any] = {"width": self.width, "height": self.height, "logLevel": "WARN"}
        if self.test:
            config |= {"allowHoldOutLevels": "true", "mixerSeed": HELD_OUT_SEEDS}
        if self.level in NEEDS_PICTURES:
            config["datasetPath"] = self.dataset_path
        return {key: str(value) for key, value in (config | dict(self.lab_config)).items()}

    def _check_level(self) -> None:
        trained = TRAINED.get(self.level)
        if trained is None and "/" not in self.level:
            near = difflib.get_close_matches(self.level, TRAINED, n=3) or ["rooms_watermaze"]
            self._refuse("the name of a level of DMLab-30", repr(self.level), f"did you mean {' or '.join(near)}?")
        if trained not in {None, self.level} and not self.test:
            advice = f"train on {trained}, or set the option test to play it"
            self._refuse("a level to train on", "one that is held out for tests", advice)
        folder = self.dataset_path
        missing = [name for name in PICTURES if folder is None or not (Path(folder) / name).is_file()]
        if self.level in NEEDS_PICTURES and missing:
            self._refuse(
                f"the option dataset_path with the pictures {' to '.join(PICTURES)} of Brady, Konkle and others (2008)",
                "none" if folder is None else f"{str(folder)!r} without {' and '.join(missing)}",
                "data/brady_konkle_oliva2008/README.md in Lab's repository says where to get them",
            )

    def _expect(self, name: str, holds: bool, what: str) -> None:
        if not holds:
            self._refuse(f"the option {name} to be {what}", repr(getattr(self, name)), "correct it")

    def _refuse(self, expected: str, got: str, advice: str) -> NoReturn:
        raise EnvironmentRefused(f"dmlab/{self.level}: expected {expected}, got {got}; {advice}")


def dmlab_constructor(level: str, options: Mapping[str, Any]) -> Callable[[], "DmlabEnv"]:
    """A function that makes the level; refuses at once what cannot be played."""
    known = [part.name for part in fields(DmlabSettings)][1:]
    if unknown := sorted(set(options) - set(known)):
        raise EnvironmentRefused(
            f"dmlab/{level}: expected options among {', '.join(known)}, got {', '.join(unknown)}; check the spelling"
        )
    DmlabSettings(level, **options)
    _load(level)
    return functools.partial(DmlabEnv, level, **options)


class DmlabEnv(gymnasium.Env[Picture, Any]):
    """One level; the keyword arguments are the fields of `DmlabSettings`.

    Every end is a termination: the time limit is a part of the level, and Lab has no observation after it. The final
    observation repeats the last picture before the end. Its value is never used, since the discount is 0 there.
    """

    def __init__(self, level: str, **options: Any) -> None:
        settings = DmlabSettings(level, **options)
        lab = _load(level)
        seen = [PICTURE, INSTRUCTION] if settings.instructions else [PICTURE]
        cache = None if settings.level_cache is None else LevelCache(settings.level_cache)
        size = {"channels": 3, "height": settings.height, "width": settings.width}
        plain = spaces.Box(0, 255, tuple(size.values()), np.uint8)
        self.observation_space: spaces.Space[Any] = PictureWithInstruction(**size) if settings.instructions else plain
        self.action_space = spaces.Discrete(settings.actions)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": FRAMES_PER_SECOND // settings.action_repeat}
        self.render_mode = settings.render_mode
        self._settings = settings
        self._actions = np.array(ACTIONS[settings.actions], np.intc)
        self._lab = lab.Lab(
            settings.lab_level, seen, config=settings.config, renderer=settings.renderer, level_cache=cache
        )
        names = tuple(control["name"] for control in self._lab.action_spec())
        if names != CONTROLS:
            self._lab.close()
            raise EnvironmentRefused(
                f"dmlab/{level}: expected the controls {', '.join(CONTROLS)}, got {', '.join(names)}; "
                "leave out of lab_config what adds controls"
            )
        self._seen: dict[str, Any] = {PICTURE: np.zeros((settings.height, settings.width, 3), np.uint8)}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Picture, dict[str, Any]]:
        """A new episode; Lab may compile a map for it, which takes seconds where no cache has it."""
        super().reset(seed=seed)
        chosen = int(self.np_random.integers(SEEDS)) if seed is None else seed % SEEDS
        self._lab.reset(episode=0, seed=chosen)
        return self._look(), {}

    def step(self, action: Any) -> tuple[Picture, float, bool, bool, dict[str, Any]]:
        """Hold the action's controls for some frames; the reward is the sum over them."""
        reward = self._lab.step(self._actions[int(action)], num_steps=self._settings.action_repeat)
        ended = not self._lab.is_running()
        return self._show() if ended else self._look(), float(reward), ended, False, {}

    def render(self) -> Any:
        """The picture of the last step, [H, W, 3]."""
        return self._seen[PICTURE].copy()

    def close(self) -> None:
        """End the game."""
        self._lab.close()

    def _look(self) -> Picture:
        self._seen = self._lab.observations()
        return self._show()

    def _show(self) -> Picture:
        picture: Picture = self._seen[PICTURE].transpose(2, 0, 1)
        if self._settings.instructions:
            return with_instruction(picture, self._seen[INSTRUCTION], WORDS)
        return np.ascontiguousarray(picture)


class LevelCache:
    """Compiled maps in a directory, for all processes that are given it: levels that draw a new map for each episode compile for seconds.

    Lab's keys are names of files with a hash of the map's source in them. A file appears whole or not at all; one that cannot be written is
    compiled again next time.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory).expanduser()
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentRefused(
                f"expected a directory for compiled maps in the option level_cache, got {str(directory)!r} ({error}); "
                "name one that can be written"
            ) from error

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Copy the map called `key` to `pk3_path`; False if it is not here."""
        try:
            shutil.copyfile(self._directory / Path(key).name, pk3_path)
        except FileNotFoundError:
            return False
        return True

    def write(self, key: str, pk3_path: str) -> None:
        """Keep the map that Lab has compiled at `pk3_path`."""
        path = self._directory / Path(key).name
        if path.exists():
            return
        try:
            with whole(path) as partial, Path(pk3_path).open("rb") as source, partial.open("wb") as file:
                shutil.copyfileobj(source, file)
        except OSError as error:  # a full disk must not end the run: the map is where Lab wants it
            LOGGER.warning("the compiled map %s could not be kept in %s: %s", key, self._directory, error)


def _load(level: str) -> Any:
    try:
        return importlib.import_module("deepmind_lab")
    except ImportError as error:
        raise EnvironmentRefused(
            f"dmlab/{level}: expected the package deepmind_lab, got {type(error).__name__}: {error}; no package registry has it: "
            "clone github.com/google-deepmind/lab, build //python/pip_package:build_pip_package with bazel and install the wheel "
            "that it makes (docs/dmlab.md)"
        ) from error
