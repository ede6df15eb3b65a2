"""A policy as an ONNX file: written beside its place, compared with torch on observations of the environment, then renamed.

The file says by itself what it is: names and shapes of its inputs and outputs, how to call it, and where it came from.
"""

import json
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from laser_rl import disk
from laser_rl.errors import ConfigError, MissingExtra
from laser_rl.tools.onnx_compare import Acting, Verified, compare, example, observed
from laser_rl.tools.source import described, seen_shape, starts_of, versions
from laser_rl.training.evaluate import Trained

if TYPE_CHECKING:
    from torch.onnx import ONNXProgram

PREFIX = "laser_rl."  # of our names in a model's metadata
_LIBRARIES = ("onnx", "onnxruntime", "onnxscript")
_TRACED = 2  # rows; a batch of one would be taken for a constant
_MOST_SAID = 400  # letters of an exporter's error


@dataclass(frozen=True)
class Exported:
    """The file, and how it was compared with torch."""

    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    verified: Verified


def export_onnx(trained: Trained, path: Path, *, about: Mapping[str, Any] | None = None, rows: int = 320) -> Exported:
    """Write the acting policy to `path`, if it acts as torch does on `rows` observations of its environment.

    Args:
        trained: of a run directory (`tools.source.load_source`), or of an agent (`runtime.evaluate.trained_of`).
        path: of the file; an older one is replaced.
        about: more entries of the model's metadata, as JSON.
        rows: how many observations are compared, about.
    """
    require_extra()
    starts = starts_of(trained)
    acting = Acting(trained.network, trained.family, starts)
    program = _program(acting, example(acting, trained.layout, seen_shape(trained), _TRACED))
    _describe(
        program, acting, {**described(trained, starts), **(about or {}), "versions": versions("torch", *_LIBRARIES)}
    )
    path = path.absolute()
    disk.make_folder(path.parent)
    with disk.whole(path) as temporary:
        program.save(temporary, external_data=False)
        verified = compare(acting, trained, session_of(temporary), observed(trained, rows))
    return Exported(path, acting.inputs, acting.outputs, verified)


def require_extra() -> None:
    """Before any work is done."""
    try:
        import onnx  # noqa: F401, PLC0415
        import onnxruntime  # noqa: F401, PLC0415
        import onnxscript  # noqa: F401, PLC0415
    except ImportError as error:
        raise MissingExtra("an ONNX file", "onnx") from error


def session_of(path: Path) -> Any:
    """ONNX Runtime on the CPU with one thread: what is compared must not depend on a machine's other work."""
    import onnxruntime  # noqa: PLC0415 - needs the extra

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def about_of(session: Any) -> dict[str, Any]:
    """Our entries of a model's metadata.

    `about_of(onnxruntime.InferenceSession("policy.onnx"))["environment"]` is the id of the environment.
    """
    entries = session.get_modelmeta().custom_metadata_map
    ours = {name.removeprefix(PREFIX): value for name, value in entries.items() if name.startswith(PREFIX)}
    return {name: json.loads(value) for name, value in ours.items()}


def _program(acting: Acting, rows: tuple[Tensor, ...]) -> "ONNXProgram":
    batch = torch.export.Dim("batch", min=1)
    loud = logging.getLogger("torch.onnx")
    level = loud.level
    loud.setLevel(logging.ERROR)  # it counts the libraries that it does not need
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of torch about torch
            traced = torch.export.export(acting, rows, dynamic_shapes=(tuple({0: batch} for _ in rows),))
            program = torch.onnx.export(
                traced, (), dynamo=True, verbose=False, input_names=acting.inputs, output_names=acting.outputs
            )
    except Exception as error:  # of a tracer that meets anybody's code
        raise ConfigError(_why(acting, error)) from error
    finally:
        loud.setLevel(level)
    if program is None:  # only where torch.onnx.export is asked to write the file itself
        raise ConfigError("torch.onnx.export returned nothing; use another version of torch")
    return program


def _why(acting: Acting, error: Exception) -> str:
    torso = type(acting.network.torso)
    said = " ".join(str(error).split())[:_MOST_SAID]
    whose = (
        "" if torso.__module__.startswith("laser_rl.") else f" with the torso {torso.__module__}.{torso.__qualname__}"
    )
    return (
        f"this network{whose} cannot be written as ONNX ({type(error).__name__}: {said}); "
        "its forward must not look at values (no `if` on a tensor, no .item(), no numpy): use torch.where and the like"
    )


def _describe(program: "ONNXProgram", acting: Acting, about: Mapping[str, Any]) -> None:
    """Our metadata in, and torch's out: it would tell the paths of this machine."""
    model: Any = program.model
    for function in (model.graph, *model.functions.values()):
        function.metadata_props.clear()
        for node in function.all_nodes():
            node.metadata_props.clear()
            for value in node.outputs:
                value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    _name_batch(model.graph)
    model.producer_name, model.doc_string = "laser-rl", _how_to_call(acting)
    model.metadata_props.clear()
    model.metadata_props.update({PREFIX + name: json.dumps(value, sort_keys=True) for name, value in about.items()})


def _name_batch(graph: Any) -> None:
    """The symbol of the leading dimension is torch's; a reader of the file sees `batch`."""
    import onnx_ir  # noqa: PLC0415 - comes with onnxscript

    symbol = graph.inputs[0].shape[0]
    values = [*graph.inputs, *(value for node in graph.all_nodes() for value in node.outputs)]
    for value in values:
        if value.shape is not None:
            value.shape = onnx_ir.Shape(["batch" if one == symbol else one for one in value.shape])


def _how_to_call(acting: Acting) -> str:
    lines = [
        "A policy trained by laser-rl. Every input and output has a leading batch dimension; pass 1 for one environment.",
        "observation: as the environment gives it after laser-rl's wrappers; bytes are scaled inside. Pictures are stacked along",
        "their channels, oldest first, with zeros before an episode's first frame. A Dict or Tuple is one vector, in Gymnasium's order,",
        "its bytes divided by their upper bound.",
        "action: the likeliest one, as the environment takes it; several choices or numbers are flat. To sample instead, use "
        + (
            "mean and log_std, then squash into the bounds as laser_rl.action says."
            if "mean" in acting.outputs
            else "logits, and add the first number of each choice (start in laser_rl.action)."
        ),
    ]
    if acting.recurrent:
        last = (
            "the mean, or the sample, before it is squashed"
            if "mean" in acting.outputs
            else "the action that was taken"
        )
        lines += [
            "state: zeros before the first row of an episode, then next_state of the row before. is_first: true on that first row.",
            f"last_action: {last}, at the row before. last_reward: the raw reward that it brought. Both are ignored on a first row.",
        ]
    return "\n".join(lines)
