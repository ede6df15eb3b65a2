"""A policy as an ONNX file: written beside its place, compared with torch on random observations, then renamed.

The file says by itself what it is: names and shapes of its inputs and outputs, how to call it, and where it came from.
"""

import copy
import json
import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from laser_rl import disk
from laser_rl.agent.policy import Policy, Seen, choose, finite
from laser_rl.envs.make import is_atari
from laser_rl.envs.records import ObservationSpec
from laser_rl.errors import ConfigError, require_modules
from laser_rl.networks.agent_network import AgentNetwork, Output
from laser_rl.networks.build import stacked_shape
from laser_rl.ops import checks, popart
from laser_rl.ops.distributions import Family
from laser_rl.ops.gaussian import DiagonalGaussian
from laser_rl.tools.source import starts_in
from laser_rl.training.evaluate import Trained
from laser_rl.types import Array, Inputs

if TYPE_CHECKING:
    from torch.onnx import ONNXProgram

PREFIX = "laser_rl."  # of our names in a model's metadata
SLOTS = 8
TOLERANCE = 1e-4  # of parameters, values and states; relative where they are above 1
_TRACED = 2  # rows; a batch of one would be taken for a constant
_MOST_SAID = 400  # letters of an exporter's error
HOW_TO_CALL = resources.files("laser_rl.tools").joinpath("data", "onnx_how_to_call.txt").read_text("utf-8").rstrip()
_UNUSED = torch.Generator()  # the likeliest action needs no random numbers


