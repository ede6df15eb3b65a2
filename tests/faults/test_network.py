"""No network at all: everything works, and no connection is tried.

Commands run in a network namespace of their own, which has no interface but a loopback that is down. Two witnesses listen: a hook in every
interpreter, and, where it is installed, strace, which also sees what libraries do.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.fault(25)
LIMIT_S = 600.0
LASER = """
import json, sys
from laser_rl.cli import main
for words in json.loads(sys.argv[1]):
    print(words[0], main(words), flush=True)
"""
NAMES = {"train", "sweep", "resume", "status", "report", "evaluate", "verify", "check-env", "doctor"}
CAGE = ("unshare", "--map-root-user", "--net")
STRACE = ("strace", "-f", "-qq", "--seccomp-bpf", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-o")
WITNESS = """
import os, sys
def hear(event, arguments):
    looked_up = event in {"socket.getaddrinfo", "socket.gethostbyname"}
    asked = event in {"socket.connect", "socket.sendto", "socket.sendmsg"} and isinstance(arguments[1], tuple)
    # Not `laser doctor`, which tries this machine's own loopback address.
    if (looked_up and arguments[0] != "127.0.0.1") or (asked and arguments[1][0] != "127.0.0.1"):
        with open(os.environ["LASER_TEST_WITNESS"], "a") as file:
            file.write(f"{event} {arguments[-1] if event.startswith('socket.get') else arguments[1]}\\n")
sys.addaudithook(hear)
"""
TINY = """--steps 200 --environment.slots 3 --replay.capacity-steps 200 --run.checkpoint-every-steps 100
    --run.evaluate-episodes 2 --network.hidden 8 --plain"""


@functools.cache
def works(*words):
    """Whether a program is there, and may be used."""
    if shutil.which(words[0]) is None:
        return False
    return subprocess.run([*words, "true"], capture_output=True, check=False, timeout=30).returncode == 0


class Cage:
    """Runs programs without a network; `tried` is every connection that one of them wanted."""

    def __init__(self, folder, *, strace):
        self._folder, self._strace = folder, strace
        self.heard, self.seen = folder / "heard", folder / "seen"
        (folder / "sitecustomize.py").write_text(WITNESS)
        self.heard.touch()

    def run(self, program, *arguments):
        before = [*STRACE, str(self.seen)] if self._strace else []
        environment = {
            **os.environ,
            "PYTHONPATH": f"{self._folder}{os.pathsep}{Path(__file__).parents[2]}",
            "LASER_TEST_WITNESS": str(self.heard),
        }
        return subprocess.run(
            [*before, *(CAGE if works(*CAGE) else ()), sys.executable, "-c", program, *arguments],
            capture_output=True, text=True, check=False, timeout=LIMIT_S, env=environment, cwd=self._folder,
        )  # fmt: skip

    def tried(self):
        seen = self.seen.read_text().splitlines() if self._strace else []
        return self.heard.read_text().splitlines() + [
            line for line in seen if "sa_family=AF_INET" in line and '"127.0.0.1"' not in line
        ]


def laser(cage, commands):
    """Several commands in one interpreter: importing torch takes longer than any of them."""
    result = cage.run(LASER, json.dumps([[str(word) for word in words] for words in commands]))
    assert result.returncode == 0, result.stderr
    ended = [line.split()[-1] for line in result.stdout.splitlines() if line.split()[:1] and line.split()[0] in NAMES]
    assert ended == ["0"] * len(commands), result.stdout + result.stderr
    return result


@pytest.mark.slow
@pytest.mark.fault(25)
def test_without_a_network_a_run_is_trained_resumed_and_looked_at(tmp_path):
    run, cage = tmp_path / "run", Cage(tmp_path, strace=False)
    laser(
        cage,
        [
            ["train", "--out", run, *TINY.split()],
            ["resume", run, "--steps", 400, "--plain"],
            ["evaluate", run, "--episodes", 2],
            ["report", run],
            ["verify", run],
        ],
    )
    assert cage.tried() == []


@pytest.mark.slow
@pytest.mark.skipif(not works(*CAGE), reason="needs a network namespace of its own: unshare --net")
@pytest.mark.parametrize("strace", [False, True])
def test_the_witnesses_would_hear_a_connection(strace, tmp_path):
    if strace and not works(*STRACE, "/dev/null"):
        pytest.skip("needs strace")
    cage = Cage(tmp_path, strace=strace)
    result = cage.run("import socket; socket.create_connection(('192.0.2.1', 80), 1)")
    assert result.returncode != 0
    assert "unreachable" in result.stderr
    assert any("192.0.2.1" in line for line in cage.tried())
    assert any("AF_INET" in line for line in cage.tried()) == strace


@pytest.mark.slow
def test_without_a_network_everything_works(tmp_path, figure):
    caged, strace = works(*CAGE), works(*STRACE, "/dev/null")
    run, sweep, cage = tmp_path / "run", tmp_path / "sweep", Cage(tmp_path, strace=strace)
    members = ["--grid", "learning_rate=5e-4,1e-3", "--pbt"]
    local = ["--run.runtime", "local", "--environment.placement", "process", "--environment.workers", 2]
    commands = [
        ["check-env", "CartPole-v1"],
        ["doctor"],
        ["train", "--out", run, *TINY.split(), *local],
        ["resume", run, "--steps", 400, "--plain"],
        ["sweep", "--recipe", "cartpole", "--out", sweep, *TINY.split(), *members, "--processes", 2],
        ["resume", sweep, "--steps", 400, "--plain"],
        ["status", run, sweep],
        ["evaluate", run, "--episodes", 2],
        ["evaluate", sweep, "--episodes", 2],
        ["report", run, sweep, "--out", tmp_path / "report.html"],
        ["verify", run, sweep],
    ]
    laser(cage, commands)
    assert cage.tried() == []
    assert _addresses(tmp_path / "report.html") == []
    how = "without any interface" if caged else "with a network"
    figure(f"{len(commands)} commands {how}{', under strace' if strace else ''}: all ended with 0, 0 connections tried")


def _addresses(path):
    """What a browser would load by itself."""
    text = path.read_text()
    return [text[at : at + 40] for mark in ('src="http', "url(http", "@import") for at in [text.find(mark)] if at >= 0]
