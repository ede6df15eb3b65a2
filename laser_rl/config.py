"""The configuration: frozen values, built by a recipe, changed by flags or a file, kept in the run directory as it was used.

Units stand in the field names. Parts of the program receive values, or a section at most.
"""

import difflib
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo

from laser_rl.errors import THEIRS, ConfigError, called_here, shortened

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
CountOrNone = Annotated[int, Field(ge=0)]
_FUNCTION = re.compile(r"[\w.]+:\w+")  # module:function


class Frozen(BaseModel):
    """Unknown names are refused and nothing can be changed after validation."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def auto_slots(slots: Any = "auto") -> Any:
    """Environments that keep emulators on all cores at work while the policy decides, or the given number."""
    return min(256, 16 * len(os.sched_getaffinity(0))) if slots == "auto" else slots


class AtariConfig(Frozen):
    """Only read for Atari games."""

    most_noops: CountOrNone = 37
    """Largest number of no-ops at the start of an episode."""
    sticky_actions: Share = 0.0
    """Probability that an action is repeated instead of the chosen one."""
    full_action_space: bool = False
    """All 18 actions instead of those that the game uses."""
    most_frames: Count = 108_000
    """Longest episode, in emulator frames; its end is a truncation."""
    threads: CountOrNone = 0
    """Threads of the emulator, or processes of each of the two groups that take turns in `local`; 0: one a core."""


class EnvironmentConfig(Frozen):
    """What is played, and where."""

    id: str = "CartPole-v1"
    """A Gymnasium id, laser/Catch, laser/DeepSea-10, laser/KeyDoor-6, ALE/Pong-v5, MinAtar/Breakout-v1, MiniGrid-Unlock-v0 or
    module:callable; several with commas between them, or a suite: suite:grid."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the environment."""
    slots: Annotated[Count, BeforeValidator(auto_slots)] = 8
    """How many environments are stepped side by side; auto: 16 a core, at most 256, which keeps emulators busy while the policy decides. A
    run keeps the number that it began with."""
    placement: Literal["auto", "thread", "process"] = "auto"
    """In this thread, or in supervised processes; auto: Atari in `local` in processes, all else in this thread."""
    workers: CountOrNone = 0
    """Processes; 0: one a core, of Atari in `local` two."""
    frame_stack: Count = 1
    """Frames that the network sees at once; pictures only."""
    step_timeout_s: Positive = 60.0
    """A worker that takes longer for a step is replaced."""
    reset_timeout_s: Positive = 60.0
    """A worker that takes longer for a reset is replaced."""
    on_bad_value: Literal["fail", "drop"] = "fail"
    """NaN or infinity from the environment: stop, or discard the episode."""
    atari: AtariConfig = AtariConfig()


class NetworkConfig(Frozen):
    """Torso, memory and heads are independent choices."""

    torso: Literal["auto", "mlp", "cnn", "tiles", "impala"] = "auto"
    """auto: mlp for vectors, cnn for small pictures, impala for large ones; tiles for pictures made of 4x4 tiles."""
    hidden: tuple[int, ...] = (64, 64)
    """Layers of the mlp; the last one is also the layer after the convolutions of cnn and tiles."""
    channels: int = 16
    """Filters of cnn and tiles."""
    width: Count = 1
    """Multiplies the filters of impala: the paper's large network is 4."""
    memory: Literal["none", "lstm", "gru", "preco"] = "none"
    """What is carried from row to row. preco: predictor-corrector LSTM. Switches off a recipe's separate_value, which would not see it."""
    memory_size: Count = 256
    """Units of the memory."""
    last_step: bool = True
    """A memory also reads the last action and the last reward."""
    instruction: Literal["lstm", "embedding"] = "lstm"
    """How the words of an instruction become features: read by an LSTM, or each embedded at its place. Alike where there are no words."""
    memory_span: CountOrNone = 0
    """How many rows the units of a new memory last, from 1 to this; 0: a few. For what must be kept for longer than an unroll."""
    separate_value: bool = False
    """A torso of its own for the value."""
    normalise_observation: bool = False
    """Vectors only: each number less its running mean, by its running standard deviation, within ±10. What is stored stays raw."""
    normalise_features: bool = False
    """What the torso finds less its mean, by its standard deviation over the features: pictures that are much alike saturate a memory."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Arithmetic of the torso."""


