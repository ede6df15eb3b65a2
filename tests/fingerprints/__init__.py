"""Absolute fingerprints: what runs of commit ef8d380 computed, kept as numbers in `runs.json`.

Other tests compare two runs of the same code. These compare a run with numbers that were stored once, so they also notice a change that
both runs would share: another learning rate, another stream of random numbers, another default. They use only what a user can call:
`LASER`, `Sweep`, the command `laser`, and the files of a run directory. `reading.py` is the only place that knows these files, and
`start` below the only one that knows the calls, so a refactoring adapts those two and leaves the numbers alone.

All tasks have episodes of a fixed length. So steps, updates, versions, ages, lags and learning rates do not depend on what was computed:
they are in "counted" and hold for every version of torch. Everything else is in "computed": to the last bit with the stored arithmetic,
within rounding (and without hashes) on a processor of another maker.
"""

import contextlib
import json
import math
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
RUNS, SETTINGS = FOLDER / "runs.json", FOLDER / "settings.json"
STEPS, EPISODES = 400, 16
# The plainest arithmetic that the libraries offer, set before torch is imported. MKL still rounds differently by the processor's maker.
PLAIN = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}

SMALL = {
    "device": "cpu", "run.threads": 1, "seed": 7, "schedule": "linear", "learning_rate": 1e-2, "slots": 4, "unroll_steps": 5,
    "hidden": (16,), "batch_unrolls": 8, "fraction": 0.875, "capacity_steps": 300, "evaluate_episodes": EPISODES,
    "log_every_updates": 20, "checkpoint_every_steps": 0,
}  # fmt: skip
AGENTS: dict[str, dict[str, Any]] = {
    "mlp": {"env": "laser/Catch", "recipe": "cartpole", "entropy_cost": 0.0},
    "lstm": {"env": "laser/Catch", "recipe": "cartpole", "entropy_cost": 0.0, "memory": "lstm", "memory_size": 8},
    "convolution": {"env": "laser/Catch", "recipe": "minatar", "options": {"image": True}, "channels": 4},
    "continuous": {
        "env": "Pendulum-v1",
        "recipe": "pendulum",
        "options": {"max_episode_steps": 20},
        "warmup_steps": 50,
    },
}
MEMBERS = {"grid": {"learning_rate": [5e-3, 2e-2, 1e-2], "entropy_cost": [0.01]}}
PBT = {"burn_in_steps": 60, "every_episodes": 4, "margin": 0.0}
# No batch depends on timing where nothing is replayed, and no action where parameters stay: 1e-300 is 0 in single precision. Moments of
# the optimiser do move, and they show which unrolls came in which order.
STILL = {"learning_rate": 1e-300, "fraction": 0.0, "batch_unrolls": 1, "runtime": "local", "log_every_s": 1000.0}


class Case(NamedTuple):
    """One run.

    `rows` is False where the clock decides when a row is written, `counted` where returns decide who copies whom, and thereby which rates
    are used. `like` names the case whose stored numbers it has to give, if it has none of its own. `golden` names a run directory of
    `tests/golden` that `laser resume` goes on with, for as many steps as it has behind it.
    """

    agent: str
    settings: Mapping[str, Any] = {}
    sweep: Mapping[str, Any] | None = None
    by_command: bool = False
    rows: bool = True
    counted: bool = True
    slow: bool = False
    like: str | None = None
    golden: str | None = None


def _cases() -> Iterator[tuple[str, Case]]:
    for agent in AGENTS:
        yield f"{agent} serial", Case(agent)
        yield f"{agent} in threads", Case(agent, STILL, rows=False)
        # The relevance of continuous actions is estimated from random ones, which two ranks would draw differently from one.
        trust = {"trust": "behaviour"} if agent == "continuous" else {}
        yield f"{agent} on two ranks", Case(agent, {"devices": 2, **trust}, slow=agent != "mlp")
        sweeps = {
            "looped": {"stack": "off"},
            "separate": {"share_replay": False},
            "without replay": {"share_replay": "none"},
        }
        for name, how in sweeps.items():
            yield f"{agent} {name}", Case(agent, sweep=how, slow=name != "looped" and agent in {"lstm", "convolution"})
        yield f"{agent} PBT", Case(agent, sweep={"pbt": PBT}, counted=False)
    yield "mlp stacked", Case("mlp", sweep={"stack": "on"})
    yield "mlp looped PBT", Case("mlp", sweep={"stack": "off", "pbt": PBT}, counted=False)
    yield (
        "continuous in processes",
        Case("continuous", {"placement": "process", "workers": 2}, like="continuous serial"),
    )
    yield "mlp members in processes", Case("mlp", sweep={"processes": 2, "share_replay": "none"}, rows=False, slow=True)
    yield "mlp serial by command", Case("mlp", by_command=True, like="mlp serial")
    yield "mlp stacked by command", Case("mlp", sweep={"stack": "on"}, by_command=True, like="mlp stacked")
    yield "mlp PBT by command", Case("mlp", sweep={"pbt": PBT}, by_command=True, counted=False, like="mlp PBT")
    for golden in ("mlp", "lstm", "sweep"):
        yield f"golden {golden} goes on", Case("mlp", golden=golden, rows=False)


