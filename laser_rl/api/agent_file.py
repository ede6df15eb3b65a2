"""The file of one agent: a network with its spaces and settings and, if asked for, a whole checkpoint to go on learning from.

The checkpoint is that of a run directory, file by file: each becomes a tensor of bytes beside those of the network. So a saved agent goes
on just as a resumed run does, and the manifest's SHA-256 cover every byte.
"""

import json
import re
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch

from laser_rl import checkpoint
from laser_rl.agent.parameters import load_network
from laser_rl.config import override, validated
from laser_rl.envs.records import read_spec
from laser_rl.errors import ConfigError, DamagedRun
from laser_rl.networks.build import TorsoSource
from laser_rl.training.build import device_of, seeded_network, threads_of
from laser_rl.training.directory import RunDirectory
from laser_rl.training.evaluate import AGENT_FORMAT, Trained, require_finite
from laser_rl.training.saving import NoSpace
from laser_rl.training.trainer import Trainer

_UNREADABLE = (safetensors.SafetensorError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
_PART = re.compile(
    rf"run/((?:{checkpoint.CHECKPOINTS}/step-\d{{12,18}}|{checkpoint.REPLAY})/[A-Za-z0-9][\w.-]{{0,199}})"
)


class AgentFile:
    """A file of `LASER.save`, open for reading: it may be replaced or removed meanwhile. Nothing that it names is imported."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise ConfigError(f"{path} is not there; LASER.save writes such a file")
        try:
            file: Any = safetensors.safe_open(path, "pt")
            self._file, self._about, self._names = file, file.metadata() or {}, list(file.keys())
        except _UNREADABLE as error:
            raise self._refused(error) from None
        if (found := self._about.get("format")) != AGENT_FORMAT:
            raise ConfigError(f"{path} has format {found}, expected {AGENT_FORMAT}; please upgrade laser-rl")
        self.parts = [name for name in self._names if name.startswith("run/")]  # empty: learning cannot go on from it

    def trained(self, net: TorsoSource | None, device: str) -> Trained:
        """The agent, to play with; no environment is opened."""
        try:
            values, spec = json.loads(self._about["config"]), read_spec(self._about["spec"].encode())
            tensors = {name: self._file.get_tensor(name) for name in self._names if name not in self.parts}
            steps = int(self._about["steps"])
        except _UNREADABLE as error:
            raise self._refused(error) from None
        # It may have been trained on a device that is not here.
        config = override(validated(values), {"run.device": device, "run.devices": 1})
        network = seeded_network(config, spec, net).to(device_of(config.run.device))
        load_network(network, tensors)
        require_finite(self.path, network)
        torch.set_num_threads(threads_of(config, network))
        return Trained(network, config, spec, config.environment.id, max(0, steps))

    def restore(self, trainer: Trainer) -> bool:
        """Go on where the saved agent stood, as a resumed run does."""
        with (
            tempfile.TemporaryDirectory(prefix="laser-load-") as folder,
            closing(RunDirectory(Path(folder), trainer.settings)) as directory,
        ):
            for name in self.parts:
                match = _PART.fullmatch(name)
                if match is None:
                    raise ConfigError(f"{self.path} is no file of LASER.save: it holds {name!r}")
                target = Path(folder, match[1])
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(self._file.get_tensor(name).numpy().tobytes())
            try:
                return directory.restore(trainer)
            except DamagedRun as error:
                said = " ".join(str(error).replace(f"{folder}/", "").split())
                raise DamagedRun(
                    f"{self.path} cannot go on learning, expected a whole checkpoint in it: {said}; use an earlier copy, or begin with its "
                    "weights: LASER.load(path, warm_start=True)"
                ) from None

    def _refused(self, error: Exception) -> ConfigError:
        return ConfigError(f"{self.path} is no file of LASER.save: {type(error).__name__}: {error}")


def save_with_replay(trained: Trained, trainer: Trainer, path: Path) -> Path:
    """Write the file of an agent with all that it needs to go on: optimiser, replay, counters, random numbers, open episodes."""
    # Beside the file: that disk has to have the space anyway.
    with tempfile.TemporaryDirectory(prefix=".laser-save-", dir=path.absolute().parent) as folder:
        with closing(RunDirectory(Path(folder), trainer.settings)) as directory:
            try:
                written = directory.save(trainer, aside=False).result()
            except NoSpace as error:
                raise ConfigError(f"save: no space for {path} ({error.__cause__}); free some and save again") from None
        files = [*written.iterdir(), *Path(folder).glob(f"{checkpoint.REPLAY}/*")]
        more = {f"run/{one.relative_to(folder)}": torch.from_numpy(np.fromfile(one, np.uint8)) for one in sorted(files)}
        return trained.save(path, more)