class ReplayConfig(Frozen):
    """The mixture of every batch, and what is kept."""

    fraction: Share = 0.875
    """Share of replayed unrolls in every batch: the nearest whole number of them, and at least one of each kind, but for 0 and 1."""
    capacity_steps: Count = 100_000
    """Environment steps that are kept, of all members together; oldest unrolls leave first."""
    codec: Literal["auto", "raw", "zstd"] = "auto"
    """auto: pictures compressed, everything else raw."""
    budget_gb: Positive | None = None
    """Also leave when compressed observations exceed this."""
    warmup_steps: CountOrNone = 0
    """Steps in the replay before the first update."""
    state: Literal["refresh", "stored", "zero"] = "refresh"
    """With a memory, where a replayed unroll's state comes from: episodes replayed from their first row by the parameters that learn; or,
    for comparison, unrolls drawn at random with the state that the actor had, or with none."""
    burn_in_steps: CountOrNone = 0
    """With stored or zero states: the first rows of a replayed unroll only warm the memory up."""
    sampling: Literal["uniform", "prioritised"] = "uniform"
    """prioritised: by the critic's loss; with a memory only for stored or zero states."""
    priority_exponent: Annotated[float, Field(ge=0)] = 0.6
    """How strongly priorities count; 0 is uniform."""
    importance_exponent: Share = 1.0
    """How much of that bias the losses' weights correct; 1: all."""
    priority_uniform_share: Share = 0.1
    """Share of the draws that is uniform, so that no priority goes stale for ever."""
    start_from: str | None = None
    """Begin with the replay of this run directory, of a run or of a sweep."""

    @property
    def budget_bytes(self) -> int | None:
        """The budget in bytes, if there is one."""
        return None if self.budget_gb is None else int(self.budget_gb * 1e9)


class LossConfig(Frozen):
    """Algorithm 1's constants."""

    discount: Share = 0.99
    """How much a reward counts one step earlier."""
    unroll_steps: Count = 20
    """T: an unroll has T steps and T+1 observations."""
    batch_unrolls: Count = 8
    """Unrolls in a batch, online and replayed together."""
    new_unrolls_per_update: CountOrNone = 0
    """New unrolls between two updates; 0: as many as are online in a batch (1 if none is)."""
    trust: str = "implied"
    """Relevance: implied, KL(pi || implied policy); behaviour, KL(pi || mu); off, every row is trusted; or module:function, of your own."""
    trust_bound: Positive | None = None
    """Rows with a larger relevance are rejected; none: 0.1."""
    target_acceptance: Share | None = None
    """Adapt the bound to keep this share of the replayed steps."""
    returns: Literal["vtrace", "importance"] = "vtrace"
    """The trusted return: of V-trace, clipped, or of importance sampling, unbiased and of unbounded variance. Relevance stays the same."""
    clip_rho: Positive = 1.0
    clip_c: Positive = 1.0
    baseline_cost: Annotated[float, Field(ge=0)] = 0.5
    """Weight of the value's loss."""
    entropy_cost: Annotated[float, Field(ge=0)] = 0.01
    """Weight of the entropy, of learnable online rows only. For the same effect: cost with sum = cost with mean / online share; 8 times
    at 1 online of 8."""
    reduction: Literal["sum", "mean"] = "mean"
    """Over batch and time: the sum, as the paper's learning rates assume, or the mean, of each term over its own rows: policy and value
    over the learnable rows, the entropy over the learnable online rows."""
    reward_scale: Positive = 1.0
    reward_transform: Literal["none", "clip", "dmlab"] = "none"
    """After scaling. Raw rewards are what is stored and reported."""
    popart: bool = False
    """Values and advantages in units of each task's own returns."""
    popart_step: Annotated[float, Field(gt=0, le=1)] = 3e-4
    """How far a task's statistics move on each target."""
    pixel_control_cost: Annotated[float, Field(ge=0)] = 0.0
    """Weight of PixelControl, learning to change the picture; 0 leaves it out. 0.01 to 0.1 is what has been published."""
    pixel_control_cell: Count = 4
    """Pixels of a cell's side."""
    pixel_control_discount: Share = 0.9
    life_loss_ends_discount: bool = False
    """The loss of a life has discount 0; the episode goes on."""

    @property
    def bound(self) -> float:
        """The threshold, or its default; infinite if everything is trusted."""
        if self.trust == "off":
            return math.inf
        # For KL(pi, implied) from our own sweep over it (docs/results/sharing); for KL(pi, mu), which is larger, from a prototype.
        return self.trust_bound or 0.1

    @model_validator(mode="after")
    def _consistent(self) -> "LossConfig":
        if self.trust not in {"implied", "behaviour", "off"} and not _FUNCTION.fullmatch(self.trust):
            raise ValueError(f"trust is {shortened(self.trust)}: expected implied, behaviour, off or module:function")
        if self.clip_rho < self.clip_c:
            raise ValueError(f"clip_rho ({self.clip_rho}) is below clip_c ({self.clip_c}); raise it or lower clip_c")
        if self.trust == "off" and self.target_acceptance:
            raise ValueError("trust is off, so target_acceptance means nothing; leave it out")
        return self


