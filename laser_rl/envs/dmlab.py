"""DeepMind Lab's levels as Gymnasium environments; `dmlab/rooms_watermaze` names one.

The package `deepmind_lab` is on no registry: it is built from its own repository (docs/dmlab.md). Rewards are raw. An episode is a function
of its seed and of the actions: Lab's own counter of episodes, from which a level might draw too, always says 0.
"""

import difflib
import functools
import importlib
import inspect
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from laser_rl.disk import whole
from laser_rl.envs.border import LOGGER
from laser_rl.envs.instructions import picture_space, with_instruction
from laser_rl.envs.scores import SUITES, read_table
from laser_rl.errors import EnvironmentRefused

LEVELS = tuple(task.id.removeprefix("dmlab/") for task in SUITES["dmlab-30"])  # by the names of their training versions
TRAINED = {version: level for level in LEVELS for version in (level, re.sub("_train$", "_test", level))}
NEEDS_PICTURES = frozenset({"psychlab_arbitrary_visuomotor_mapping", "psychlab_continuous_recognition"})
FOLDER = "contributed/dmlab30/"
PICTURE, INSTRUCTION = "RGB_INTERLEAVED", "INSTR"
FRAMES_PER_SECOND = 60  # Lab's own default
HELD_OUT_SEEDS = 0x600D5EED  # IMPALA's: mixed into every seed, so that tests play levels that no training has seen
SEEDS = 2**31  # Lab keeps a seed in a C int
FIRST_PICTURE = "0001.png"  # of 2,400

Picture = NDArray[np.uint8]


# Action sets by their size, IMPALA's nine and the fifteen of PopArt and R2D2: for each action the value of every control, in Lab's order.
# Turns are pixels of a mouse in each frame, about 57 are one turn a second; Lab's LOOK_DOWN_UP looks down with positive numbers.
_TABLE = read_table("dmlab_actions.csv")
CONTROLS = tuple(_TABLE[0])[3:]
ACTIONS = {
    count: tuple(tuple(int(row[name]) for name in CONTROLS) for row in _TABLE if row["actions"] == str(count))
    for count in (9, 15)
}


def lab_level(level: str, *, test: bool = False) -> str:
    """The path in Lab of a level of DMLab-30; a name with a slash is any level of Lab's, as it is."""
    trained = TRAINED.get(level)
    if trained is None:
        if "/" not in level:
            near = difflib.get_close_matches(level, TRAINED, n=3) or ["rooms_watermaze"]
            _refuse(level, "the name of a level of DMLab-30", repr(level), f"did you mean {' or '.join(near)}?")
        return level
    if trained != level and not test:
        advice = f"train on {trained}, or set the option test to play it"
        _refuse(level, "a level to train on", "one that is held out for tests", advice)
    return FOLDER + (re.sub("_train$", "_test", trained) if test else trained)


def dmlab_constructor(level: str, options: Mapping[str, Any]) -> Callable[[], "DmlabEnv"]:
    refuse_options(f"dmlab/{level}", DmlabEnv, options)
    lab_level(level, test=bool(options.get("test")))
    _load(level)
    return functools.partial(DmlabEnv, level, **options)


def refuse_options(name: str, env: type[gymnasium.Env[Any, Any]], options: Mapping[str, Any]) -> None:
    """Refuse options that the environment's constructor does not take."""
    known = list(inspect.signature(env).parameters)[1:]
    if unknown := sorted(set(options) - set(known)):
        raise EnvironmentRefused(
            f"{name}: expected options among {', '.join(known)}, got {', '.join(unknown)}; check the spelling"
        )


def evaluation_options(source: object, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """What an agent is evaluated with: levels of Lab's in their held-out version and seeds, unless `test` says otherwise."""
    is_lab = isinstance(source, str) and source.startswith(("dmlab/", "suite:dmlab"))
    return {"test": True, **options} if is_lab else options


class DmlabEnv(gymnasium.Env[Picture, Any]):
    """One level; the defaults are IMPALA's, the keyword arguments those of `environment.options` (docs/dmlab.md).

    Every end is a termination: the time limit is a part of the level, and Lab has no observation after it. The final
    observation repeats the last picture before the end. Its value is never used, since the discount is 0 there.
    """

    def __init__(
        self,
        level: str,
        *,
        width: int = 96,
        height: int = 72,
        action_repeat: int = 4,
        actions: int = 9,
        test: bool = False,
        instructions: bool = True,
        renderer: str = "software",
        level_cache: str | Path | None = None,
        dataset_path: str | Path | None = None,
        render_mode: str | None = None,
    ) -> None:
        path, lab = lab_level(level, test=test), _load(level)
        if actions not in ACTIONS:
            _refuse(level, f"the option actions to be one of {', '.join(map(str, ACTIONS))}", repr(actions), "fix it")
        config: dict[str, Any] = {"width": width, "height": height, "logLevel": "WARN"}
        if test:
            config |= {"allowHoldOutLevels": "true", "mixerSeed": HELD_OUT_SEEDS}
        if level in NEEDS_PICTURES:
            if dataset_path is None or not (Path(dataset_path) / FIRST_PICTURE).is_file():
                _refuse(
                    level,
                    f"the option dataset_path with the pictures {FIRST_PICTURE} to 2400.png of Brady, Konkle and others (2008)",
                    repr(dataset_path),
                    "data/brady_konkle_oliva2008/README.md in Lab's repository says where to get them",
                )
            config["datasetPath"] = dataset_path
        self.observation_space: spaces.Space[Any] = picture_space((3, height, width), instruction=instructions)
        self.action_space = spaces.Discrete(actions)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": FRAMES_PER_SECOND // action_repeat}
        self.render_mode = render_mode
        self._action_repeat, self._instructions = action_repeat, instructions
        self._actions = np.array(ACTIONS[actions], np.intc)
        self._lab = lab.Lab(
            path,
            [PICTURE, INSTRUCTION] if instructions else [PICTURE],
            config={key: str(value) for key, value in config.items()},  # all as strings
            renderer=renderer,
            level_cache=None if level_cache is None else LevelCache(level_cache),
        )
        self._seen: dict[str, Any] = {PICTURE: np.zeros((height, width, 3), np.uint8)}

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
        reward = self._lab.step(self._actions[int(action)], num_steps=self._action_repeat)
        ended = not self._lab.is_running()
        return self._show() if ended else self._look(), float(reward), ended, False, {}

    def render(self) -> Any:
        return self._seen[PICTURE].copy()

    def close(self) -> None:
        self._lab.close()

    def _look(self) -> Picture:
        self._seen = self._lab.observations()
        return self._show()

    def _show(self) -> Picture:
        picture: Picture = self._seen[PICTURE].transpose(2, 0, 1)
        if self._instructions:
            return with_instruction(picture, self._seen[INSTRUCTION])
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
        try:
            shutil.copyfile(self._directory / Path(key).name, pk3_path)
        except FileNotFoundError:
            return False
        return True

    def write(self, key: str, pk3_path: str) -> None:
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
        advice = (
            "no package registry has it: clone github.com/google-deepmind/lab, build //python/pip_package:build_pip_package with bazel "
            "and install the wheel that it makes (docs/dmlab.md)"
        )
        _refuse(level, "the package deepmind_lab", f"{type(error).__name__}: {error}", advice)


def _refuse(level: str, expected: str, got: str, advice: str) -> NoReturn:
    raise EnvironmentRefused(f"dmlab/{level}: expected {expected}, got {got}; {advice}")
