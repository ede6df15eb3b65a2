"""Whole episodes of a run's replay as a Minari dataset: exact, and resumable.

Episodes are written in shards, each a file that is there whole or not at all, in a hidden folder beside the dataset's place. Whoever
starts the same export again goes on after the last shard. At the end the shards become one file, and the folder is renamed.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from laser_rl import checkpoint
from laser_rl.checkpoint import Loaded, RunLock, atomic
from laser_rl.config import Config
from laser_rl.errors import ConfigError, MissingExtra
from laser_rl.exports.minari_files import MAIN_FILE, Totals, join_shards, totals_of, write_shard
from laser_rl.exports.minari_spaces import Spaces, spaces_of
from laser_rl.exports.source import command, config_of, config_sha256, manifest_sha256, starts_in, versions
from laser_rl.exports.whole_episodes import EpisodeReader, Place, unrolls_in
from laser_rl.networks.build import family_of
from laser_rl.ops.distributions import Family
from laser_rl.runtime.build import layout_of
from laser_rl.runtime.evaluate import chosen_member, spec_in
from laser_rl.runtime.files import command_for
from laser_rl.types import UnrollLayout

PLAN = "plan.json"
SHARD_BYTES = 64 << 20  # of observations before compression: what a killed export loses at most
FORMAT = 1


class Progress(NamedTuple):
    """How far an export is."""

    doing: str
    done: int
    total: int
    unit: str


@dataclass(frozen=True)
class _Parts:
    """What is needed to read and to write, without a network."""

    loaded: Loaded
    config: Config
    layout: UnrollLayout
    family: Family
    tasks: tuple[str, ...]
    spaces: Spaces


class MinariExport:
    """One dataset out of one checkpoint.

    Args:
        run_dir: of a run or of a sweep.
        dataset_id: NAMESPACE/NAME-vN; the namespace may have several parts, or be left out.
        member: only the episodes of this member of a sweep; None: everybody's.
        out: the root of the datasets; None: Minari's own, MINARI_DATASETS_PATH or ~/.minari/datasets.

    Iterate over `run()`; then `path` and `totals` say what there is.
    """

    def __init__(
        self, run_dir: Path, dataset_id: str, *, member: str | int | None = None, out: Path | None = None
    ) -> None:
        require_extra()
        self._run_dir, self._id, self._namespace = run_dir, dataset_id, _namespace_of(dataset_id)
        self._root = _root(out)
        self._member = None if member is None else chosen_member(run_dir, member)
        self.path = self._root / dataset_id
        self._work = self.path.with_name(f".{self.path.name}.unfinished")
        self.totals: Totals | None = None
        self.resumed_shards = 0

    def run(self) -> Iterator[Progress]:
        """Do it, and say how far it is; ends at once if the same dataset is there already."""
        parts = self._parts()
        plan = self._plan(parts)
        if self.path.exists():
            self.totals = self._require_same(plan)
            return
        with contextlib.ExitStack() as held:
            atomic.make_folder(self._work)
            held.enter_context(_lock(self._work))
            self._settle(plan)
            reader = EpisodeReader(self._run_dir, parts.loaded, parts.layout, self._member)
            places = yield from _indexed(reader, parts.loaded)
            if not places:
                raise ConfigError(_nothing(self._run_dir, self._member))
            shards = yield from self._write(reader, places, parts)
            yield from self._finish(shards, plan, parts)
        shutil.rmtree(self._work, ignore_errors=True)

    def _parts(self) -> _Parts:
        loaded = checkpoint.latest(self._run_dir, replay="salvage")
        if loaded is None:
            raise ConfigError(
                f"{self._run_dir} holds no checkpoint yet; '{command_for('resume', self._run_dir)}' goes on until it does"
            )
        if not loaded.segments:
            raise ConfigError(
                f"{self._run_dir} keeps no replay, expected one to export; train with --replay.fraction above 0"
            )
        config = config_of(self._run_dir, self._member)
        spec = spec_in(loaded, self._member)
        family = family_of(spec.action)
        layout = layout_of(spec, family, config)
        spaces = spaces_of(config.environment, layout, family, starts_in(spec.action))
        return _Parts(loaded, config, layout, family, spec.tasks, spaces)

    def _plan(self, parts: _Parts) -> dict[str, Any]:
        """What has to be the same for an export to go on, or for a dataset to be the one that is asked for."""
        return {
            "format": FORMAT,
            "dataset_id": self._id,
            "checkpoint_step": parts.loaded.step,
            "manifest_sha256": manifest_sha256(parts.loaded.path),
            "members": "all" if self._member is None else [self._member],
            "shard_bytes": SHARD_BYTES,
            "versions": versions("minari", "h5py"),
        }

    def _require_same(self, plan: dict[str, Any]) -> Totals:
        from minari.dataset.minari_storage import MinariStorage  # noqa: PLC0415 - needs the extra

        try:
            found = MinariStorage.read_raw_metadata(self.path / "data")
        except (ValueError, OSError):
            found = {}
        ours = found.get("laser_rl", {})
        if any(ours.get(name) != plan[name] for name in ("manifest_sha256", "members")):
            raise ConfigError(
                f"{self.path} is there already and is of another source; choose another version, such as -v1, "
                f"or remove it ('minari delete {self._id}')"
            )
        return Totals(found["total_episodes"], found["total_steps"], ours["mean_return"])

    def _settle(self, plan: dict[str, Any]) -> None:
        """Keep the shards of the same plan, throw away those of another."""
        file = self._work / PLAN
        with contextlib.suppress(OSError, ValueError):
            if json.loads(file.read_text()) == plan:
                return
        for path in self._work.iterdir():
            if path.name.startswith(("shard-", ".shard-")):
                path.unlink()
        atomic.write_json(file, plan)

    def _write(
        self, reader: EpisodeReader, places: list[Place], parts: _Parts
    ) -> Generator[Progress, None, list[Path]]:
        """Shard by shard; returns their files."""
        for path in self._work.glob(f".shard-*{atomic.TEMPORARY}"):  # of one that was killed
            path.unlink()
        shards, done = [], 0
        for number, own in enumerate(_shards(places, parts.layout)):
            path = self._work / f"shard-{number:06d}.hdf5"
            if path.exists():
                self.resumed_shards += 1
            else:
                episodes = ((place, reader.read(place)) for place in own)
                write_shard(path, done, episodes, parts.family, parts.spaces)
            shards.append(path)
            done += len(own)
            yield Progress("writing", done, len(places), "episodes")
        return shards

    def _finish(self, shards: list[Path], plan: dict[str, Any], parts: _Parts) -> Iterator[Progress]:
        from minari.dataset.minari_storage import MinariStorage  # noqa: PLC0415

        folder = self._work / "dataset"
        shutil.rmtree(folder, ignore_errors=True)  # of one that was killed
        atomic.make_folder(folder / "data")
        spaces, totals = parts.spaces, totals_of(shards)
        storage = MinariStorage.new(
            folder / "data", spaces.observation, spaces.action, spaces.env, data_format="hdf5", jpeg_encoding=False
        )
        for count in join_shards(folder / "data" / MAIN_FILE, shards):
            yield Progress("joining", count, totals.episodes, "episodes")
        storage.update_metadata(self._metadata(plan, parts, totals))
        storage.update_metadata({"dataset_size": float(storage.get_size())})
        atomic.sync_folder(folder / "data")
        _make_namespace(self._root, self._namespace)
        folder.replace(self.path)
        atomic.sync_folder(self.path.parent)
        self.totals = totals

    def _metadata(self, plan: dict[str, Any], parts: _Parts, totals: Totals) -> dict[str, Any]:
        environment = parts.config.environment
        ours = {
            **{name: plan[name] for name in ("checkpoint_step", "manifest_sha256", "members", "versions")},
            "command": command(),
            "config_sha256": config_sha256(parts.config),
            "environment": environment.id,
            "environment_options": environment.options,
            "environment_settings": environment.atari.model_dump(mode="json"),
            "tasks": list(parts.tasks),
            "frame_stack": parts.layout.stack,
            "observations": "single frames as the environment gives them after laser-rl's wrappers, each once; "
            f"agents saw {parts.layout.stack} of them stacked",
            "behaviour": f"parameters of {parts.family}, from which each action was drawn",
            "mean_return": totals.mean_return,
        }
        return {
            "dataset_id": self._id,
            "minari_version": plan["versions"]["minari"],
            "algorithm_name": "LASER",
            "description": f"Whole episodes of {environment.id} out of the replay of a LASER run, after "
            f"{parts.loaded.step:,} steps: {totals.episodes:,} episodes, mean return {totals.mean_return:.4g}.",
            "total_episodes": totals.episodes,
            "total_steps": totals.steps,
            "laser_rl": ours,
        }


def require_extra() -> None:
    """Before any work is done."""
    try:
        import h5py  # noqa: F401, PLC0415
        import minari  # noqa: F401, PLC0415
    except ImportError as error:
        raise MissingExtra("a Minari dataset", "minari") from error


def _indexed(reader: EpisodeReader, loaded: Loaded) -> Generator[Progress, None, list[Place]]:
    total, done, places = unrolls_in(loaded.segments), 0, list[Place]()
    for count, found in reader.index():
        places += found
        done += count
        yield Progress("reading", done, total, "unrolls")
    return places


def _shards(places: list[Place], layout: UnrollLayout) -> Iterator[list[Place]]:
    """By the size of their observations; an episode is never cut."""
    row = int(np.prod(layout.observation_shape, dtype=np.int64)) * np.dtype(layout.observation_dtype).itemsize
    shard, size = list[Place](), 0
    for place in places:
        shard.append(place)
        size += (place.steps + 1) * row
        if size >= SHARD_BYTES:
            yield shard
            shard, size = [], 0
    if shard:
        yield shard


def _namespace_of(dataset_id: str) -> str | None:
    from minari.dataset.minari_dataset import parse_dataset_id  # noqa: PLC0415

    try:
        namespace: str | None = parse_dataset_id(dataset_id)[0]
    except (ValueError, TypeError):
        raise ConfigError(
            f"expected the name of a Minari dataset, NAMESPACE/NAME-vN such as laser/breakout/mixed-v0, got {dataset_id!r}"
        ) from None
    return namespace


def _root(out: Path | None) -> Path:
    if out is not None:
        return out.absolute()
    given = os.environ.get("MINARI_DATASETS_PATH")  # as Minari looks for it
    return Path(given).absolute() if given else Path.home() / ".minari" / "datasets"


def _lock(folder: Path) -> RunLock:
    try:
        return RunLock(folder)
    except ConfigError as error:
        raise ConfigError(f"another export is writing this dataset: {error}") from None


def _make_namespace(root: Path, namespace: str | None) -> None:
    """What Minari's own writer leaves in each folder above a dataset, so that it lists them."""
    from minari.namespace import NAMESPACE_METADATA_FILENAME  # noqa: PLC0415

    parts = namespace.split("/") if namespace else []
    for depth in range(1, len(parts) + 1):
        file = root.joinpath(*parts[:depth]) / NAMESPACE_METADATA_FILENAME
        if not file.exists():
            atomic.write_json(file, {})


def _nothing(run_dir: Path, member: int | None) -> str:
    whose = "" if member is None else f" of member {member}"
    return (
        f"the replay of {run_dir} holds no whole episode{whose}: they are longer than what it keeps; "
        "train with a larger --replay.capacity-steps"
    )
