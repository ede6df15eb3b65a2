"""From a choice of parts to a network, and from a user's module to a torso."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from laser_rl.config import NetworkConfig
from laser_rl.envs.records import ActionSpec, BoxActions, DiscreteActions, EnvironmentSpec, ObservationSpec
from laser_rl.errors import ConfigError
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.networks.heads import PixelControlHead
from laser_rl.networks.recurrent import build_memory
from laser_rl.networks.torso import INSTRUCTIONS, LastStep, ObservationNormaliser, PartTorsos, build_torso, part_torso
from laser_rl.ops.distributions import Categorical, Family, MultiCategorical
from laser_rl.ops.gaussian import DiagonalGaussian

Shapes = dict[str, tuple[int, ...]]  # of the parts of an observation
# A user's torso: a module, or a function of the observation's shape (stack included; a dict of parts has one of shapes) that makes one.
TorsoSource = nn.Module | Callable[[Any], nn.Module]


def family_of(action: ActionSpec) -> Family:
    if isinstance(action, DiscreteActions):
        return Categorical(action.count)
    if isinstance(action, BoxActions):
        return DiagonalGaussian(action.low, action.high)
    return MultiCategorical(action.counts)


def stacked_shape(observation: ObservationSpec, stack: int) -> tuple[int, ...]:
    """What the network sees of an observation: pictures are stacked along their channels. A mask is not counted."""
    if stack == 1:
        return (*observation.shape[:-1], observation.shape[-1] - observation.mask)
    if observation.parts:
        raise ConfigError(
            f"frame_stack is {stack}, but only a picture alone is stacked, and these observations have the parts "
            f"{', '.join(part.key for part in observation.parts)}{' and a mask' if observation.mask else ''}; set it to 1, and stack in "
            "the environment if you need to (gymnasium.wrappers.FrameStackObservation)"
        )
    if not observation.is_image:
        raise ConfigError(f"frame_stack is {stack}, but observations {observation.shape} are no pictures; set it to 1")
    return (stack * observation.shape[0], *observation.shape[1:])


def build_network(
    spec: EnvironmentSpec,
    config: NetworkConfig,
    *,
    torso: TorsoSource | None = None,
    stack: int = 1,
    popart: bool = False,
    pixel_control_cell: int = 0,
) -> AgentNetwork:
    """A network for an environment, from our parts or a user's torso; `pixel_control_cell` 0 leaves that head out."""
    shape = stacked_shape(spec.observation, stack)
    if config.normalise_observation and spec.observation.pictures:
        raise ConfigError(f"network.normalise_observation is for vectors, {spec.name} has pictures; leave it out")
    words, instruction, parts = spec.observation.words, None, spec.observation.parts
    if words:
        shape = (shape[0], shape[1] - 1, shape[2])
        instruction = INSTRUCTIONS[config.instruction](words, spec.observation.shape[0])

    def make() -> nn.Module:
        if not parts:
            return build_torso(config, shape) if torso is None else users_torso(torso, shape)
        shapes = {part.key: part.shape for part in parts}
        if torso is not None:
            return users_torso(torso, shapes)
        return PartTorsos({key: part_torso(config, own) for key, own in shapes.items()}, config.hidden[-1])

    own, last = make(), LastStep(spec.action, blind=not config.last_step)
    features = int(own.features) + (instruction.features if instruction else 0)  # type: ignore[arg-type]
    memory = build_memory(config.memory, features, last.features, config.memory_size, config.memory_span)
    return AgentNetwork(
        own,
        parameter_size=family_of(spec.action).parameter_size,
        memory=memory,
        last=last if config.memory != "none" else None,
        instruction=instruction,
        value_torso=make() if config.separate_value else None,
        normaliser=ObservationNormaliser(shape) if config.normalise_observation else None,
        popart_tasks=max(1, len(spec.tasks)) if popart else 0,
        pixel_control=_pixel_control(spec, memory.features, pixel_control_cell) if pixel_control_cell else None,
        observation=spec.observation,
        bf16=config.precision == "bf16",
        normalise_features=config.normalise_features,
    )


def _pixel_control(spec: EnvironmentSpec, features: int, cell: int) -> PixelControlHead:
    if not spec.observation.is_image or not isinstance(spec.action, DiscreteActions):
        raise ConfigError(
            f"PixelControl needs pictures and one choice among actions, {spec.name} has observations "
            f"{spec.observation.shape} and {spec.action}; set loss.pixel_control_cost to 0"
        )
    channels, height, width = spec.observation.shape
    picture = (channels, height - (spec.observation.words > 0), width)
    if min(picture[1:]) < cell:
        raise ConfigError(f"pictures of {picture[1:]} have no cell of {cell}×{cell}; set loss.pixel_control_cell lower")
    return PixelControlHead(features, spec.action.count, picture, cell)


def users_torso(source: TorsoSource, shape: tuple[int, ...] | Shapes) -> nn.Module:
    """A user's module, tried once on two observations: it must answer with one vector of features each."""
    module = source if isinstance(source, nn.Module) else source(shape)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"net returned {type(module).__name__}, expected a torch.nn.Module")
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    parts = shape if isinstance(shape, dict) else {"": shape}
    zeros = {key: torch.zeros(2, *own, device=device) for key, own in parts.items()}
    said = {key: tuple(tensor.shape) for key, tensor in zeros.items()} if isinstance(shape, dict) else (2, *shape)
    try:
        with torch.no_grad():
            answer = module(zeros if isinstance(shape, dict) else zeros[""])
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"net failed on observations of shape {said}: {error}") from error
    if not isinstance(answer, torch.Tensor) or answer.ndim != 2 or len(answer) != 2:  # noqa: PLR2004
        got = tuple(answer.shape) if isinstance(answer, torch.Tensor) else type(answer).__name__
        raise ConfigError(f"net maps observations {said} to {got}, expected features of shape (2, F)")
    module.features = answer.shape[1]  # type: ignore[assignment]
    return module


def parameter_count(network: nn.Module) -> int:
    return sum(math.prod(p.shape) for p in network.parameters())
