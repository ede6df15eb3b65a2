"""The folder for the Hub can be used, says what it is, and goes nowhere by itself."""

import sys
from pathlib import Path

import pytest
import yaml

import laser_rl
from laser_rl import LASER
from laser_rl.checkpoint import newest_step
from laser_rl.cli import main
from laser_rl.errors import ConfigError
from laser_rl.metrics.log import read
from laser_rl.tools import hub
from laser_rl.tools.source import load_source
from laser_rl.trust import PROMISE
from tests.training.test_sweeps import in_directory, small_sweep


class FakeHub:
    """What `HfApi` is asked, kept; nothing leaves this process."""

    def __init__(self, *, known=True, refuses=False):
        self.known, self.refuses, self.asked, self.files = known, refuses, [], []

    def create_repo(self, repo_id, **named):
        if not self.known:
            raise OSError("Token is required, but no token found. See the documentation.")
        self.asked.append((repo_id, named))
        if self.refuses:
            raise ValueError("403 Forbidden: you cannot write there.\nmore")
        return f"https://huggingface.co/{repo_id}"

    def upload_folder(self, *, folder_path, **named):
        self.files = sorted(
            path.relative_to(folder_path).as_posix() for path in Path(folder_path).rglob("*") if path.is_file()
        )


@pytest.fixture
def api(monkeypatch):
    fake = FakeHub()
    monkeypatch.setattr(hub, "hub_api", lambda: fake)
    return fake


def test_a_dry_run_writes_a_folder_that_works_and_sends_nothing(run, tmp_path, capsys, api):
    folder = tmp_path / "hub"
    assert main(["push", str(run[0]), "somebody/cartpole", "--dry-run", "--out", str(folder)]) == 0
    listed = capsys.readouterr().out
    assert "nothing was sent" in listed
    assert (api.asked, api.files) == ([], [])
    assert not (folder / "replay").exists()
    assert "agent.safetensors" in listed
    agent = LASER.load(folder / "agent.safetensors")
    assert agent.evaluate(episodes=2).episodes == 2
    agent.close()
    assert load_source(folder).trained.steps == newest_step(run[0])  # a run directory, without its replay
    assert main(["push", str(run[0]), "somebody/cartpole", "--dry-run", "--out", str(folder)]) == 2
    assert "not empty" in capsys.readouterr().err


def test_an_agent_comes_back_from_the_hub(run, tmp_path, monkeypatch):
    folder = tmp_path / "hub"
    assert main(["push", str(run[0]), "somebody/cartpole", "--dry-run", "--out", str(folder)]) == 0
    fake = FakeHub()
    monkeypatch.setattr(hub, "hub_api", lambda: fake)
    fake.hf_hub_download = lambda repo, name, revision: fake.asked.append((repo, revision)) or folder / name
    with laser_rl.load_from_hub("somebody/cartpole", revision="v1", device="cpu") as agent:
        assert fake.asked == [("somebody/cartpole", "v1")]
        assert agent.steps == newest_step(run[0])
        assert agent.evaluate(episodes=2).episodes == 2
    fake.hf_hub_download = lambda *_, **__: 1 / 0
    with pytest.raises(
        ConfigError, match=r"gave no agent\.safetensors of somebody/cartpole .*ZeroDivisionError"
    ) as refused:
        laser_rl.load_from_hub("somebody/cartpole")
    assert "\n" not in str(refused.value)


def test_the_card_gives_the_score_of_the_run_with_its_interval(run):
    card = hub.model_card(load_source(run[0]), "somebody/cartpole")
    row = read(run[0], ["evaluation"])[-1]
    assert f"| {row['mean']:.2f} | {row['ci95_low']:.2f} to {row['ci95_high']:.2f} |" in card
    assert 'laser_rl.load_from_hub("somebody/cartpole")' in card
    head = yaml.safe_load(card.split("---")[1])
    [result] = head["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == pytest.approx(row["mean"], abs=1e-4)


def test_of_a_sweep_it_is_the_members_own_score_also_if_it_is_some_steps_ahead(tmp_path):
    in_directory(small_sweep(steps=100), tmp_path)
    for member in range(3):
        source = load_source(tmp_path, member)
        [row] = [row for row in read(tmp_path, ["evaluation"]) if row["member"] == member]
        assert f"| {row['mean']:.2f} |" in hub.model_card(source, "somebody/cartpole")
    first = load_source(tmp_path, 0)
    ahead = [row for row in read(tmp_path, ["evaluation"]) if row["step"] > first.trained.steps]
    assert ahead  # or this test says nothing


def test_an_upload_is_private_unless_asked_and_leaves_nothing_behind(run, api, capsys):
    assert main(["push", str(run[0]), "somebody/cartpole"]) == 0
    assert api.asked == [("somebody/cartpole", {"repo_type": "model", "private": True, "exist_ok": True})]
    assert {"README.md", "agent.safetensors", "config.json", "report.html"} <= set(api.files)
    assert not any(name.startswith("replay/") for name in api.files)
    assert "https://huggingface.co/somebody/cartpole" in capsys.readouterr().out
    main(["push", str(run[0]), "somebody/cartpole", "--public"])
    assert api.asked[-1][1]["private"] is False


def test_without_login_nothing_is_sent(run, api, capsys):
    api.known = False
    assert main(["push", str(run[0]), "somebody/cartpole"]) == 2
    said = capsys.readouterr().err
    assert "hf auth login" in said
    assert "See the documentation" not in said
    assert (api.asked, api.files) == ([], [])


def test_what_the_hub_refuses_is_one_line(run, api, capsys):
    api.refuses = True
    assert main(["push", str(run[0]), "somebody/cartpole"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["push", str(run[0]), "cartpole"]) == 2
    assert "OWNER/NAME" in capsys.readouterr().err


def test_a_missing_extra_is_one_line(run, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(["push", str(run[0]), "somebody/cartpole"]) == 2
    assert "pip install 'laser-rl[hub]'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["export", str(run[0]), "--onnx", "policy.onnx"]) == 2
    assert "pip install 'laser-rl[onnx]'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "minari", None)
    assert main(["export", str(run[0]), "--minari", "laser/a-v0"]) == 2
    assert "pip install 'laser-rl[minari]'" in capsys.readouterr().err


def test_readme_security_and_the_card_promise_the_same(run):
    root = Path(__file__).parents[2]
    texts = [(root / name).read_text() for name in ("README.md", "SECURITY.md")]
    texts.append(hub.model_card(load_source(run[0]), "somebody/cartpole"))
    for text in texts:
        assert text.count(PROMISE) == 1
        assert not any(
            more in text for more in ("nothing in it is ever executed", "never executes code", "executes nothing")
        )
