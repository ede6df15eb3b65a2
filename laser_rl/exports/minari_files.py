"""Episodes as HDF5, in the layout that Minari documents (`Dataset standards`), and with lossless compression of pictures.

Minari's own writer does not compress without JPEG, which is not exact: a million frames of Atari would be 7 GB instead of some 200 MB.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from laser_rl.checkpoint import atomic
from laser_rl.exports.minari_spaces import Spaces, environment_actions
from laser_rl.exports.whole_episodes import NO_SEED, Place, Whole
from laser_rl.ops.distributions import Family
from laser_rl.types import Array

if TYPE_CHECKING:
    import h5py

MAIN_FILE = "main_data.hdf5"
_CHUNK_BYTES = 1 << 20  # read and decompressed at once
_LEVEL = 1  # of gzip: higher ones cost several times as long for a few per cent


class Totals(NamedTuple):
    """Of a dataset."""

    episodes: int
    steps: int
    mean_return: float


def write_shard(
    path: Path, first: int, episodes: Iterable[tuple[Place, Whole]], family: Family, spaces: Spaces
) -> None:
    """Some episodes, numbered from `first`, in a file of their own; it is there whole or not at all."""
    import h5py  # noqa: PLC0415 - needs the extra

    with atomic.whole(path) as temporary, h5py.File(temporary, "w") as file:
        for number, (place, rows) in enumerate(episodes, start=first):
            _write_episode(file.create_group(f"episode_{number}"), number, place, rows, family, spaces)


def join_shards(path: Path, shards: Iterable[Path]) -> Iterator[int]:
    """All shards as one file, as they are on disk: nothing is decompressed. Yields how many episodes are there."""
    import h5py  # noqa: PLC0415

    count = 0
    with h5py.File(path, "w") as joined:
        for shard in shards:
            with h5py.File(shard, "r") as file:
                for name in sorted(file, key=_number):
                    file.copy(name, joined)
                    count += 1
            yield count
    atomic.sync_file(path)


def totals_of(shards: Iterable[Path]) -> Totals:
    """From what each episode says of itself."""
    import h5py  # noqa: PLC0415

    steps, returns = 0, []
    for shard in shards:
        with h5py.File(shard, "r") as file:
            for group in file.values():
                steps += int(group.attrs["total_steps"])
                returns.append(float(group.attrs["return"]))
    return Totals(len(returns), steps, float(np.mean(returns)) if returns else float("nan"))


def _write_episode(group: "h5py.Group", number: int, place: Place, rows: Whole, family: Family, spaces: Spaces) -> None:
    attributes: dict[str, Any] = {"id": number, "total_steps": place.steps, "member": place.member, "slot": place.slot}
    attributes |= {"task": place.task, "episode": place.episode, "return": float(rows.reward.astype(np.float64).sum())}
    if place.seed != NO_SEED:
        attributes["seed"] = place.seed
    group.attrs.update(attributes)
    _write(group, "observations", rows.observation)
    _write(group, "actions", environment_actions(family, spaces.action, rows.action))
    for name, array in (("rewards", rows.reward), ("terminations", rows.terminated), ("truncations", rows.truncated)):
        _write(group, name, array)
    for name, array in _infos(rows).items():
        _write(group.require_group("infos"), name, array)


def _infos(rows: Whole) -> dict[str, Array]:
    """T+1 rows, as Minari has them: row t stands beside observation t. No action answers the last one: NaN, and version -1."""
    infos: dict[str, Array] = {
        "behaviour": _followed(rows.behaviour, np.nan),
        "version": _followed(rows.version, -1),
        "lost_life": np.concatenate([[False], rows.lost_life.astype(bool)]),
    }
    if rows.action.dtype.kind == "f":
        infos["latent_action"] = _followed(rows.action, np.nan)
    return infos


def _followed(array: Array, last: float) -> Array:
    return np.concatenate([array, np.full((1, *array.shape[1:]), last, array.dtype)])


def _write(group: "h5py.Group", name: str, array: Array) -> None:
    picture = array.dtype == np.uint8 and array.ndim > 2  # noqa: PLR2004 - rows, and more than a vector
    if not picture:
        group.create_dataset(name, data=array)
        return
    rows = max(1, min(len(array), _CHUNK_BYTES // max(1, array[0].nbytes)))
    group.create_dataset(name, data=array, chunks=(rows, *array.shape[1:]), compression="gzip", compression_opts=_LEVEL)


def _number(name: str) -> int:
    return int(name.removeprefix("episode_"))
