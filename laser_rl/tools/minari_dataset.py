"""Whole episodes of a run's replay as a Minari dataset, exact.

Minari's own storage writes it, in a hidden folder beside the dataset's place, which is renamed when all of it is there.
"""

import importlib.metadata
import itertools
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces

from laser_rl import disk
from laser_rl.checkpoint import Loaded
from laser_rl.envs.masks import KEY
from laser_rl.envs.records import ActionSpec, BoxActions, DiscreteActions, EnvironmentSpec, ObservationSpec, Part
from laser_rl.errors import ConfigError, require_modules
from laser_rl.networks.build import family_of
from laser_rl.ops.distributions import Family
from laser_rl.tools.source import starts_in
from laser_rl.tools.whole_episodes import NO_SEED, EpisodeReader, WholeEpisode
from laser_rl.training.build import layout_of
from laser_rl.training.evaluate import chosen_member, newest, spec_in
from laser_rl.training.files import read_sweep
from laser_rl.types import Array

DATA_FILE = "main_data.hdf5"
BATCH = 64  # episodes that are handed over at once
CHUNK_BYTES = 1 << 20  # read and decompressed at once
GZIP_LEVEL = 1  # higher ones cost several times as long for a few per cent
WHOSE = ("member", "slot", "task", "episode")  # of an episode's fields, those that its metadata repeats


class Dataset(NamedTuple):
    """A dataset that was written."""

    path: Path
    episodes: int
    steps: int
    mean_return: float


def export_minari(
    run_dir: Path, dataset_id: str, *, member: str | int | None = None, out: Path | None = None
) -> Dataset:
    """Write the dataset NAMESPACE/NAME-vN out of the newest checkpoint: the episodes of all members of a sweep, or of one.

    `out` is the root of the datasets; None: Minari's own, MINARI_DATASETS_PATH or ~/.minari/datasets.
    """
    require_modules("a Minari dataset", "minari", "h5py", "minari")
    from minari.dataset.minari_dataset import parse_dataset_id  # noqa: PLC0415 - needs the extra

    try:
        parse_dataset_id(dataset_id)
    except (ValueError, TypeError):
        raise ConfigError(
            f"expected the name of a Minari dataset, NAMESPACE/NAME-vN such as laser/breakout/mixed-v0, got {dataset_id!r}"
        ) from None
    given = out or os.environ.get("MINARI_DATASETS_PATH")  # as Minari looks for it
    root = Path(given).absolute() if given else Path.home() / ".minari" / "datasets"
    number = None if member is None else chosen_member(run_dir, member)
    loaded, path = newest(run_dir, replay="salvage"), root / dataset_id
    if not loaded.segments:
        raise ConfigError(f"{run_dir} keeps no replay, expected one to export; train with --replay.fraction above 0")
    if path.exists():
        raise ConfigError(
            f"{path} is there already and is not overwritten; choose another version, such as -v1, or remove it "
            f"('minari delete {dataset_id}')"
        )
    disk.make_folder(path.parent)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as work:
        folder = Path(work) / "dataset"
        disk.make_folder(folder / "data")
        counts = _write(folder / "data", run_dir, loaded, number, dataset_id)
        _make_namespace(root, path)
        folder.replace(path)
        disk.sync_path(path.parent)
    return Dataset(path, *counts)


def _observations(seen: ObservationSpec) -> spaces.Box | spaces.Dict:
    """One Box, or a Dict of those of the parts, where a mask of actions is one more."""
    if not seen.parts:
        return _box(seen.shape, seen.dtype)
    mask = {KEY: spaces.Box(0, 1, (seen.mask,), np.uint8)} if seen.mask else {}
    return spaces.Dict([(_label(part), _box(part.shape, part.dtype)) for part in seen.parts] + list(mask.items()))


def _box(shape: tuple[int, ...], dtype: str) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8) if dtype == "uint8" else spaces.Box(-np.inf, np.inf, shape, np.float32)


def _label(part: Part) -> str:
    return part.key.replace("/", ".")  # a stroke would be a folder in the file


def _observed(seen: ObservationSpec, stored: Array) -> Any:
    if not seen.parts:
        return stored
    numbers = seen.numbers(stored)
    found = {_label(part): numbers[part.key].reshape(-1, *part.shape) for part in seen.parts}
    return {**found, **({KEY: stored[:, -seen.mask :]} if seen.mask else {})}


def _actions(action: ActionSpec) -> spaces.Box | spaces.Discrete | spaces.MultiDiscrete:
    if isinstance(action, DiscreteActions):
        return spaces.Discrete(action.count, start=action.start)
    if isinstance(action, BoxActions):
        return spaces.Box(np.array(action.low, np.float32), np.array(action.high, np.float32), dtype=np.float32)
    return spaces.MultiDiscrete(list(action.counts), start=list(action.starts) or None)


def _taken(spec: ActionSpec, family: Family, action: Array) -> Array:
    """From stored actions [T, ...] to those that the environment took: counted from its own start, or squashed into their bounds."""
    if not isinstance(spec, BoxActions):
        return np.asarray(np.asarray(action, np.int64) + np.array(starts_in(spec) or (0,)))
    squashed = family.to_environment(torch.from_numpy(np.ascontiguousarray(action))).numpy()
    return np.asarray(np.clip(squashed, np.array(spec.low, np.float32), np.array(spec.high, np.float32)))


