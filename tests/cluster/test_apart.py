"""Nodes that share no network but a wire: the same bits in lock-step, and the same return, as on one machine."""

import json
import sys
import tempfile

import pytest

from laser_rl.training.launch import train
from tests.cluster.apart import PORT, Apart, possible
from tests.cluster.apart_sweep import in_step_config
from tests.cluster.raylets import needs_ray
from tests.cluster.sweeps import hashes

pytestmark = [needs_ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster():
    if not possible():
        pytest.skip("needs root, ip, and a kernel with network namespaces, veth and bridges")
    with tempfile.TemporaryDirectory(prefix="lr") as folder, Apart(folder) as nodes:
        yield nodes


def swept(cluster, folder, what):
    command = (sys.executable, "-m", "tests.cluster.apart_sweep", f"{cluster.addresses[0]}:{PORT}", str(folder), what)
    return json.loads(cluster.run(0, *command, timeout_s=900).splitlines()[-1])


def test_namespaces_are_apart(cluster):
    """A node reaches the head by its address, and not by the loopback, which they would share otherwise."""
    look = "import socket, sys; print(socket.socket().connect_ex((sys.argv[1], int(sys.argv[2]))))"
    answers = [
        int(cluster.run(1, sys.executable, "-c", look, address, str(PORT), timeout_s=30))
        for address in (cluster.addresses[0], "127.0.0.1")
    ]
    assert answers[0] == 0
    assert answers[1] != 0


def test_lock_step_gives_the_same_parameters(cluster, tmp_path):
    assert swept(cluster, tmp_path, "in-step") == hashes(train(in_step_config()))


def test_a_shared_sweep_reaches_what_one_machine_reaches(cluster, tmp_path):
    assert max(swept(cluster, tmp_path, "reaches")) >= 450
