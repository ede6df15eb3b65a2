"""ViZDoom's scenarios as Gymnasium environments; `doom/basic` names one.

Rewards are the scenario's own. An episode is a function of its seed and of the actions: the engine's random numbers begin anew with each.
"""

import contextlib
import difflib
import functools
import importlib
import inspect
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from laser_rl.envs.dmlab import ACTIONS, CONTROLS
from laser_rl.envs.instructions import picture_space, with_instruction
from laser_rl.errors import EnvironmentRefused, MissingExtra

Picture = NDArray[np.uint8]
TICS_PER_SECOND = 35
SEEDS = 2**31
NAMES = Path("/dev/shm/ViZDoom")  # noqa: S108 - how the names begin of the memory that engines share with us
MOST_STARTS = 1000  # of episodes, until one begins at the asked place: one in 17 does
# The button for a control's negative value and for its positive one, by Lab's names of controls.
BUTTONS = {
    "LOOK_LEFT_RIGHT_PIXELS_PER_FRAME": ("TURN_LEFT", "TURN_RIGHT"),
    "STRAFE_LEFT_RIGHT": ("MOVE_LEFT", "MOVE_RIGHT"),
    "MOVE_BACK_FORWARD": ("MOVE_BACKWARD", "MOVE_FORWARD"),
    "FIRE": ("", "ATTACK"),
}
# What each of IMPALA's nine actions presses; a button that a scenario does not have is not pressed.
PRESSED = tuple(
    frozenset(BUTTONS[name][value > 0] for name, value in zip(CONTROLS, controls, strict=True) if value)
    for controls in ACTIONS[9]
)
# Every player alone against the others, one of whom is the agent; -host 1 is a game without a network.
VERSUS = "-host 1 -deathmatch +sv_forcerespawn 1 +sv_respawnprotect 1 +sv_spawnfarthest 1 +viz_respawn_delay 1"


@dataclass(frozen=True)
class Scenario:
    """A configuration of ViZDoom's, or a variation of ours."""

    config: str
    start: tuple[float, float] | None = (
        None  # only episodes that begin there, of the places that the scenario draws from
    )
    bots: int = 0  # of ViZDoom's own; then the reward is one for a frag, and minus one for the agent's own death by its own hand


_OWN = (
    "basic", "rocket_basic", "deadly_corridor", "defend_the_center", "defend_the_line", "health_gathering",
    "health_gathering_supreme", "my_way_home", "predict_position", "take_cover", "deathmatch",
)  # fmt: skip
SCENARIOS = {name: Scenario(name) for name in _OWN} | {
    # Far from the vest: 1,270 and 1,540 units of way, where the scenario's own starts are 180 to 1,540 away (Pathak et al. 2017).
    "my_way_home_sparse": Scenario("my_way_home", start=(240, -176)),
    "my_way_home_very_sparse": Scenario("my_way_home", start=(543, -672)),
    "deathmatch_bots": Scenario("cig", bots=7),
}


def doom_constructor(name: str, options: Mapping[str, Any]) -> Callable[[], "DoomEnv"]:
    expected, got = "", ""
    if name not in SCENARIOS:
        expected, got = f"one of the scenarios {', '.join(SCENARIOS)}", repr(name)
    known = list(inspect.signature(DoomEnv).parameters)[1:]
    if unknown := sorted(set(options) - set(known)):
        expected, got = f"options among {', '.join(known)}", ", ".join(unknown)
    if expected:
        near = difflib.get_close_matches(name, SCENARIOS, n=1) or ["basic"]
        advice = "check the spelling" if name in SCENARIOS else f"did you mean doom/{near[0]}?"
        raise EnvironmentRefused(f"doom/{name}: expected {expected}, got {got}; {advice}")
    _load(name)
    return functools.partial(DoomEnv, name, **options)