class OptimiserConfig(Frozen):
    """How a gradient becomes a step."""

    kind: Literal["rmsprop", "adam"] = "adam"
    """rmsprop is TensorFlow 1's: epsilon inside the root, mean square starting at 1."""
    learning_rate: Positive = 2e-3
    """Size of a step, before the schedule."""
    schedule: str = "constant"
    """constant; linear: to 0 over all steps of the run, or over its budget of time if that is used up first; or module:function, of your
    own: from the share of the run that remains, 1 to 0, to a factor of the rate."""
    decay: Share = 0.99
    """rmsprop only."""
    momentum: Share = 0.0
    """rmsprop only."""
    epsilon: Positive | None = None
    """none: 0.01 for rmsprop, 1e-8 for adam."""
    clip_gradient_norm: Positive | None = None

    @property
    def added(self) -> float:
        """ε, with its default by kind."""
        return self.epsilon or {"rmsprop": 0.01, "adam": 1e-8}[self.kind]

    @field_validator("schedule")
    @classmethod
    def _known(cls, schedule: str) -> str:
        if schedule not in {"constant", "linear"} and not _FUNCTION.fullmatch(schedule):
            raise ValueError(f"{shortened(schedule)} is no schedule: expected constant, linear or module:function")
        return schedule


class RunConfig(Frozen):
    """How long, how fast, what is written."""

    steps: Count = 100_000
    """Environment steps of the run, all slots together."""
    budget_minutes: Positive | None = None
    """Fits a run to a time: it ends in good order after so many minutes of training, all its sessions together, if its steps are not done
    before. In a sweep for all members at once."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Of everything that is random."""
    runtime: Literal["serial", "local"] = "serial"
    """serial: deterministic, one thread. local: acting overlaps learning."""
    device: str = "auto"
    """cpu, cuda, cuda:1; auto: cuda if there is one."""
    devices: Count = 1
    """Learn on so many devices at once, from `device` on, each from an equal part of every batch; on a CPU so many processes. No sweeps."""
    threads: CountOrNone = 0
    """Threads of one torch operation on the CPU; 0: 1 for small networks, else one a core."""
    graphs: bool = True
    """CUDA graphs: one launch for an update; off for a network that cannot be captured."""
    queued_updates: Count = 2
    """local: how many updates' worth of new unrolls may wait; what limits the lag."""
    log_every_s: Positive = 2.0
    """local: seconds between rows of metrics. serial: likewise for slow updates, but only where no two runs are equal anyway: on a GPU, and
    in a sweep over several processes."""
    log_every_updates: Count = 50
    """serial: updates between rows of metrics."""
    checkpoint_every_steps: CountOrNone = 50_000
    """0: only at the end."""
    keep_checkpoints: Count = 2
    evaluate_every_steps: CountOrNone = 0
    """0: only at the end."""
    evaluate_episodes: Count = 20
    evaluate_deterministic: bool = False
    video_every_steps: CountOrNone = 0
    """Film an episode of the first checkpoint after every so many steps, and of the last one; in a sweep the best member's. Needs the
    extra 'video'; a process of its own does it, at low priority. 0: no videos."""
    keep_videos: Count = 20
    """So many of the last ones stay, and the best."""


class Config(Frozen):
    """Everything that decides a run."""

    recipe: Annotated[str, Field(pattern=r"^[\w-]+$")] = "cartpole"
    """Where the other settings begin: cartpole, minatar, pictures, continuous, pendulum, box2d, mujoco, impala, atari, popart-impala,
    popart-impala-pixelcontrol or laser-multitask, for sweeps also demo, atari-shared or dmlab-pbt; what fits the environment, if left
    out."""
    environment: EnvironmentConfig = EnvironmentConfig()
    network: NetworkConfig = NetworkConfig()
    replay: ReplayConfig = ReplayConfig()
    loss: LossConfig = LossConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    run: RunConfig = RunConfig()

    @model_validator(mode="after")
    def _fits(self) -> "Config":
        burn_in, recurrent = self.replay.burn_in_steps, self.network.memory != "none"
        if burn_in and (not recurrent or self.replay.state == "refresh"):
            raise ValueError("replay.burn_in_steps needs network.memory and replay.state stored or zero; leave it at 0")
        if recurrent and self.replay.sampling == "prioritised" and self.replay.state == "refresh":
            raise ValueError(
                "replay.sampling prioritised draws unrolls, no whole episodes; use replay.state stored or zero"
            )
        if burn_in >= self.loss.unroll_steps:
            raise ValueError(
                f"replay.burn_in_steps is {burn_in}, which leaves nothing to learn of {self.loss.unroll_steps} steps; lower it"
            )
        if self.network.separate_value and recurrent:
            raise ValueError("network.separate_value sees nothing of network.memory; switch one of them off")
        if self.loss.batch_unrolls % self.run.devices:
            devices, unrolls = self.run.devices, self.loss.batch_unrolls
            raise ValueError(f"run.devices is {devices}, and loss.batch_unrolls is {unrolls}; use a multiple of it")
        return self