def _write(folder: Path, run_dir: Path, loaded: Loaded, member: int | None, dataset_id: str) -> tuple[int, int, float]:
    """Episodes, and metadata: what Minari reads, and under `laser_rl` what its arrays mean. Returns episodes, steps and the mean return."""
    from minari.dataset.minari_storage import MinariStorage  # noqa: PLC0415 - needs the extra

    sweep, spec = read_sweep(run_dir), spec_in(loaded, member)
    config, family = sweep.base if member is None else sweep.configs[member], family_of(spec.action)
    layout, spaces_of = layout_of(spec, family, config), (_observations(spec.observation), _actions(spec.action))
    storage = MinariStorage.new(folder, *spaces_of, data_format="hdf5", jpeg_encoding=False)
    returns, waiting = list[float](), iter(EpisodeReader(run_dir, loaded, layout, member))
    while batch := list(itertools.islice(waiting, BATCH)):
        count = len(returns)
        _prepare(folder / DATA_FILE, count, batch)
        storage.update_episodes(_buffer(number, episode, spec, family) for number, episode in enumerate(batch, count))
        about = [
            {**{name: getattr(episode, name) for name in WHOSE}, "return": float(episode.reward.sum(dtype=np.float64))}
            for episode in batch
        ]
        storage.update_episode_metadata(about, range(count, count + len(batch)))
        returns += [one["return"] for one in about]
    if not returns:
        whose = "" if member is None else f" of member {member}"
        raise ConfigError(
            f"the replay of {run_dir} holds no whole episode{whose}: they are longer than what it keeps; "
            "train with a larger --replay.capacity-steps"
        )
    environment, mean = config.environment, float(np.mean(returns))
    storage.update_metadata({
        "dataset_id": dataset_id,
        "minari_version": importlib.metadata.version("minari"),
        "algorithm_name": "LASER",
        "description": f"Whole episodes of {environment.id} out of the replay of a LASER run, after "
        f"{loaded.step:,} steps: {len(returns):,} episodes, mean return {mean:.4g}.",
        "laser_rl": {
            "checkpoint_step": loaded.step,
            "members": "all" if member is None else [member],
            "environment": environment.id,
            "environment_options": environment.options,
            "tasks": list(spec.tasks),
            "frame_stack": layout.stack,
            "action_mask": spec.observation.mask,  # how many of the last numbers of an observation, unless it has a key of its own
            "behaviour": f"parameters of {family}, from which each action was drawn",
        },
    })  # fmt: skip
    disk.sync_path(folder / DATA_FILE)
    disk.sync_path(folder)
    return len(returns), storage.total_steps, mean


def _prepare(file: Path, first: int, batch: list[WholeEpisode]) -> None:
    """Empty compressed places for pictures, to which Minari appends.

    Its own are not compressed without JPEG, which is not exact: a million frames of Atari would be 7 GB instead of some 200 MB.
    """
    import h5py  # noqa: PLC0415 - needs the extra

    if batch[0].observation.dtype != np.uint8 or batch[0].observation.ndim < 3:  # noqa: PLR2004 - rows, and more than a vector
        return
    with h5py.File(file, "a", track_order=True) as opened:
        for number, episode in enumerate(batch, start=first):
            shape = episode.observation.shape[1:]
            rows = max(1, min(len(episode.observation), CHUNK_BYTES // max(1, episode.observation[0].nbytes)))
            opened.create_group(f"episode_{number}").create_dataset(
                "observations", (0, *shape), np.uint8, maxshape=(None, *shape), chunks=(rows, *shape),
                compression="gzip", compression_opts=GZIP_LEVEL,
            )  # fmt: skip


def _buffer(number: int, episode: WholeEpisode, spec: EnvironmentSpec, family: Family) -> Any:
    """Infos have T+1 rows, as Minari has them: row t stands beside observation t. No action answers the last one: NaN, and version -1."""
    from minari.data_collector import EpisodeBuffer  # noqa: PLC0415 - needs the extra

    infos: dict[str, Array] = {
        "behaviour": _followed(episode.behaviour, np.nan),
        "version": _followed(episode.version, -1),
        "lost_life": np.concatenate([[False], episode.lost_life.astype(bool)]),
    }
    if episode.action.dtype.kind == "f":
        infos["latent_action"] = _followed(episode.action, np.nan)
    return EpisodeBuffer(
        id=number,
        seed=None if episode.seed == NO_SEED else episode.seed,
        observations=_observed(spec.observation, episode.observation),
        actions=_taken(spec.action, family, episode.action),
        rewards=episode.reward,
        terminations=episode.terminated,
        truncations=episode.truncated,
        infos=infos,
    )


def _followed(array: Array, last: float) -> Array:
    return np.concatenate([array, np.full((1, *array.shape[1:]), last, array.dtype)])


def _make_namespace(root: Path, path: Path) -> None:
    """What Minari's own writer leaves in each folder above a dataset, so that it lists them."""
    from minari.namespace import NAMESPACE_METADATA_FILENAME  # noqa: PLC0415 - needs the extra

    for folder in itertools.takewhile(lambda folder: folder != root, path.parents):
        if not (folder / NAMESPACE_METADATA_FILENAME).exists():
            disk.write_json(folder / NAMESPACE_METADATA_FILENAME, {})