CASES = dict(_cases())


def start(case: Case, run_dir: Path) -> None:
    """Run it to its end in a new run directory, which then also holds an evaluation."""
    from laser_rl import LASER, Sweep  # noqa: PLC0415 - after `PLAIN` is set

    settings = {**SMALL, **AGENTS[case.agent], **case.settings}
    env = settings.pop("env")
    if case.golden is not None:
        _resume(case.golden, run_dir)
    elif case.by_command:
        _command(case, env, settings, run_dir)
    elif case.sweep is not None:
        from laser_rl.training.pbt import PbtConfig  # noqa: PLC0415

        pbt = {"pbt": PbtConfig(**case.sweep["pbt"])} if "pbt" in case.sweep else {}
        Sweep(env, run_dir=run_dir, **MEMBERS, **{**case.sweep, **pbt}, **settings).run(STEPS)
    else:
        agent = LASER(env, run_dir=run_dir, **settings).learn(STEPS)
        try:
            result = agent.evaluate(EPISODES)
        finally:
            agent.close()
        (run_dir / "evaluation.json").write_text(json.dumps({"mean": result.mean}))


def _command(case: Case, env: str, settings: dict[str, Any], run_dir: Path) -> None:
    from laser_rl import LASER  # noqa: PLC0415

    values = LASER(env, **settings, **{"run.steps": STEPS}).config.model_dump(mode="json")
    file, flags = run_dir.with_suffix(".json"), ["--out", str(run_dir), "--plain"]
    file.write_text(json.dumps(values if case.sweep is None else {"base": values, **MEMBERS, **case.sweep}))
    arguments = ["train", "--config", str(file), *flags] if case.sweep is None else ["sweep", str(file), *flags]
    _call(arguments)


def _resume(golden: str, run_dir: Path) -> None:
    from tests.golden import folder_of_now  # noqa: PLC0415

    shutil.copytree(folder_of_now() / golden, run_dir)
    [saved] = (run_dir / "checkpoints").glob("step-*")
    _call(["resume", str(run_dir), "--steps", str(2 * int(saved.name.removeprefix("step-"))), "--plain"])


def _call(arguments: list[str]) -> None:
    from laser_rl import cli  # noqa: PLC0415

    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        status = cli.main(arguments)
    assert status == 0, f"laser {' '.join(arguments)} ended with {status}"


def fingerprint(name: str) -> dict[str, Any]:
    """Run a case and read what it left; in a process that was started with `PLAIN`."""
    from tests.fingerprints.reading import record  # noqa: PLC0415

    case = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        start(case, run_dir)
        found = record(run_dir, rows=case.rows)
    return found if case.counted else {"computed": found}


def arithmetic() -> dict[str, str]:
    """What decides the last bit of a result; in a process that was started with `PLAIN`."""
    import torch  # noqa: PLC0415

    return {
        "torch": str(torch.__version__),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "maker": _maker(),
    }


def _maker() -> str:
    with contextlib.suppress(OSError):
        found = re.search(r"^vendor_id\s*: (\w+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        return found[1] if found else "unknown"
    return "unknown"


def differences(found: Any, stored: Any, path: str = "", *, rounded: bool = False) -> list[str]:
    """One line for each value that differs, with its place; `rounded`: by more than rounding, and whatever hashes say."""
    if isinstance(found, dict) and isinstance(stored, dict):
        lines = []
        for key in [*stored, *(key for key in found if key not in stored)]:
            place = f"{path}.{key}" if path else key
            if key not in found or key not in stored:
                lines.append(f"{place} is {'missing' if key in stored else 'new'}")
            else:
                lines += differences(found[key], stored[key], place, rounded=rounded)
        return lines
    if isinstance(found, list) and isinstance(stored, list):
        if len(found) != len(stored):
            return [f"{path} has {len(found)} values, stored are {len(stored)}"]
        both = enumerate(zip(found, stored, strict=True))
        return [
            line for k, (ours, theirs) in both for line in differences(ours, theirs, f"{path}[{k}]", rounded=rounded)
        ]
    if rounded and (path.endswith("_sha256") or _close(found, stored)):
        return []
    return [] if _same(found, stored) else [f"{path} is {found!r}, stored is {stored!r}"]


def _close(found: Any, stored: Any) -> bool:
    return (
        isinstance(found, float)
        and isinstance(stored, float)
        and math.isclose(found, stored, rel_tol=1e-3, abs_tol=1e-6)
    )


def _same(found: Any, stored: Any) -> bool:
    if isinstance(found, float) and isinstance(stored, float):
        return found == stored or (math.isnan(found) and math.isnan(stored))
    return type(found) is type(stored) and found == stored
