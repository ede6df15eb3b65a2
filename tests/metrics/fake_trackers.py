"""Stand-ins for W&B, trackio and MLflow: they remember what they were told, and refuse what the real ones refuse."""

import types
from dataclasses import dataclass, field


@dataclass
class Told:
    """One run of a tracker."""

    id: str
    given: dict
    rows: list = field(default_factory=list)  # step, numbers
    ended: object = None
    last: int = -1

    def define_metric(self, name, step_metric):
        self.given["axis"] = (name, step_metric)

    def log(self, numbers, step):
        if "step" in numbers:  # as W&B is called: its own step may never go back
            assert step > self.last
            self.last, step = step, numbers["step"]
            numbers = {name: value for name, value in numbers.items() if name not in {"step", "_timestamp"}}
        self.rows.append((step, numbers))

    def finish(self, exit_code=0):
        self.ended = exit_code


class Wandb(types.ModuleType):
    """A resumed offline run is a second one with the same id."""

    def __init__(self):
        super().__init__("wandb")
        self.runs = []
        self.Settings = dict

    def init(self, **given):
        assert given["reinit"] == "create_new"
        self.runs.append(Told(given["id"] or f"w{len(self.runs)}", given))
        return self.runs[-1]


class Trackio(types.ModuleType):
    """A run is known by its name."""

    def __init__(self):
        super().__init__("trackio")
        self.runs = []

    def init(self, *, project, name, group, config, resume, embed, auto_log_gpu, auto_log_cpu):
        assert not auto_log_gpu and not auto_log_cpu  # noqa: PT018
        told = next((one for one in self.runs if one.id == name), None)
        if told is None:
            told = Told(name, {"project": project, "group": group, "config": config})
            self.runs.append(told)
        return told


class Mlflow:
    """The client and the two records of it that we use."""

    def __init__(self):
        self.runs, self.addresses = [], []
        self.entities = types.ModuleType("mlflow.entities")
        self.entities.Param = self.entities.Metric = lambda *values: values
        self.tracking = types.ModuleType("mlflow.tracking")
        self.tracking.MlflowClient = self._client
        self.modules = {
            "mlflow": types.ModuleType("mlflow"),
            "mlflow.entities": self.entities,
            "mlflow.tracking": self.tracking,
        }

    def _client(self, tracking_uri):
        self.addresses.append(tracking_uri)
        return self

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        return name

    def create_run(self, experiment, run_name, tags):
        self.runs.append(Told(f"m{len(self.runs)}", {"name": run_name, "config": {}, **tags}))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=self.runs[-1].id))

    def _run(self, number):
        return next(one for one in self.runs if one.id == number)

    def log_batch(self, number, metrics=(), params=()):
        told = self._run(number)
        assert len(params) <= 100
        for name, value in params:
            assert told.given["config"].setdefault(name, value) == value  # MLflow lets nobody change one
        if metrics:
            (step,) = {step for *_, step in metrics}
            told.rows.append((step, {name: value for name, value, _, _ in metrics}))

    def update_run(self, number, status):
        self._run(number).ended = status

    def set_terminated(self, number, status):
        self._run(number).ended = status
