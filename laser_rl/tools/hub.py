"""A folder for the Hugging Face Hub: the newest checkpoint without its replay, the settings, a report and a model card; and its upload.

The folder is a run directory: `laser evaluate` and `laser enjoy` understand it. Nothing leaves this machine before `upload` is called.
"""

import contextlib
import re
import shutil
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from laser_rl import __version__, checkpoint
from laser_rl.api import LASER
from laser_rl.checkpoint import CHECKPOINTS, manifest
from laser_rl.errors import ConfigError, require_modules, shortened
from laser_rl.metrics import read
from laser_rl.networks.build import TorsoSource
from laser_rl.tools.source import Source, require_new
from laser_rl.training.build import EnvironmentSource
from laser_rl.training.files import CONFIG, SWEEP, is_sweep
from laser_rl.trust import PROMISE
from laser_rl.view.report import report

AGENT, CARD, REPORT = "agent.safetensors", "README.md", "report.html"


def write_folder(source: Source, folder: Path, repo_id: str) -> list[Path]:
    """Everything that would be uploaded, in a new or empty folder; returns its files. The model card tells people to load `repo_id`."""
    require_new(folder)
    run_dir, name = source.run_dir, SWEEP if is_sweep(source.run_dir) else CONFIG
    target = folder / CHECKPOINTS / source.checkpoint.name
    target.mkdir(parents=True)
    for file in (manifest.NAME, *manifest.read(source.checkpoint).files):
        shutil.copyfile(source.checkpoint / file, target / file)
    checkpoint.load_snapshot(target, replay="unread")  # the run may have been writing
    shutil.copyfile(run_dir / name, folder / name)
    source.trained.save(folder / AGENT)
    report(run_dir, out=folder / REPORT)
    (folder / CARD).write_text(model_card(source, repo_id), encoding="utf-8")
    return sorted(path for path in folder.rglob("*") if path.is_file())


def model_card(source: Source, repo_id: str) -> str:
    """What a visitor reads: what it is, its score with its interval, how to load it."""
    rows = [row for row in read(source.run_dir, ["evaluation"]) if source.member in {None, row.get("member")}]
    trained, score = source.trained, rows[-1] if rows else None
    return (
        resources.files("laser_rl.tools")
        .joinpath("data", "model_card.template")
        .read_text("utf-8")
        .format(
            head=yaml.safe_dump(_head(trained.environment.id, score), sort_keys=False),
            environment=trained.environment.id,
            version=__version__,
            steps=trained.steps,
            whose="" if source.member is None else f", member {source.member} of a sweep",
            config=trained.config,
            score=_score(score),
            repo_id=repo_id,
            promise=PROMISE,
        )
    )


def _head(environment: str, score: Mapping[str, Any] | None) -> dict[str, Any]:
    head: dict[str, Any] = {
        "library_name": "laser-rl",
        "tags": ["reinforcement-learning", "deep-reinforcement-learning", "laser-rl", environment],
    }
    if score is not None:
        metric = {"type": "mean_reward", "name": "mean return", "value": round(float(score["mean"]), 4)}
        task = dict.fromkeys(("type", "name"), "reinforcement-learning")
        result = {"task": task, "dataset": {"type": environment, "name": environment}, "metrics": [metric]}
        head["model-index"] = [{"name": "LASER", "results": [result]}]
    return head


def _score(score: Mapping[str, Any] | None) -> str:
    if score is None:
        return "It has not been evaluated; `laser evaluate` does that."
    return (
        f"| mean return | 95 % interval | IQM | episodes | after steps |\n|---|---|---|---|---|\n| {score['mean']:.2f} | "
        f"{score['ci95_low']:.2f} to {score['ci95_high']:.2f} | {score['iqm']:.2f} | {score['episodes']:.0f} | {int(score['step']):,} |\n\n"
        "With sampled actions, in environments that it was not trained in. Of one agent: the interval is over its episodes, not over seeds."
    )


def load_from_hub(
    repo: str,
    env: EnvironmentSource | None = None,
    *,
    revision: str | None = None,
    net: TorsoSource | None = None,
    device: str = "auto",
    trust_code: bool = False,
) -> LASER:
    """An agent that `laser push` has sent to the Hugging Face Hub; one in a folder is read by `LASER.load(folder / "agent.safetensors")`.

    Only its safetensors file is downloaded, and nothing that the file names is imported unless you pass `env` or say `trust_code=True`.

    Args:
        repo: "OWNER/NAME"; needs the extra `hub`.
        env: what to play; None: what the file names.
        revision: a branch, tag or commit of the repository; None: the newest.
        net: your own torso, if it was trained with one.
        device: as of `LASER.load`.
        trust_code: the code that the file names (`module:callable`) may be imported and called.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(repo)):
        raise ConfigError(f"load_from_hub: expected OWNER/NAME, got {shortened(str(repo))}")
    api = hub_api()
    with _asked(f"gave no {AGENT} of {repo}"):
        path = Path(api.hf_hub_download(repo, AGENT, revision=revision))
    return LASER.load(path, env, net=net, device=device, trust_code=trust_code)


def hub_api() -> Any:
    """The Hub's own client, with the login that `hf auth login` has left."""
    require_modules("the Hugging Face Hub", "hub", "huggingface_hub")
    from huggingface_hub import HfApi  # noqa: PLC0415

    return HfApi(library_name="laser-rl", library_version=__version__)


def upload(api: Any, folder: Path, repo_id: str, *, public: bool, message: str) -> str:
    """Send a folder of `write_folder`; returns the address. What the Hub refuses is said in one line."""
    with _asked(f"refused {repo_id}"):
        address = api.create_repo(repo_id, repo_type="model", private=not public, exist_ok=True)
        api.upload_folder(repo_id=repo_id, folder_path=str(folder), repo_type="model", commit_message=message)
    return str(address)


@contextlib.contextmanager
def _asked(what: str) -> Iterator[None]:
    """Whatever the Hub's client raises is a ConfigError with its first sentence."""
    try:
        yield
    except Exception as error:
        said = (str(error).strip() or "no reason given").splitlines()[0].split(". ")[0][:200]
        raise ConfigError(
            f"the Hugging Face Hub {what} ({type(error).__name__}: {said}); check its name (OWNER/NAME), your login ('hf auth login', or "
            "HF_TOKEN), your rights there and the network, then try again"
        ) from error
