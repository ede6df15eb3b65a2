"""The acting policy: from observations to actions and the distribution that they were drawn from."""

import logging
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.ops import checks
from laser_rl.ops.distributions import FORBIDDEN, Categorical, Family
from laser_rl.types import Array, Inputs, UnrollLayout

if TYPE_CHECKING:
    from laser_rl.cuda.staged import Staged  # a run on a CPU never imports it

MOST_PRODUCTS = 2**17  # of a layer at once: from twice as many on NumPy's library starts threads of its own
TINY = np.finfo(np.float32).tiny
log = logging.getLogger("laser_rl.agent")


class Seen(NamedTuple):
    """The newest row of n environments; for a network with a memory also what that reads, and the memory before it."""

    observation: Array  # [n, ...], stacked as the network expects it
    is_first: NDArray[np.bool_] = np.zeros(0, np.bool_)
    last_action: Array = np.zeros(0)  # as stored
    last_reward: Array = np.zeros(0)
    state: Array = np.zeros(0)  # [n, S], the memory before this row


class Decision(NamedTuple):
    """Actions for n environments."""

    action: Array  # as stored
    behaviour: NDArray[np.float32]  # [n, P]
    environment_action: Array
    state: Array | None = None  # [n, S], the memory after this row


class Policy:
    """A network, a family and a stream of random numbers.

    On a GPU everything is launched on the current stream of the calling thread. Where that thread also learns, acting thus sees the
    newest parameters; where it only acts, give it a stream of its own (`gpu_streams.own_stream`). The network's parameters may move
    between two calls. `deterministic` takes the mode instead of a sample.
    """

    def __init__(self, network: AgentNetwork, family: Family, *, seed: int, deterministic: bool = False) -> None:
        self.network, self.family, self.deterministic = network, family, deterministic
        self.device = next(network.parameters()).device
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self._tensors = [*network.parameters(), *network.buffers()]
        self._staged: Staged | None = None
        host = self.device.type == "cpu" and isinstance(family, Categorical) and network.dense
        plain = host and network.normaliser is None and not network.mask and self._tensors[0].dtype == torch.float32
        hidden = [layer for layer in network.torso.modules() if isinstance(layer, nn.Linear)]
        self._layers = [*hidden, network.policy_head] if plain else []
        self._views: list[tuple[NDArray[np.float32], NDArray[np.float32]]] = []
        self._seen_at: tuple[int, ...] = ()
        self._most_rows = MOST_PRODUCTS // max((layer.weight.numel() for layer in self._layers), default=1)
        self._noise = torch.empty(0)
        if self.device.type == "cuda":
            from laser_rl.cuda import staged  # noqa: PLC0415 - a run on a CPU never imports it

            self._staged = staged.Staged(
                self._decide, self.device, generator=self.generator, graphs=self.capturable, addresses=self._addresses
            )

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can be made of it: no torso is a user's, which may look at values."""
        torsos = [torso for torso in (self.network.torso, self.network.value_torso) if torso is not None]
        return all(type(torso).__module__.startswith("laser_rl.") for torso in torsos)

    def act(self, rows: Seen, envs: NDArray[np.int64] | None = None) -> Decision:
        if self._layers and (decision := self._act_by_numpy(rows.observation)) is not None:
            return decision
        parts = rows if self.network.state_size else rows[:1]  # without a memory nothing else is read
        if self._staged is not None:
            return Decision(*self._staged(parts))
        with torch.inference_mode():
            results = self._decide([torch.from_numpy(part).to(self.device) for part in parts])
            return Decision(*(result.cpu().numpy() for result in results))

    def _act_by_numpy(self, observation: Array) -> Decision | None:
        """The same as `_decide` in a third of its time, for a few rows; None for many, or where the logits are not finite."""
        if (addresses := self._addresses()) != self._seen_at:  # views of the memory where the parameters lie now
            self._views = [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in self._layers]
            self._seen_at = addresses
        if len(observation) > self._most_rows:
            return None
        x = observation.reshape(len(observation), -1).astype(np.float32, copy=False)
        x = x if self.network.scale == 1.0 else x * np.float32(self.network.scale)
        for weight, bias in self._views[:-1]:
            x = np.tanh(x @ weight + bias)
        weight, bias = self._views[-1]
        logits = x @ weight + bias
        if not math.isfinite(logits.sum()):
            return None
        score = logits
        if not self.deterministic:
            if self._noise.shape != logits.shape:
                self._noise = torch.empty(logits.shape)
            noise = self._noise.exponential_(generator=self.generator).numpy()
            score = logits - np.log(np.maximum(noise, TINY))
        action = score.argmax(-1)
        return Decision(action, logits, action)

    def _decide(self, parts: list[Tensor]) -> list[Tensor]:
        with checks.unchecked():
            if self.network.state_size:
                *rows, state = parts
                output, states = self.network(Inputs(*(part.unsqueeze(0) for part in rows)), state)
                behaviour, memory = output.policy[0], [finite(states[-1])]
            else:
                behaviour, memory = self.network.policy(*parts), []
            return [*choose(self.family, behaviour, self.generator, deterministic=self.deterministic), *memory]

    def _addresses(self) -> tuple[int, ...]:
        return tuple(tensor.data_ptr() for tensor in self._tensors)


