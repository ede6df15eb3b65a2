"""The README is true: its commands run and its code runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
# `make test` is what runs this test.
NOT_HERE = {"make test"}


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


COMMANDS = [line for block in blocks("bash") for line in block.splitlines() if line and line not in NOT_HERE]


def test_commands_run_one_after_the_other(tmp_path):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for command in COMMANDS:
        if command.startswith("make") and not (ROOT / ".venv" / ".ready").exists():
            continue  # this environment was not made by make, and would be made a second time
        where = ROOT if command.startswith("make") else tmp_path  # runs go to the current folder
        result = subprocess.run(
            command.split(), cwd=where, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert result.returncode == 0, f"{command}: {result.stderr}"
        assert result.stdout, command
    assert (tmp_path / "runs" / "readme" / "report.html").exists()


def test_there_are_commands():
    assert {"make demo", "laser check-env CartPole-v1"} <= set(COMMANDS)


def test_python_examples_run_top_to_bottom(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = "\n".join(blocks("python"))
    exec(compile(program, "README.md", "exec"), {})  # noqa: S102
    assert capsys.readouterr().out.startswith("EvalResult(mean=")


def documents():
    skipped = {".venv", "mutants", ".hypothesis"}
    return [path for path in ROOT.rglob("*.md") if not skipped & set(path.relative_to(ROOT).parts)]


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


def test_every_function_that_the_documents_name_exists():
    import importlib  # noqa: PLC0415

    modules = {path.stem for path in (ROOT / "laser_rl" / "ops").glob("*.py")}
    for path in documents():
        for module, name in re.findall(r"`([a-z_]+)\.([a-z_]+)`", path.read_text()):
            if module in modules and name not in {"md", "py"}:  # files, not functions
                assert hasattr(importlib.import_module(f"laser_rl.ops.{module}"), name), f"{path.name}: {module}.{name}"
