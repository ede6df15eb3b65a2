"""A module with the interface of `deepmind_lab` as its documentation and its source describe it, and a very small world behind it.

As strict as the original about types, order of calls and held-out levels, so that an adapter that gets along with it has kept to the
contract. A player walks on a ring of cells and turns; every pixel depends on the episode's seed, the frame, where it is and all it did.
"""

import shutil
import tempfile
import zlib
from pathlib import Path

import numpy as np

from laser_rl.envs.dmlab import TRAINED

ACTION_SPEC = [
    ("LOOK_LEFT_RIGHT_PIXELS_PER_FRAME", -512, 512),
    ("LOOK_DOWN_UP_PIXELS_PER_FRAME", -512, 512),
    ("STRAFE_LEFT_RIGHT", -1, 1),
    ("MOVE_BACK_FORWARD", -1, 1),
    ("FIRE", 0, 1),
    ("JUMP", 0, 1),
    ("CROUCH", 0, 1),
]
FOLDER = "contributed/dmlab30/"
KNOWN = {FOLDER + name for name in TRAINED} | {"tests/empty_room_test"}
SHOWS_PHOTOGRAPHS = ("psychlab_arbitrary_visuomotor_mapping", "psychlab_continuous_recognition")
CLOSED, UNINITIALISED, RUNNING, ENDED = range(4)
made = []  # every Lab of this process, for tests to look at


def episode_frames(seed):
    """Mostly no multiple of four: an episode may end while an action is being repeated."""
    return 90 + seed % 31


def instruction(seed, frame):
    """It changes in the middle of an episode."""
    shape = ("hat", "car", "balloon")[seed % 3]
    return f"Pick the {'red' if frame < 40 else 'blue'} {shape}!"


class Lab:
    def __init__(self, level, observations, config=None, renderer="software", level_cache=None):
        self._status = CLOSED
        config = {} if config is None else config
        if type(observations) is not list or type(config) is not dict:
            raise TypeError("observations must be list, config must be dict")
        if not all(type(text) is str for pair in config.items() for text in pair):
            raise TypeError("config must be of str")
        if renderer not in {"hardware", "software"}:
            raise RuntimeError(f"Failed to set renderer must be 'hardware' or 'software' actual {renderer!r}!")
        if level not in KNOWN:
            raise RuntimeError(f"Invalid levelName flag {level!r}")
        if level.endswith("_test") and level.startswith(FOLDER) and config.get("allowHoldOutLevels") != "true":
            raise RuntimeError("This level must only be used during evaluation.")
        if level.removeprefix(FOLDER) in SHOWS_PHOTOGRAPHS and not config.get("datasetPath"):
            raise RuntimeError("Follow instructions to download datasets")
        for name in observations:
            if name not in {"RGB_INTERLEAVED", "INSTR"}:
                raise ValueError(f"Unknown observation {name!r}.")
        self.level, self.config, self.renderer, self.names = level, config, renderer, observations
        self._size = int(config.get("height", 240)), int(config.get("width", 320))
        self._cache, self._mixer = level_cache, int(config.get("mixerSeed", 0))
        self._temporary = tempfile.mkdtemp() if level_cache is not None else None
        self._extra = [("SELECT_GADGET", 0, 10)] if config.get("gadgetSelect") == "true" else []
        self._status, self._episode = UNINITIALISED, 0
        self.resets, self.compiled = [], 0
        made.append(self)

    def reset(self, episode=-1, seed=None):
        if seed is not None and type(seed) is not int:
            raise ValueError(f"'seed' must be int or None, was {type(seed).__name__!r}.")
        self._episode = episode if episode >= 0 else self._episode
        self.resets.append((self._episode, seed))
        seed = 0 if seed is None else seed
        if not 0 <= seed < 2**31:
            raise OverflowError("the original cuts it silently")
        # The number of the episode matters: whoever counts on it cannot rebuild an episode.
        self._seed = zlib.crc32(f"{self.level} {seed} {self._mixer} {self._episode}".encode())
        self._fetch_map(f"maze_noaas_{self._seed % 2:032x}")
        self._episode += 1
        self._frame = self._cell = self._yaw = self._memory = 0
        self._status = RUNNING
        return True

    def _fetch_map(self, key):
        if self._cache is None:
            return
        path = Path(self._temporary) / "map.pk3"
        path.unlink(missing_ok=True)
        if not self._cache.fetch(key, str(path)):
            self.compiled += 1
            path.write_bytes(key.encode() * 1000)
            self._cache.write(key, str(path))
        assert path.read_bytes() == key.encode() * 1000

    def step(self, action, num_steps=1):
        if not self.is_running():
            raise RuntimeError("Environment in wrong status to advance.")
        if not isinstance(action, np.ndarray) or action.shape != (len(self.action_spec()),):
            raise ValueError(f"action must have shape ({len(self.action_spec())})")
        if action.dtype != np.intc:
            raise ValueError("action must have dtype np.intc")
        reward = 0.0
        for _ in range(num_steps):
            reward += self._advance(action)
            if self._frame == episode_frames(self._seed):
                self._status = ENDED
                break
        return reward

    def _advance(self, action):
        self._frame += 1
        self._cell = (self._cell + int(action[3]) + 3 * int(action[2])) % 64
        self._yaw += int(action[0])
        self._memory = zlib.crc32(action.tobytes(), self._memory)
        return 0.25 * self._cell - 3.0 * int(action[4])

    def observations(self):
        if not self.is_running():
            raise RuntimeError("Environment in wrong status for call to observations()")
        values = {"RGB_INTERLEAVED": self._picture(), "INSTR": self._instruction()}
        return {name: values[name] for name in self.names}

    def _picture(self):
        state = zlib.crc32(f"{self._seed} {self._frame} {self._cell} {self._yaw} {self._memory}".encode())
        height, width = self._size
        pixels = (np.arange(height * width * 3, dtype=np.uint32) * 2_654_435_761 + state) >> 24
        return pixels.astype(np.uint8).reshape(height, width, 3)

    def _instruction(self):
        return instruction(self._seed, self._frame) if "language" in self.level else ""

    def is_running(self):
        return self._status == RUNNING

    def num_steps(self):
        return self._frame

    def action_spec(self):
        return [{"name": name, "min": low, "max": high} for name, low, high in ACTION_SPEC + self._extra]

    def observation_spec(self):
        return [
            {"name": "RGB_INTERLEAVED", "shape": (*self._size, 3), "dtype": np.uint8},
            {"name": "INSTR", "shape": (), "dtype": str},
        ]

    def close(self):
        was_open, self._status = self._status != CLOSED, CLOSED
        if was_open and self._temporary is not None:
            shutil.rmtree(self._temporary)
        return was_open