def choose(
    family: Family, behaviour: Tensor, generator: torch.Generator, *, deterministic: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """From a policy's parameters [n, P]: actions as stored, the parameters that they were drawn from, the environment's actions.

    A network that has diverged answers with NaN. Then the parameters are taken to be 0 (a uniform choice, a standard normal) but for
    actions that are forbidden: what is stored is what the action was drawn from, nothing non-finite reaches the replay, and the learner has
    time to roll back.
    """
    behaviour = behaviour.float()
    # To look would wait for a GPU, and an exported network has no host that looks.
    if torch.compiler.is_compiling() or behaviour.is_cuda or not math.isfinite(behaviour.detach().sum()):
        broken = ~behaviour.isfinite().all(-1, keepdim=True)
        behaviour = torch.where(broken & (behaviour != FORBIDDEN), 0.0, behaviour)
    action = family.mode(behaviour) if deterministic else family.sample(behaviour, generator)
    return action, behaviour, family.to_environment(action)


def channels(frames: Array) -> Array:
    """What the network sees of frames [n, stack, ...]: [n, stack · C, H, W] for pictures, the observation itself if there is no stack."""
    return frames[:, 0] if frames.shape[1] == 1 else frames.reshape(len(frames), -1, *frames.shape[3:])


def finite(state: Tensor) -> Tensor:
    """A memory's state with zeros in rows that are not finite: a diverged state is not carried on and never reaches the replay."""
    return torch.where(state.isfinite().all(-1, keepdim=True), state, 0.0)


def restore_generator(generator: torch.Generator, state: Tensor) -> None:
    """Go on with the same random numbers; log a warning on another kind of device, where that is impossible."""
    try:
        generator.set_state(state.cpu())
    except RuntimeError:
        log.warning("the run goes on on another kind of device: its random numbers start anew")


class Memento(NamedTuple):
    """What `act_once` needs of the past of n episodes."""

    frames: Array  # [n, stack, ...], the newest ones
    memory: Array  # [n, S]
    last_action: Array  # [n, ...], as stored

    @classmethod
    def blank(cls, layout: UnrollLayout, count: int) -> "Memento":
        return cls(
            np.zeros((count, layout.stack, *layout.observation_shape), layout.observation_dtype),
            np.zeros((count, layout.state_size), np.float32),
            np.zeros((count, *layout.action_shape), layout.action_dtype),
        )


def act_once(
    policy: Policy,
    layout: UnrollLayout,
    observation: Array,
    reward: Array,
    is_first: NDArray[np.bool_],
    before: Memento | None = None,
) -> tuple[Array, Memento]:
    """The environments' actions for one observation each, [n, ...] as stored, and what to hand in with the next ones."""
    before = before or Memento.blank(layout, len(observation))
    frames = np.concatenate([before.frames[:, 1:], observation[:, np.newaxis].astype(before.frames.dtype)], axis=1)
    frames[is_first, :-1] = 0
    last = before.last_action.copy()
    last[is_first] = 0
    decision = policy.act(Seen(channels(frames), is_first, last, reward, before.memory))
    memory = before.memory if decision.state is None else decision.state
    return decision.environment_action, Memento(frames, memory, decision.action)