class Acting(nn.Module):
    """Rows [B, ...] in; the likeliest action, the policy's parameters and the value out, and the memory where there is one.

    A copy of the network on the CPU, in float32 and in evaluation mode: our kernels need a GPU, and a file is to run anywhere. The
    environment counts its choices from `starts`, the network from 0.
    """

    starts: Tensor

    def __init__(self, network: AgentNetwork, family: Family, starts: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.network, self.family = copy.deepcopy(network).cpu().eval(), family
        self.network.bf16 = False
        self.recurrent = self.network.state_size > 0
        self.inputs = Seen._fields if self.recurrent else Seen._fields[:1]
        parameters = ("mean", "log_std") if isinstance(family, DiagonalGaussian) else ("logits",)
        self.outputs = ("action", *parameters, "value", *(("next_state",) if self.recurrent else ()))
        none = torch.zeros((), dtype=torch.float32 if family.joint_size is None else torch.int64)
        first = torch.tensor(starts, dtype=torch.int64).reshape(family.action_shape) if starts else none
        self.register_buffer("starts", first, persistent=False)

    def forward(self, *rows: Tensor) -> tuple[Tensor, ...]:
        # A network without memory looks at nothing but the observation, whatever stands for the rest.
        observation, first, action, reward, state = rows if self.recurrent else rows * len(Seen._fields)
        if self.recurrent:
            # A first row has no last action, and whatever number stands for that may lie below the first choice.
            begins = first.reshape(-1, *(1,) * (action.ndim - 1))
            action = torch.where(begins, torch.zeros_like(action), action - self.starts)
        inputs = Inputs(*(part.unsqueeze(0) for part in (observation, first, action, reward)))
        with checks.unchecked():
            output, states = self.network(inputs, state)
            _, parameters, chosen = choose(self.family, output.policy[0], _UNUSED, deterministic=True)
            results = (chosen + self.starts, *self._named(parameters), self._value(output))
        return (*results, finite(states[-1])) if self.recurrent else results

    def _named(self, parameters: Tensor) -> tuple[Tensor, ...]:
        if not isinstance(self.family, DiagonalGaussian):
            return (parameters,)
        mean, raw = parameters.chunk(2, -1)
        return mean, (self.family.min_scale + F.softplus(raw)).log()

    def _value(self, output: Output) -> Tensor:
        """In the units of the returns, [B]; of a mixture [B, tasks], each in its task's own."""
        head = self.network.popart
        if head is None:
            return output.value[0]
        value = output.value[0] * popart.sigma(head.statistics) + head.statistics.mean
        return (value.squeeze(-1) if value.shape[-1] == 1 else value).float()

    def arguments(self, row: Seen) -> dict[str, Array]:
        """A row by the names of the inputs; the last action in the environment's numbers, as a user of the file has it."""
        row = row._replace(last_action=row.last_action + self.starts.numpy())
        return dict(zip(self.inputs, row, strict=False))


class Exported(NamedTuple):
    """The file, and how it was compared with torch."""

    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    rows: int  # that were compared
    largest: float  # difference


def export_onnx(trained: Trained, path: Path, *, rows: int = 320) -> Exported:
    """Write the acting policy to `path`, in place of an older file, if it acts as torch does on about `rows` random observations."""
    if trained.spec.observation.parts:
        raise ConfigError(
            f"expected an observation that is one picture or one vector, {trained.environment.id} has the parts "
            f"{', '.join(part.key for part in trained.spec.observation.parts)}; their bytes cannot be read in ONNX: use LASER.save"
        )
    require_modules("an ONNX file", "onnx", "onnx", "onnxruntime", "onnxscript")
    acting = Acting(trained.network, trained.family, starts_in(trained.spec.action))
    seen = random_rows(trained, rows)
    program = _program(acting, seen[0])
    _describe(program, described(trained))
    path = path.absolute()
    disk.make_folder(path.parent)
    with disk.whole(path) as temporary:
        program.save(temporary, external_data=False)
        largest = compare(acting, session_of(temporary), seen)
    return Exported(path, acting.inputs, acting.outputs, SLOTS * len(seen), largest)


def session_of(path: Path) -> Any:
    """ONNX Runtime on the CPU with one thread: what is compared must not depend on a machine's other work."""
    import onnxruntime  # noqa: PLC0415 - needs the extra

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _seen_shape(trained: Trained) -> tuple[int, ...]:
    layout = trained.layout
    return stacked_shape(ObservationSpec(layout.observation_shape, layout.observation_dtype), layout.stack)


def described(trained: Trained) -> dict[str, Any]:
    """Environment and spaces of an agent, as JSON: what a user of the exported file alone needs."""
    layout, environment, starts = trained.layout, trained.environment, starts_in(trained.spec.action)
    fields = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(trained.family).items()}
    for name in {"low", "high"} & set(fields):  # JSON knows no infinity: a dimension without bounds has null
        fields[name] = [bound if math.isfinite(bound) else None for bound in fields[name]]
    about: dict[str, Any] = {
        "environment": environment.id,
        "environment_options": environment.options,
        "step": trained.steps,
        "frame_stack": layout.stack,
        "observation": {"shape": list(_seen_shape(trained)), "dtype": layout.observation_dtype},
        **({"action_mask": mask} if (mask := trained.spec.observation.mask) else {}),
        "action": {"family": type(trained.family).__name__, **fields, **({"start": list(starts)} if starts else {})},
    }
    if is_atari(environment.id):
        about["atari"] = environment.atari.model_dump(mode="json")
    return about


def _program(acting: Acting, row: Seen) -> "ONNXProgram":
    batch, loud = torch.export.Dim("batch", min=1), logging.getLogger("torch.onnx")
    given = tuple(torch.from_numpy(np.ascontiguousarray(part[:_TRACED])) for part in acting.arguments(row).values())
    level = loud.level
    loud.setLevel(logging.ERROR)  # it counts the libraries that it does not need
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of torch about torch
            traced = torch.export.export(acting, given, dynamic_shapes=(tuple({0: batch} for _ in given),))
            program = torch.onnx.export(
                traced, (), dynamo=True, verbose=False, input_names=acting.inputs, output_names=acting.outputs
            )
    except Exception as error:  # the tracer runs the user's own torso
        torso, said = type(acting.network.torso), " ".join(str(error).split())[:_MOST_SAID]
        ours = torso.__module__.startswith("laser_rl.")
        whose = "" if ours else f" with the torso {torso.__module__}.{torso.__qualname__}"
        raise ConfigError(
            f"this network{whose} cannot be written as ONNX ({type(error).__name__}: {said}); "
            "its forward must not look at values (no `if` on a tensor, no .item(), no numpy): use torch.where and the like"
        ) from error
    finally:
        loud.setLevel(level)
    assert program is not None  # noqa: S101 - only where torch.onnx.export is asked to write the file itself
    return program


