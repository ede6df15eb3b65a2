"""The file of one agent: network, spaces and configuration, as safetensors and JSON."""

import json
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from laser_rl.agent.parameters import load_network
from laser_rl.config import Config, override, validated
from laser_rl.disk import write_bytes
from laser_rl.envs.records import EnvironmentSpec, read_spec, write_spec
from laser_rl.errors import ConfigError
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.networks.build import TorsoSource
from laser_rl.training.build import EnvironmentSource, device_of, seeded_network, threads_of
from laser_rl.training.evaluate import Trained, require_finite

FORMAT = "1"


@dataclass(frozen=True)
class Saved:
    """What a file of `LASER.save` says of itself; its tensors are read when they are needed."""

    path: Path
    config: Config
    steps: int
    spec: EnvironmentSpec

    def tensors(self) -> dict[str, torch.Tensor]:
        """The parameters, not yet compared with any network."""
        try:
            return safetensors.torch.load_file(self.path)
        except (safetensors.SafetensorError, OSError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(f"{self.path} is no file of LASER.save: {error}") from None

    def trained(self, config: Config, source: EnvironmentSource, torso: TorsoSource | None) -> Trained:
        """The agent, to play with; its environment is not opened."""
        network = seeded_network(config, self.spec, torso).to(device_of(config.run.device))
        load_network(network, self.tensors())
        require_finite(self.path, network)
        torch.set_num_threads(threads_of(config, network))
        return Trained(network, config, self.spec, source, self.steps)


def save_network(path: str | Path, network: AgentNetwork, config: Config, steps: int, spec: EnvironmentSpec) -> Path:
    """A network, its spaces and its configuration in one safetensors file, for `LASER.load`."""
    if not Path(path).absolute().parent.is_dir():
        raise ConfigError(
            f"save: expected a file in a folder that is there, got {path}; make {Path(path).parent} first"
        )
    values = config.model_dump_json()
    about = {"format": FORMAT, "config": values, "steps": str(steps), "spec": write_spec(spec).decode()}
    dense = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    try:
        write_bytes(Path(path), safetensors.torch.save(dense, metadata=about))
    except (IsADirectoryError, NotADirectoryError, PermissionError) as error:
        raise ConfigError(f"save: {path} cannot be written ({error.strerror}); choose another file") from error
    return Path(path)


def read_saved(path: Path) -> Saved:
    """What a file of `LASER.save` says; nothing that it names is imported."""
    if not path.is_file():
        raise ConfigError(f"{path} is not there; LASER.save writes such a file")
    try:
        with safetensors.safe_open(path, "pt") as file:
            about = file.metadata() or {}
    except safetensors.SafetensorError as error:
        raise ConfigError(f"{path} is no file of LASER.save: {error}") from None
    if about.get("format") != FORMAT:
        raise ConfigError(f"{path} has format {about.get('format')}, expected {FORMAT}; please upgrade laser-rl")
    try:
        values, steps, spec = json.loads(about["config"]), int(about["steps"]), read_spec(about["spec"].encode())
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{path} is no file of LASER.save: what it says of itself cannot be read: {what}") from None
    # It may have been trained on a device that is not here.
    config = override(validated(values), {"run.device": "auto", "run.devices": 1})
    return Saved(path, config, max(0, steps), spec)
