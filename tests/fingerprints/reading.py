"""The one place that knows how a run directory is laid out: which files there are, and what tensors and columns are called."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
from torch import Tensor

# Columns of rows of metrics: what they are called here, and what the files call them.
COUNTED = {
    "step": "step",
    "update": "update",
    "learning_rate": "learning_rate",
    "lag": "lag_updates",
    "age": "replay_age_updates",
    "online": "online_unrolls",
    "replayed": "replayed_unrolls",
    "replay_steps": "replay_steps",
    "episodes": "episodes",
    "skipped": "skipped_updates",
}
COMPUTED = {
    "entropy_cost": "entropy_cost",
    "return": "return_mean",
    "policy_loss": "policy_loss",
    "value_loss": "value_loss",
    "entropy": "entropy",
    "acceptance": "acceptance",
    "kl": "kl",
    "gradient_norm": "gradient_norm",
}
AGES = ("age_0", "age_25", "age_50", "age_75", "age_100")  # in rows about all members of a sweep
MOMENTS = ("exp_avg", "exp_avg_sq", "mean_square", "momentum")


def record(run_dir: Path, *, rows: bool) -> dict[str, Any]:
    """What a finished run left on disk, of each member and of the run; `rows` adds the columns of its rows."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    folder = max((run_dir / "checkpoints").glob("step-*"))
    state = json.loads((folder / "state.json").read_text())
    members = sorted(folder.glob("member-*.safetensors"))
    found: dict[str, Any] = {"counted": {}, "computed": {}}
    for number, file in enumerate(members):
        tensors, numbers = _of_member(file), state["members"][number]
        own = [line for line in lines if line.get("member", 0) == number]
        counted, computed = _member(tensors, numbers)
        computed["evaluation"] = _evaluation(run_dir, own)
        if rows:
            counted["rows"], computed["rows"] = (_columns(own, names) for names in (COUNTED, COMPUTED))
        found["counted"][f"member {number}"], found["computed"][f"member {number}"] = counted, computed
    ages = [line for line in lines if line["kind"] == "sweep"]
    if rows and ages:  # of a sample, so they also show the random stream that it is drawn from
        found["counted"]["ages"] = {name: [row.get(name) for row in ages] for name in AGES}
    copies = [line for line in lines if line["kind"] == "event" and "donor" in line]
    if copies:
        found["computed"]["copies"] = [[line["step"], line["member"], line["donor"]] for line in copies]
    return found


def _of_member(file: Path) -> dict[str, dict[str, Tensor]]:
    groups: dict[str, dict[str, Tensor]] = {"network": {}, "optimiser": {}}
    for name, tensor in safetensors.torch.load_file(file).items():
        group, _, rest = name.partition("/")
        if group in groups:
            groups[group][rest] = tensor
    return groups


def _member(tensors: Mapping[str, Mapping[str, Tensor]], numbers: Mapping[str, Any]) -> tuple[dict, dict]:
    parameters = list(tensors["network"].values())
    moments = [tensor for name, tensor in tensors["optimiser"].items() if name in MOMENTS]
    counted = {
        "steps": numbers["training"]["steps"],
        "version": numbers["learner"]["version"],
        "parameters": sum(tensor.numel() for tensor in parameters),
        "moments": sum(tensor.numel() for tensor in moments),
        "optimiser_steps": int(tensors["optimiser"]["step"].item()),
    }
    return counted, {"parameters_sha256": hash_of(parameters), "optimiser_sha256": hash_of(moments)}


def hash_of(tensors: Iterable[Tensor]) -> str:
    """SHA-256 of all values in ascending order.

    Names, shapes, the order of tensors and whether they lie in one vector are details that may change; values are not. That each value
    stands in its own place is what the evaluation and the rows show.
    """
    values = np.concatenate([tensor.detach().cpu().numpy().reshape(-1) for tensor in tensors])
    return hashlib.sha256(np.sort(values).tobytes()).hexdigest()


def _evaluation(run_dir: Path, rows: Iterable[Mapping[str, Any]]) -> float:
    played = [row["mean"] for row in rows if row["kind"] == "evaluation"]
    return float(played[-1] if played else json.loads((run_dir / "evaluation.json").read_text())["mean"])


def _columns(rows: Iterable[Mapping[str, Any]], names: Mapping[str, str]) -> dict[str, list[Any]]:
    own = [row for row in rows if row["kind"] == "train"]
    return {ours: [row.get(theirs) for row in own] for ours, theirs in names.items()}
