"""W&B, trackio and MLflow, each behind the same three calls: begin or go on, log, end.

All of them keep to this machine unless the user's own environment variables say otherwise: `WANDB_MODE`, `TRACKIO_SPACE_ID` or
`TRACKIO_SERVER_URL`, `MLFLOW_TRACKING_URI`. What the libraries report about themselves is off as well. See docs/guides/tracking.md.
"""

import contextlib
import contextvars
import importlib
import os
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from laser_rl.metrics.page import flat

PROJECT = "laser-rl"
MLRUNS = "mlruns"
End = Literal["finished", "stopped", "failed"]
_MOST_PARAMETERS, _LONGEST_PARAMETER = 100, 500  # of one call, and of one value: what every store of MLflow takes


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run before its first row.

    >>> TrackedRun("CartPole-v1-1", {"loss": {"discount": 0.99}}).settings
    {'loss.discount': 0.99}
    """

    name: str
    config: Mapping[str, Any]
    folder: Path | None = None  # of the run; None if nothing is kept
    group: str | None = None  # the sweep, of a member
    began_s: float = 0.0  # when this was first tracked, in seconds since 1970; the same after a resume

    @property
    def settings(self) -> dict[str, Any]:
        """By full name."""
        return flat(self.config)


class TrackerRun(Protocol):
    """A run in one of the libraries, used by one thread."""

    id: str  # with which it goes on after a resume

    def log(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        """Take the finite numbers of a row, and when it was written in seconds since 1970."""

    def end(self, how: End) -> None:
        """Hand over what is left."""


class WandbRun:
    """Offline unless `WANDB_MODE` is set.

    Steps are a number of their own: W&B's may never go back, which those of a resumed run do, also where an offline run cannot ask how far
    it had come. They are milliseconds since the run began.
    """

    def __init__(self, about: TrackedRun, known: str | None) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else also an offline run reports its errors to W&B
        wandb: Any = importlib.import_module("wandb")
        wanted = {"project": ("WANDB_PROJECT", PROJECT), "dir": ("WANDB_DIR", about.folder)}
        given = {key: value for key, (variable, value) in wanted.items() if value and variable not in os.environ}
        self._run = wandb.init(
            **{key: str(value) for key, value in given.items()},
            id=known,
            resume="allow" if known else None,
            name=about.name,
            group=about.group,
            config=about.settings,
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="create_new",  # a sweep has a run for each member at the same time
            settings=wandb.Settings(console="off", silent=True),  # the terminal is ours
        )
        self._run.define_metric("*", step_metric="step")
        self.id, self._began_s, self._last = str(self._run.id), about.began_s, -1

    def log(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        """One row."""
        self._last = max(self._last + 1, int(1e3 * (time_s - self._began_s)))
        self._run.log({"step": step, "_timestamp": time_s, **numbers}, step=self._last)

    def end(self, how: End) -> None:
        """W&B knows finished and failed only."""
        self._run.finish(exit_code=0 if how == "finished" else 1)


class TrackioRun:
    """In trackio's own folder, where `trackio show` looks. A run is known by its name, so that has to be like no other."""

    def __init__(self, about: TrackedRun, known: str | None) -> None:
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        trackio: Any = importlib.import_module("trackio")
        self.id = known or f"{about.name}-{os.urandom(3).hex()}"
        context = contextvars.Context()  # `init` would end the run that its context knows, which is another member's
        with contextlib.suppress(
            AttributeError
        ):  # and for a project that it knows it prints five lines less, for each member
            context.run(trackio.context_vars.current_project.set, PROJECT)
        self._run = context.run(
            trackio.init,
            project=PROJECT,
            name=self.id,
            group=about.group,
            config=about.settings,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        """One row."""
        self._run.log(dict(numbers), step=step)

    def end(self, how: End) -> None:
        """It does not ask how."""
        self._run.finish()


class MlflowRun:
    """Files in `mlruns` of the run directory unless `MLFLOW_TRACKING_URI` is set."""

    def __init__(self, about: TrackedRun, known: str | None) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if not address:
            # A database instead, as MLflow would like, needs SQLAlchemy and more: these files are for one run and one writer.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            address = ((about.folder or Path()) / MLRUNS).resolve().as_uri()
        self._entities: Any = importlib.import_module("mlflow.entities")
        self._client = importlib.import_module("mlflow.tracking").MlflowClient(tracking_uri=address)
        self.id = known or self._begin(about)
        if known:
            self._client.update_run(known, status="RUNNING")

    def _begin(self, about: TrackedRun) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        tags = {"group": about.group} if about.group else {}
        found = str(self._client.create_run(number, run_name=about.name, tags=tags).info.run_id)
        settings = [
            self._entities.Param(name, str(value)[:_LONGEST_PARAMETER]) for name, value in about.settings.items()
        ]
        for start in range(0, len(settings), _MOST_PARAMETERS):
            self._client.log_batch(found, params=settings[start : start + _MOST_PARAMETERS])
        return found

    def log(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        """One row."""
        at = int(1e3 * time_s)
        metrics = [self._entities.Metric(mlflow_name(name), value, at, step) for name, value in numbers.items()]
        self._client.log_batch(self.id, metrics=metrics)

    def end(self, how: End) -> None:
        """With MLflow's own words."""
        status = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}[how]
        self._client.set_terminated(self.id, status=status)


def mlflow_name(name: str) -> str:
    """As MLflow takes it, which makes paths of names.

    >>> mlflow_name("train/return_of_ALE/Pong-v5"), mlflow_name("train/score of [a,b]//c")
    ('train/return_of_ALE/Pong-v5', 'train/score of _a_b_/c')
    """
    return posixpath.normpath(re.sub(r"[^\w\-. /:]", "_", name))


Begin = Callable[[TrackedRun, "str | None"], TrackerRun]
TRACKERS: dict[str, Begin] = {"wandb": WandbRun, "trackio": TrackioRun, "mlflow": MlflowRun}
