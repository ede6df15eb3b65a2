"""Our own tasks as environments: all slots in one set of arrays, exact state."""

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from laser_rl.envs.puzzles import Convention, KeyDoor, SparseGrid
from laser_rl.envs.records import DiscreteActions, Environments, Rows, seed_of
from laser_rl.envs.tasks import Catch, DeepSea, Ints, Task, TMaze
from laser_rl.errors import ConfigError, EnvironmentRefused

Array = NDArray[np.generic]
PIXELS_PER_CELL = 16


class TaskEnvironments(Environments):
    """A task in `slots` copies."""

    def __init__(self, task: Task, *, slots: int, seed: int) -> None:
        self._task, self._seed = task, seed
        self.spec, self.slots = task.spec, slots
        self.optimal_return, self.random_return = task.optimal_return, task.random_return
        everywhere = np.arange(slots)
        self._episode, self._started = np.zeros(slots, np.int64), False
        self._episode_seed = seed_of(seed, everywhere, self._episode)
        self._positions: dict[str, Ints] = dict(task.begin(self._episode_seed))
        # The outcome that led to the current row of each slot; part of the state, so that `load_state_dict` can give it again.
        self._reward = np.zeros(slots, np.float32)
        self._first, self._terminated, self._truncated = (
            np.ones(slots, np.bool_),
            np.zeros(slots, np.bool_),
            np.zeros(slots, np.bool_),
        )

    def reset(self) -> Rows:
        """Start every slot."""
        return self._rows(np.arange(self.slots))

    def step(self, slots: NDArray[np.int64], action: Array) -> Rows:
        """One row for each of `slots`."""
        ended = self._terminated[slots] | self._truncated[slots]
        self._first[slots] = ended
        going, chosen = slots, action
        if ended.any():
            going, chosen = slots[~ended], action[~ended]
            self._begin(slots[ended])
        before = {name: values[going] for name, values in self._positions.items()}
        outcome = self._task.advance(before, chosen.astype(np.int64, copy=False))
        for name, values in outcome.positions.items():
            self._positions[name][going] = values
        self._reward[going], self._terminated[going], self._truncated[going] = outcome[1:]
        return self._rows(slots)

    def _begin(self, slots: NDArray[np.int64]) -> None:
        self._episode[slots] += 1
        self._episode_seed[slots] = seed_of(self._seed, slots, self._episode[slots])
        for name, values in self._task.begin(self._episode_seed[slots]).items():
            self._positions[name][slots] = values
        self._reward[slots] = 0
        self._terminated[slots] = self._truncated[slots] = False

    def _rows(self, slots: NDArray[np.int64]) -> Rows:
        observation = self._task.observe({name: values[slots] for name, values in self._positions.items()})
        nothing = np.zeros(slots.size, np.bool_)
        ended = self._terminated[slots], self._truncated[slots]
        whose = self._episode[slots], self._episode_seed[slots]
        return Rows(
            slots, observation, self._first[slots], self._reward[slots], *ended, nothing, nothing.copy(), *whose
        )

    def state_dict(self) -> Mapping[str, Array]:
        """Everything, exactly."""
        parts = {name: values.copy() for name, values in self._kept().items()}
        return {**parts, **{f"position.{name}": values.copy() for name, values in self._positions.items()}}

    def load_state_dict(self, state: Mapping[str, Array]) -> Rows:
        """Go on exactly there."""
        if len(state["episode"]) != self.slots:
            raise ConfigError(
                f"expected the state of {self.slots} environment slots, got {len(state['episode'])}; "
                "resume with the number of slots that the run was started with"
            )
        for name, values in self._kept().items():
            values[:] = state[name]
        for name, positions in self._positions.items():
            positions[:] = state[f"position.{name}"]
        return self._rows(np.arange(self.slots))

    def _kept(self) -> dict[str, NDArray[Any]]:
        return {
            "episode": self._episode,
            "seed": self._episode_seed,
            "reward": self._reward,
            "first": self._first,
            "terminated": self._terminated,
            "truncated": self._truncated,
        }

    def close(self) -> None:
        """Nothing is open."""


class TaskEnv(gymnasium.Env[NDArray[Any], Any]):
    """A task as a Gymnasium environment with pixels to look at, for videos and for other people's tools."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012  (Gymnasium's own way)
    render_mode = "rgb_array"

    def __init__(self, task: Task) -> None:
        self._task, spec = task, task.spec
        assert isinstance(spec.action, DiscreteActions)  # noqa: S101  (all our tasks are)
        self.action_space = gymnasium.spaces.Discrete(spec.action.count)
        self.observation_space = gymnasium.spaces.Box(
            0, round(1 / spec.observation.scale), spec.observation.shape, np.dtype(spec.observation.dtype).type
        )
        self._positions = task.begin(np.zeros(1, np.int64))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """The episode of `seed`; a random one without."""
        super().reset(seed=seed)
        chosen = int(self.np_random.integers(2**31)) if seed is None else seed
        self._positions = self._task.begin(np.array([chosen]))
        return self._task.observe(self._positions)[0], {}

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """One step."""
        self._positions, reward, terminated, truncated = self._task.advance(self._positions, np.array([action]))
        return self._task.observe(self._positions)[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def render(self) -> NDArray[np.uint8]:
        """The board, large enough to see."""
        board = self._task.draw(self._positions)[..., np.newaxis]
        pixels = (np.array([250, 200, 60]) * board + np.array([24, 28, 48]) * (1 - board)).astype(np.uint8)
        return pixels.repeat(PIXELS_PER_CELL, axis=0).repeat(PIXELS_PER_CELL, axis=1)


def task_of(name: str, options: Mapping[str, Any]) -> Task:
    """The task with an id like `laser/DeepSea-10`.

    >>> task_of("laser/TMaze-5", {}).length
    5
    """
    kind, _, size = name.removeprefix("laser/").partition("-")
    unsized: dict[str, Callable[..., Task]] = {"Catch": Catch, "Convention": Convention}
    sized: dict[str, Callable[..., Task]] = {
        "DeepSea": DeepSea,
        "TMaze": TMaze,
        "KeyDoor": KeyDoor,
        "SparseGrid": SparseGrid,
    }
    make = sized.get(kind) or unsized.get(kind)
    if make is None or (size and (kind in unsized or not size.isdecimal())):
        raise EnvironmentRefused(
            "expected laser/Catch, laser/Convention, laser/DeepSea-<size>, laser/KeyDoor-<size>, laser/SparseGrid-<size> or "
            f"laser/TMaze-<length>, got {name!r}; e.g. laser/DeepSea-10"
        )
    try:
        return make(*([int(size)] if size else []), **options)
    except TypeError as error:
        raise ConfigError(f"{name}: {error}; leave that option out") from error
