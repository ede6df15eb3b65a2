"""The code of docs/export.md runs from top to bottom."""

import re
from pathlib import Path

import pytest

from laser_rl.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "export.md"


@pytest.mark.slow
def test_the_code_of_the_page_runs(run, tmp_path, monkeypatch, capsys):
    for library in ("onnxscript", "onnxruntime", "minari"):
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", "nowhere")  # so that it is put back: the page sets it
    named = ["--onnx", "policy.onnx", "--minari", "laser/cartpole/mixed-v0", "--out", "datasets"]
    assert main(["export", str(run[0]), *named]) == 0
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 4
    names = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102
    assert "CartPole-v1" in capsys.readouterr().out
    assert names["sampled"].shape == names["action"].shape == (3,)
    assert Path("mine.onnx").exists()