class DoomEnv(gymnasium.Env[Picture, Any]):
    """One scenario, in a process of the engine's own; the keyword arguments are those of `environment.options` (docs/doom.md).

    A scenario's time limit truncates. The engine shows nothing after the end, so the final observation repeats the last picture before it.
    """

    def __init__(
        self,
        scenario: str,
        *,
        width: int = 96,
        height: int = 72,
        action_repeat: int = 4,
        instructions: bool = True,
        render_mode: str | None = None,
    ) -> None:
        self.vizdoom, self._scenario = _load(scenario), SCENARIOS[scenario]
        self.observation_space: spaces.Space[Any] = picture_space((3, height, width), instruction=instructions)
        self.action_space = spaces.Discrete(len(PRESSED))
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": TICS_PER_SECOND // action_repeat}
        self.render_mode = render_mode
        self._size, self._action_repeat, self._instructions = (width, height), action_repeat, instructions
        self.game = game = self.vizdoom.DoomGame()
        self._configure(game)
        names = [button.name for button in game.get_available_buttons()]
        self.actions = [[name in pressed for name in names] for pressed in PRESSED]
        self._variables = [variable.name for variable in game.get_available_game_variables()]
        self._screen, self.text = np.zeros((120, 160, 3), np.uint8), ""
        if not self._scenario.bots:
            self._start()

    def _configure(self, game: Any) -> None:
        vizdoom, scenario, package = self.vizdoom, self._scenario, Path(self.vizdoom.__file__).parent
        game.load_config(str(package / "scenarios" / f"{scenario.config}.cfg"))
        game.set_vizdoom_path(_launcher(str(package / "vizdoom"), os.getpid()))
        game.set_doom_config_path(os.devnull)  # else it reads and writes one in the working directory
        game.set_window_visible(False)
        game.set_screen_format(vizdoom.ScreenFormat.RGB24)
        game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
        game.set_mode(vizdoom.Mode.PLAYER)
        if scenario.bots:
            variable = vizdoom.GameVariable
            game.set_available_game_variables([variable.HEALTH, variable.ARMOR, variable.SELECTED_WEAPON_AMMO])
            game.add_game_args(f"{VERSUS} +viz_bots_path {package / 'bots.cfg'}")
            game.set_episode_timeout(2 * 60 * TICS_PER_SECOND)
            game.set_frag_reward(1.0)

    def _start(self) -> None:
        _forget_old_names()
        self.game.init()
        for line in Path("/proc/self/maps").read_text().splitlines():
            if str(NAMES) in line:  # both sides have it: without its name it ends with them, however they end
                Path(line[line.index(str(NAMES)) :]).unlink(missing_ok=True)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Picture, dict[str, Any]]:
        super().reset(seed=seed)
        chosen = int(self.np_random.integers(SEEDS)) if seed is None else seed % SEEDS
        if self._scenario.bots:
            self._begin_with_bots(chosen)
        elif self._scenario.start is None:
            self._begin(chosen)
        else:
            rng = np.random.default_rng(chosen)
            if not any(self._begin(int(rng.integers(SEEDS))) for _ in range(MOST_STARTS)):
                raise RuntimeError(f"none of {MOST_STARTS} episodes began at {self._scenario.start}")
        return self._look(), {}

    def _begin(self, seed: int) -> bool:
        """Begin an episode, and say whether it begins where it should."""
        game, variable = self.game, self.vizdoom.GameVariable
        game.set_seed(seed)
        game.new_episode()
        x, y = self._scenario.start or (0, 0)
        here = game.get_game_variable(variable.POSITION_X), game.get_game_variable(variable.POSITION_Y)
        return abs(here[0] - x) + abs(here[1] - y) < 4  # noqa: PLR2004 - units; places are a hundred apart

    def _begin_with_bots(self, seed: int) -> None:
        """In a new process: what bots do also depends on the episodes that an engine has played before."""
        self.game.close()
        self.game.set_seed(seed)
        self._start()
        for _ in range(self._scenario.bots):
            self.game.send_game_command("addbot")

    def step(self, action: Any) -> tuple[Picture, float, bool, bool, dict[str, Any]]:
        """Press the action's buttons for some tics; the reward is the sum over them."""
        game = self.game
        if self._scenario.bots and game.is_player_dead():
            game.respawn_player()
        reward = float(game.make_action(self.actions[int(action)], self._action_repeat))
        if not game.is_episode_finished():
            return self._look(), reward, False, False, {}
        truncated = bool(game.is_episode_timeout_reached())
        return self._show(), reward, not truncated, truncated, {}

    def render(self) -> Any:
        return self._screen.copy()

    def close(self) -> None:
        self.game.close()

    def _look(self) -> Picture:
        state = self.game.get_state()
        self._screen = state.screen_buffer
        if self._variables:
            values = zip(self._variables, state.game_variables, strict=True)
            self.text = " ".join(f"{name} {value:.0f}" for name, value in values)
        return self._show()

    def _show(self) -> Picture:
        from PIL import Image  # noqa: PLC0415 - other environments never need it

        small = Image.fromarray(self._screen).resize(self._size, Image.Resampling.BOX)
        picture = np.asarray(small).transpose(2, 0, 1)
        return with_instruction(picture, self.text) if self._instructions else np.ascontiguousarray(picture)


@functools.lru_cache
def _launcher(engine: str, parent: int) -> str:
    """A program without a name on any disk that starts the engine, tied to process `parent`.

    On its own an engine whose parent was killed waits for it for ever, and it makes a folder where it is started.
    """
    folder = Path(tempfile.gettempdir()) / f"laser-rl-vizdoom-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    code = (
        "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); "  # PR_SET_PDEATHSIG, SIGKILL
        f"os.getppid() == {parent} or sys.exit(1); os.chdir(sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])"
    )
    words = shlex.join([sys.executable, "-ISc", code, str(folder), engine])
    handle = os.memfd_create("laser-rl-vizdoom", 0)
    os.write(handle, f'#!/bin/sh\nexec {words} "$@"\n'.encode())
    os.fchmod(handle, 0o700)
    return f"/proc/{parent}/fd/{handle}"


def _forget_old_names() -> None:
    """Remove what engines that were killed while they started have left; a minute after its start no engine needs its names."""
    for path in NAMES.parent.glob(f"{NAMES.name}*"):
        with contextlib.suppress(OSError):  # another's, or another process was faster
            if time.time() - path.stat().st_mtime > 60:  # noqa: PLR2004 - seconds
                path.unlink()


def _load(scenario: str) -> Any:
    try:
        return importlib.import_module("vizdoom")
    except ImportError as error:
        raise MissingExtra(f"doom/{scenario}", "doom") from error