def _describe(program: "ONNXProgram", about: Mapping[str, Any]) -> None:
    """Our metadata in, and torch's out: it would tell paths of this machine. Its symbol of the leading dimension becomes `batch`."""
    import onnx_ir  # noqa: PLC0415 - comes with onnxscript

    model: Any = program.model
    graph, functions = model.graph, [model.graph, *model.functions.values()]
    nodes = [node for function in functions for node in function.all_nodes()]
    values = [value for node in nodes for value in node.outputs]
    for part in (model, *functions, *nodes, *values, *graph.inputs, *graph.outputs, *graph.initializers.values()):
        part.metadata_props.clear()
    symbol = graph.inputs[0].shape[0]
    for value in (*graph.inputs, *values):
        if value.shape is not None:
            value.shape = onnx_ir.Shape(["batch" if one == symbol else one for one in value.shape])
    model.producer_name, model.doc_string = "laser-rl", HOW_TO_CALL
    model.metadata_props.update({PREFIX + name: json.dumps(value, sort_keys=True) for name, value in about.items()})


def random_rows(trained: Trained, rows: int) -> list[Seen]:
    """About so many rows of random numbers in the shape and range of observations, with the actions and states of the agent.

    One row in ten begins an episode. No environment is opened: it may be code that is not trusted.
    """
    policy, random, layout = Policy(trained.network, trained.family, seed=0), np.random.default_rng(0), trained.layout
    shape, found = (SLOTS, *_seen_shape(trained)), list[Seen]()
    action: Array = np.zeros((SLOTS, *layout.action_shape), layout.action_dtype)
    state: Array = np.zeros((SLOTS, layout.state_size), np.float32)
    pictures = layout.observation_dtype == "uint8"
    most = round(1 / trained.spec.observation.scale)  # of bytes; larger ones would be beyond what rounding allows
    for number in range(-(-rows // SLOTS)):
        seen = random.integers(0, most + 1, shape, np.uint8) if pictures else random.standard_normal(shape, np.float32)
        if mask := trained.spec.observation.mask:
            seen[:, -mask:] = random.random((SLOTS, mask)) < 0.5  # noqa: PLR2004
            seen[:, -mask] = 1
        reward, first = random.standard_normal(SLOTS, np.float32), random.random(SLOTS) < (0.1 if number else 1)
        action = action.copy()
        action[first] = 0
        found.append(Seen(seen, first, action, reward, state))
        decision = policy.act(found[-1])
        action, state = decision.action, state if decision.state is None else decision.state
    return found


def compare(acting: Acting, session: Any, rows: Sequence[Seen]) -> float:
    """Refuse a file that does not do at every row what torch does; returns the largest difference.

    Each side carries the memory that it made itself. Of two actions that are nearly as likely each side may take another, so the file's
    choice is compared with the likeliest one by its own logits.
    """
    largest, states = 0.0, [rows[0].state] * 2
    for number, row in enumerate(rows):
        given = [acting.arguments(row._replace(state=state)) for state in states]
        with torch.inference_mode():
            results = acting(*(torch.from_numpy(np.ascontiguousarray(part)) for part in given[1].values()))
        ours = {name: result.numpy() for name, result in zip(acting.outputs, results, strict=True)}
        theirs = dict(zip(acting.outputs, session.run(list(acting.outputs), given[0]), strict=True))
        if "logits" in ours:
            likeliest = choose(acting.family, torch.from_numpy(theirs["logits"]), _UNUSED, deterministic=True)[2]
            if not np.array_equal(likeliest + acting.starts, theirs["action"]):
                raise _differs(f"another action is chosen at row {number}")
        for name, mine in ours.items():
            if mine.dtype.kind == "f":
                off = float((np.abs(theirs[name] - mine) / np.maximum(1.0, np.abs(mine))).max(initial=0.0))
                if not off <= TOLERANCE:  # NaN is not, either
                    raise _differs(f"{name} differs by {off:.2g} at row {number}, expected {TOLERANCE} at most")
                largest = max(largest, off)
        if acting.recurrent:
            states = [theirs["next_state"], ours["next_state"]]
    return largest


def _differs(what: str) -> ConfigError:
    return ConfigError(
        f"the ONNX file does not act as torch does: {what}; nothing was written. "
        "Try other versions of torch and onnxruntime, and please report it"
    )
