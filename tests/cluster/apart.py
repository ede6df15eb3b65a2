"""Three Ray nodes on this machine that see each other over a network only: each in a network namespace of its own, with an address.

Their wires meet at a bridge in a fourth namespace, so nothing of the machine's own network is touched. Needs root and `ip`.
"""

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path

STORE_BYTES = 100 << 20
PORT = 6379
READY_S = 240.0  # on a busy machine Ray takes a minute to begin
RAY = Path(sys.executable).with_name("ray")


def possible():
    """Whether namespaces, wires and bridges can be made here."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"laser-try-{os.getpid()}"
    made = _ip("netns", "add", name, check=False)
    made = made and _ip("-n", name, "link", "add", "wire", "type", "veth", "peer", "name", "end", check=False)
    made = made and _ip("-n", name, "link", "add", "hub", "type", "bridge", check=False)
    _ip("netns", "del", name, check=False)
    return made


def _ip(*arguments, check=True):
    return subprocess.run(["ip", *arguments], check=check, capture_output=True, timeout=30).returncode == 0


class Apart:
    """A cluster whose nodes have a network namespace each.

    Args:
        folder: for Ray's files; short, since paths of sockets are.
        nodes: how many.
    """

    def __init__(self, folder, nodes=3):
        self._names = [f"laser-{os.getpid()}-{number}" for number in range(nodes)]
        self._hub, self._folder, self._nodes = f"laser-{os.getpid()}-hub", Path(folder), []
        self.addresses = [f"10.77.0.{number + 1}" for number in range(nodes)]
        self.environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
        }

    def __enter__(self):
        try:
            self._wire()
            self._start(0, "--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={self._folder}")
            for number in range(1, len(self._names)):
                self._start(number, f"--address={self.addresses[0]}:{PORT}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wire(self):
        _ip("netns", "add", self._hub)
        _ip("-n", self._hub, "link", "add", "hub", "type", "bridge")
        _ip("-n", self._hub, "link", "set", "hub", "up")
        for number, name in enumerate(self._names):
            _ip("netns", "add", name)
            _ip("-n", self._hub, "link", "add", f"end{number}", "type", "veth", "peer", "name", "wire", "netns", name)
            _ip("-n", self._hub, "link", "set", f"end{number}", "master", "hub", "up")
            _ip("-n", name, "addr", "add", f"{self.addresses[number]}/24", "dev", "wire")
            _ip("-n", name, "link", "set", "wire", "up")
            _ip("-n", name, "link", "set", "lo", "up")

    def _start(self, number, *arguments):
        own = (f"--node-ip-address={self.addresses[number]}", "--num-cpus=4", f"--object-store-memory={STORE_BYTES}")
        self._nodes.append(self.popen(number, str(RAY), "start", "--block", *own, *arguments))
        # The next one finds the files of this one, and takes names of its own; two at once would take the same.
        self._await(number + 1)

    def popen(self, number, *command, **more):
        """A process in the namespace of a node."""
        inside = ["ip", "netns", "exec", self._names[number], *command]
        more = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **more}
        return subprocess.Popen(inside, env=self.environment, start_new_session=True, **more)

    def run(self, number, *command, timeout_s):
        """What it prints."""
        process = self.popen(number, *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, error = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, error = process.communicate(timeout=30)
        assert process.returncode == 0, error[-3000:]
        return out

    def _await(self, nodes):
        """Until so many are there."""
        # By its address: "auto" would also find a cluster that others have started on this machine.
        look = "import ray, sys; ray.init(sys.argv[1], logging_level='ERROR'); print(sum(node['Alive'] for node in ray.nodes()))"
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            with contextlib.suppress(AssertionError):
                found = self.run(0, sys.executable, "-c", look, f"{self.addresses[0]}:{PORT}", timeout_s=60)
                if int(found.split()[-1]) == nodes:
                    return
            time.sleep(1.0)
        raise TimeoutError(f"node {nodes} did not come in {READY_S:.0f} s")

    def __exit__(self, *_):
        for name in self._names:
            found = subprocess.run(
                ["ip", "netns", "pids", name], check=False, capture_output=True, text=True, timeout=30
            )
            for pid in found.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
        for process in self._nodes:
            process.wait(30)
        for name in (*self._names, self._hub):
            _ip("netns", "del", name, check=False)
