"""ViZDoom's scenarios as Gymnasium environments, `doom/basic`; an episode is a function of its seed and of the actions."""

import contextlib
import functools
import importlib
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from laser_rl.envs.dmlab import SEEDS, Picture, refuse_options
from laser_rl.envs.instructions import picture_space, with_instruction
from laser_rl.envs.scores import read_table
from laser_rl.errors import EnvironmentRefused, require_modules, suggestion

# ViZDoom's own. With a start, only episodes that begin there (my_way_home: 1,270 and 1,540 units from the vest); with bots, a frag pays 1.
SCENARIOS = {row["scenario"]: row for row in read_table("doom_scenarios.csv")}
NAMES = Path("/dev/shm/ViZDoom")  # noqa: S108 - how the names begin of the memory that engines share with us
# One host: there is no network.
VERSUS = "-host 1 -deathmatch +sv_forcerespawn 1 +sv_respawnprotect 1 +sv_spawnfarthest 1 +viz_respawn_delay 1"
# What each of DMLab's nine actions presses; a button that a scenario does not have is not pressed.
PRESSED = (
    {"MOVE_FORWARD"}, {"MOVE_BACKWARD"}, {"MOVE_LEFT"}, {"MOVE_RIGHT"}, {"TURN_LEFT"}, {"TURN_RIGHT"}, {"MOVE_FORWARD", "TURN_LEFT"},
    {"MOVE_FORWARD", "TURN_RIGHT"}, {"ATTACK"},
)  # fmt: skip


def doom_constructor(name: str, options: Mapping[str, Any]) -> Callable[[], "DoomEnv"]:
    if name not in SCENARIOS:
        raise EnvironmentRefused(f"there is no scenario doom/{name}; {suggestion(name, list(SCENARIOS))}")
    refuse_options(f"doom/{name}", DoomEnv, options)
    require_modules(f"doom/{name}", "doom", "vizdoom")
    return functools.partial(DoomEnv, name, **options)


class DoomEnv(gymnasium.Env[Picture, Any]):
    """One scenario, in an engine's process (docs/doom.md). After the end the engine shows nothing: the last picture is repeated."""

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
        self.vizdoom: Any = importlib.import_module("vizdoom")
        row = SCENARIOS[scenario]
        self.observation_space: spaces.Space[Any] = picture_space((3, height, width), instruction=instructions)
        self.action_space = spaces.Discrete(len(PRESSED))
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 35 // action_repeat}
        self.render_mode = render_mode
        self._size, self._action_repeat, self._instructions = (width, height), action_repeat, instructions
        self._place, self._bots = [float(number) for number in row["start"].split()], int(row["bots"])
        self.game = game = self.vizdoom.DoomGame()
        self._configure(game, row["config"])
        names = [button.name for button in game.get_available_buttons()]
        self.actions = [[name in pressed for name in names] for pressed in PRESSED]
        self._variables = [variable.name for variable in game.get_available_game_variables()]
        self._screen, self.text = np.zeros((120, 160, 3), np.uint8), ""
        self._start()

    def _configure(self, game: Any, config: str) -> None:
        vizdoom, package = self.vizdoom, Path(self.vizdoom.__file__).parent
        game.load_config(str(package / "scenarios" / f"{config}.cfg"))
        game.set_vizdoom_path(_launcher(str(package / "vizdoom"), os.getpid()))
        game.set_doom_config_path(os.devnull)  # else it reads and writes one in the working directory
        game.set_window_visible(False)
        game.set_screen_format(vizdoom.ScreenFormat.RGB24)
        game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
        game.set_mode(vizdoom.Mode.PLAYER)
        if self._bots:
            shown = ("HEALTH", "ARMOR", "SELECTED_WEAPON_AMMO")
            game.set_available_game_variables([getattr(vizdoom.GameVariable, name) for name in shown])
            game.add_game_args(f"{VERSUS} +viz_bots_path {package / 'bots.cfg'}")
            game.set_episode_timeout(2 * 60 * 35)
            game.set_frag_reward(1.0)

    def _start(self) -> None:
        for path in NAMES.parent.glob(f"{NAMES.name}*"):  # of engines that were killed while they started, a minute ago
            with contextlib.suppress(OSError):  # another's, or another process was faster
                if time.time() - path.stat().st_mtime > 60:  # noqa: PLR2004 - seconds
                    path.unlink()
        self.game.init()
        for line in Path("/proc/self/maps").read_text().splitlines():
            if str(NAMES) in line:  # both sides have it: without its name it ends with them, however they end
                Path(line[line.index(str(NAMES)) :]).unlink(missing_ok=True)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Picture, dict[str, Any]]:
        super().reset(seed=seed)
        chosen = int(self.np_random.integers(SEEDS)) if seed is None else seed % SEEDS
        if self._bots:  # in a new process: what bots do also depends on the episodes that an engine has played before
            self.game.close()
            self.game.set_seed(chosen)
            self._start()
            for _ in range(self._bots):
                self.game.send_game_command("addbot")
        else:
            rng = np.random.default_rng(chosen)
            while not self._begin(chosen):  # where it has to be at one place, one in 17 is
                chosen = int(rng.integers(SEEDS))
        return self._look(), {}

    def _begin(self, seed: int) -> bool:
        """Begin an episode, and say whether it begins where it should."""
        self.game.set_seed(seed)
        self.game.new_episode()
        here = [self.game.get_game_variable(getattr(self.vizdoom.GameVariable, f"POSITION_{axis}")) for axis in "XY"]
        return all(abs(x - asked) < 2 for x, asked in zip(here, self._place, strict=False))  # noqa: PLR2004

    def step(self, action: Any) -> tuple[Picture, float, bool, bool, dict[str, Any]]:
        """Press the action's buttons for some tics; the reward is the sum over them."""
        game = self.game
        if self._bots and game.is_player_dead():
            game.respawn_player()
        reward = float(game.make_action(self.actions[int(action)], self._action_repeat))
        ended, truncated = bool(game.is_episode_finished()), bool(game.is_episode_timeout_reached())
        return self._show() if ended else self._look(), reward, ended and not truncated, truncated, {}

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

        picture = np.asarray(Image.fromarray(self._screen).resize(self._size, Image.Resampling.BOX)).transpose(2, 0, 1)
        return with_instruction(picture, self.text) if self._instructions else np.ascontiguousarray(picture)


@functools.lru_cache
def _launcher(engine: str, parent: int) -> str:
    """A program in memory that starts the engine, which alone outlives a killed parent and makes a folder where it is started."""
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