def override(config: Config, settings: Mapping[str, Any]) -> Config:
    """A copy with other values, by full name ("loss.discount") or by last name where only one field has it.

    >>> override(Config(), {"learning_rate": 1e-3, "loss.discount": 0.9}).loss.discount
    0.9
    >>> override(Config(), {"learning_rat": 1e-3})
    Traceback (most recent call last):
    laser_rl.errors.ConfigError: there is no setting 'learning_rat'; did you mean 'optimiser.learning_rate'?
    """
    values, asked = config.model_dump(), {full_name(name): value for name, value in settings.items()}
    if asked.get("network.memory", "none") != "none":
        asked.setdefault("network.separate_value", False)
    own_trust = asked.keys() & {"loss.trust", "loss.trust_bound", "loss.target_acceptance"}
    if asked.get("replay.start_from") is not None and config.loss.trust == "implied" and not own_trust:
        # Policies of another run are far away (docs/results/sharing, "A warm start").
        asked["loss.trust_bound"] = max(config.loss.bound, 1.0)
    for name, value in asked.items():
        *sections, last = name.split(".")
        place = values
        for section in sections:
            place = place[section]
        place[last] = value
    return validated(values)


def validated(values: Mapping[str, Any]) -> Config:
    """A configuration from plain values; the error names each field, what came and what was expected.

    >>> validated({"loss": {"discount": 2}})
    Traceback (most recent call last):
    laser_rl.errors.ConfigError: loss.discount is 2: input should be less than or equal to 1
    """
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(problems(error, unknown)) from None


def problems(error: ValidationError, unknown: Callable[[str], str]) -> str:
    """A sentence for each mistake; `unknown` gives that about a name that does not exist."""
    found = []
    for item in error.errors():
        name, message = ".".join(map(str, item["loc"])), item["msg"].removeprefix("Value error, ")
        if item["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
            found.append(unknown(name))
        elif item["type"] == "value_error":
            found.append(f"{name}: {message}" if name else message)
        else:
            found.append(f"{name} is {shortened(item['input'])}: {message[0].lower()}{message[1:]}")
    return "\n".join(found)


def setting_fields(model: Any = Config, prefix: str = "") -> dict[str, FieldInfo]:
    """Every setting of a model, or of a dataclass of pydantic's, by its full name."""
    found: dict[str, FieldInfo] = {}
    for name, field in model.__pydantic_fields__.items():
        kind = field.annotation
        is_section = isinstance(kind, type) and issubclass(kind, BaseModel)
        found |= setting_fields(kind, f"{prefix}{name}.") if is_section else {prefix + name: field}
    return found


def full_name(name: str) -> str:
    """A setting's full name, from that or from its last part where only one field has it."""
    found = [full for full in setting_fields() if full == name or full.split(".")[-1] == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{name!r} can be {' or '.join(found)}; use the full name")
    raise ConfigError(unknown(name))


def unknown(name: str, flags: Iterable[str] | None = None) -> str:
    """The message about a name that no setting has: what it is called here, or the nearest one; `flags`: a command's own, of a flag."""

    def shown(known: str) -> str:
        return repr(known) if flags is None else f"--{known.replace('_', '-')}"

    last, short = name.rsplit(".", maxsplit=1)[-1], flags is not None and "." not in name
    near = {full.split(".")[-1]: full.split(".")[-1] if short else full for full in setting_fields()}
    near |= {known: known for known in (*THEIRS, *(flags or ()))}
    close = difflib.get_close_matches(name, setting_fields(), n=1, cutoff=0.7) if "." in name else []
    close += [near[one] for one in difflib.get_close_matches(last, near, n=1)]
    close = [last] if last in THEIRS else close
    hint = f"did you mean {shown(close[0])}?" if close else "'laser config show' lists all"
    hint = called_here(close[0]) if close and close[0] in THEIRS else hint
    return f"there is no {'setting' if flags is None else 'flag'} {shown(name)}; {hint}"
