"""The built wheel, the layers, and what the package promises never to do."""

import ast
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import laser_rl
import laser_rl.ops

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "laser_rl").rglob("*.py"))


def run(*command, **options):
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=300, check=False, **options
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    result = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    assert result.returncode == 0, result.stderr
    return next(folder.glob("laser_rl-*.whl"))


@pytest.fixture(scope="module")
def empty_environment(wheel, tmp_path_factory):
    """Nothing but Python and the wheel: what needs a dependency must not be needed to say one's version."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    result = run(folder / "bin" / "python", "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    assert result.returncode == 0, result.stderr
    return folder


def test_wheel_is_typed_and_holds_the_package_only(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "laser_rl/py.typed" in names
    assert "laser_rl/evaluation/data/laser_atari57_paper.csv" in names
    assert "laser_rl/ops/vtrace.py" in names
    assert {name.split("/")[0] for name in names} == {"laser_rl", f"laser_rl-{laser_rl.__version__}.dist-info"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_version_and_help_run_from_the_wheel_without_any_dependency(empty_environment, tmp_path):
    laser = empty_environment / "bin" / "laser"
    version = run(laser, "--version", cwd=tmp_path)
    assert (version.returncode, version.stdout.strip()) == (0, f"laser {laser_rl.__version__}")
    usage = run(laser, "--help", cwd=tmp_path)
    assert usage.returncode == 0
    assert "usage: laser COMMAND" in usage.stdout


def test_a_command_runs_from_the_wheel(empty_environment, tmp_path):
    here = Path(pytest.__file__).parents[1]  # lend it this environment's packages
    result = run(
        empty_environment / "bin" / "laser", "theory", cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(here)}
    )
    assert result.returncode == 0, result.stderr
    assert "Proposition 1" in result.stdout


@pytest.mark.slow
def test_wheel_installs_with_its_dependencies(wheel, tmp_path):
    venv.create(tmp_path, with_pip=True)
    python, constraints = tmp_path / "bin" / "python", ROOT / "constraints.txt"
    for what in ("torch", wheel):
        result = run(python, "-m", "pip", "install", "--quiet", "--constraint", constraints, what)
        assert result.returncode == 0, result.stderr
    result = run(tmp_path / "bin" / "laser", "theory", cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_importing_the_package_does_not_import_torch():
    assert (
        run(sys.executable, "-c", "import laser_rl, laser_rl.cli, sys; sys.exit('torch' in sys.modules)").returncode
        == 0
    )


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_here_can_execute_what_it_loads(path):
    forbidden = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "socket", "urllib", "http", "requests"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & forbidden
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in forbidden
        elif isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in {
                "eval",
                "exec",
                "compile",
                "__import__",
                "torch.load",
                "yaml.load",
                "numpy.load",
            }


def public_functions():
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            if (
                isinstance(node, ast.FunctionDef | ast.ClassDef)
                and not node.name.startswith("_")
                and "ops" in path.parts
            ):
                yield pytest.param(path, node, id=f"{path.stem}.{node.name}")


# What is explained by its class or module: records, types of checks, and checks of the families.
WITHOUT_EXAMPLE = {
    "Unrolls", "Estimate", "ActorCriticLosses", "Statistics", "Layer", "State", "Step", "Unrolled", "MDP", "Operator", "require",
    "same_shape", "dimensions", "last_dimension", "floating", "boolean", "indices", "finite", "clip_constants", "positive", "share",
    "check_parameters", "check_action", "Evaluation",
}  # fmt: skip


@pytest.mark.parametrize(("path", "node"), public_functions())
def test_public_names_have_an_example_that_runs(path, node):
    docstring = ast.get_docstring(node)
    assert docstring, f"{path.name}: {node.name} has no docstring"
    assert node.name in WITHOUT_EXAMPLE or ">>>" in docstring


def test_files_and_functions_stay_readable():
    for path in SOURCES:
        text = path.read_text()
        assert text.count("\n") <= 400, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 70, f"{path}: {node.name}"
