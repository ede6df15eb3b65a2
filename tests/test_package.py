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


def test_a_source_tree_that_is_not_installed_can_be_imported(tmp_path):
    (tmp_path / "laser_rl").mkdir()
    (tmp_path / "laser_rl" / "__init__.py").write_text((ROOT / "laser_rl" / "__init__.py").read_text())
    program = f"import sys; sys.path = [{str(tmp_path)!r}, *sys.path]; import laser_rl; print(laser_rl.__version__)"
    result = run(sys.executable, "-I", "-S", "-c", program, cwd=tmp_path)
    assert (result.returncode, result.stdout.strip()) == (0, "0.0.0+source"), result.stderr


def test_wheel_is_typed_and_holds_the_package_only(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "laser_rl/py.typed" in names
    assert {"laser_rl/research/data/experiments.yaml", "laser_rl/envs/data/suites.csv"} <= set(names)
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
    laser = empty_environment / "bin" / "laser"
    result = run(laser, "config", "show", cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(here)})
    assert result.returncode == 0, result.stderr
    assert "recipe: cartpole" in result.stdout


@pytest.mark.slow
def test_wheel_installs_with_its_dependencies(wheel, tmp_path):
    venv.create(tmp_path, with_pip=True)
    python, constraints = tmp_path / "bin" / "python", ROOT / "constraints.txt"
    for what in ("torch", wheel):
        result = run(python, "-m", "pip", "install", "--quiet", "--constraint", constraints, what)
        assert result.returncode == 0, result.stderr
    result = run(tmp_path / "bin" / "laser", "config", "show", cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_importing_the_package_does_not_import_torch():
    assert (
        run(sys.executable, "-c", "import laser_rl, laser_rl.cli, sys; sys.exit('torch' in sys.modules)").returncode
        == 0
    )


EXECUTES = {
    "pickle",
    "_pickle",
    "cPickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
    "code",
    "codeop",
    "runpy",
    "jsonpickle",
}
NETWORK = {
    "socket",
    "ssl",
    "urllib",
    "http",
    "requests",
    "httpx",
    "aiohttp",
    "ftplib",
    "smtplib",
    "telnetlib",
    "xmlrpc",
    "socketserver",
}
DASHBOARD = {"view", "watch.py", "tools/doctor.py"}  # listens on the loopback address, or tries whether one can
# The first works on strings; the others set a time limit on a pipe that is there already (AF_UNIX without an address).
HARMLESS = {
    "urllib.parse.quote", "socket.fromfd", "socket.AF_UNIX", "socket.SOCK_STREAM", "socket.SOL_SOCKET", "socket.SO_RCVTIMEO",
}  # fmt: skip
CALLS = {
    "eval", "exec", "compile", "__import__", "torch.load", "torch.jit.load", "torch.hub", "torch.package", "numpy.load",
    "numpy.fromregex",
    "numpy.lib.npyio", "pandas.read_pickle", "os.system", "os.popen", "copyreg", "imp", "zipimport", "types.FunctionType",
    "types.CodeType",
    *(f"yaml.{name}" for name in (
        "load", "load_all", "unsafe_load", "unsafe_load_all", "full_load", "full_load_all", "Loader", "UnsafeLoader", "FullLoader",
        "CLoader",
        "CUnsafeLoader", "CFullLoader",
    )),
}  # fmt: skip


def dangers(source, *, network=False):
    """What in a module could execute what it loads, or (unless `network` is allowed) reach out: imports, calls, and names of either."""
    tree, aliases, found = ast.parse(source), {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            base = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                name = base + alias.name
                aliases[alias.asname or alias.name] = name
                refused = EXECUTES | (set() if network else NETWORK)
                found += [name] if name in CALLS or (name.split(".")[0] in refused and name not in HARMLESS) else []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            first, dot, rest = ast.unparse(node).partition(".")
            name = (aliases.get(first, first) + dot + rest).removeprefix("builtins.")
            found += [name] if name in CALLS else []
        elif isinstance(node, ast.keyword) and node.arg in {"allow_pickle", "weights_only"}:
            found.append(node.arg)
        elif isinstance(node, ast.keyword) and node.arg == "shell" and ast.unparse(node.value) != "False":
            found.append("shell")
    return found


@pytest.mark.fault(14)
def test_nothing_here_can_execute_what_it_loads(figure):
    places = {path: {*path.parts, f"{path.parent.name}/{path.name}"} for path in SOURCES}
    found = {path: dangers(path.read_text(), network=bool(DASHBOARD & places[path])) for path in SOURCES}
    assert not {path.relative_to(ROOT): names for path, names in found.items() if names}
    figure(f"syntax trees of {len(found)} modules: no way to execute data")


@pytest.mark.fault(14)
@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from pickle import loads", "import marshal as m", "import shelve", "from shelve import open",
        "import urllib.request",
        "import torch\ntorch.load('x')", "import torch as t\nt.load('x', weights_only=True)", "from torch import load\nload('x')",
        "from torch import load as read\nread('x')", "import torch.jit\ntorch.jit.load('x')", "import torch\nreader = torch.load",
        "import yaml\nyaml.load('x', yaml.SafeLoader)", "import yaml\nyaml.unsafe_load('x')",
        "from yaml import full_load\nfull_load('x')",
        "from yaml import Loader", "import numpy as np\nnp.load('x')", "f(x, allow_pickle=True)", "eval('1')", "exec('1')", "run = exec",
        "import builtins\nbuiltins.eval('1')", "__import__('os')", "compile('1', '', 'eval')", "import os\nos.system('x')",
        "run('x', shell=True)",
    ],
)  # fmt: skip
def test_what_could_execute_is_found(source):
    assert dangers(source)


@pytest.mark.parametrize(
    "source",
    ["network.eval()", "import re\nre.compile('x')", "import torch\ntorch.compile(f)", "import yaml\nyaml.safe_load('x')", "json.load(f)"],
)  # fmt: skip
def test_what_is_harmless_is_not(source):
    assert not dangers(source)


# What another example shows: states, records, what an update or a check is made of.
PARTS = {"initial", "counted", "centred", "moments", "confidence", "weighted_share", "active"}


def test_public_operations_are_explained_by_an_example_that_runs():
    for path in (path for path in SOURCES if path.parent.name == "ops"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                text = ast.get_docstring(node)
                assert text, f"{path.name}: {node.name} has no docstring"
                shown = ">>>" in text or isinstance(node, ast.ClassDef) or path.stem == "checks" or node.name in PARTS
                assert shown, f"{path.name}: {node.name} has no example"


def test_files_and_functions_stay_readable():
    for path in SOURCES:
        text = path.read_text()
        assert text.count("\n") <= 400, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 70, f"{path}: {node.name}"
