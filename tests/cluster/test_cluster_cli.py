"""`--cluster` as a user types it: what cannot be is one sentence, before anything is started or written."""

import importlib.util
import os
import sys
from types import SimpleNamespace

import pytest

from laser_rl import Sweep, cli
from laser_rl.cluster import calls
from laser_rl.cluster import launch as joining
from laser_rl.cluster.launch import joined
from laser_rl.errors import ConfigError


def asked(path, *more):
    return cli.main(["sweep", "--env", "laser/Catch", "--grid", "learning_rate=1e-3,2e-3", "--out", str(path), *more])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--cluster", "auto", "--replay.sampling", "prioritised"], "use --replay.sampling uniform"),
        (["--cluster", "auto", "--processes", "2"], "leave out one of the two"),
        (["--cluster-runners", "2"], "add --cluster auto, or leave out --cluster-runners"),
        (["--cluster", "auto", "--runtime", "serial", "--cluster-runners", "2"], "or use --runtime local"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(tmp_path, capsys, flags, said):
    assert asked(tmp_path / "run", *flags) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_without_ray_the_command_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert asked(tmp_path / "run", "--cluster", "auto") == 2
    assert "pip install 'laser-rl[cluster]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


class NoCluster:
    """A library ray that finds no cluster, or one that does not let us in."""

    __version__ = "0"

    def __init__(self, error, address="127.0.0.1:6379"):
        self.error, self.asked, self.address = error, [], address

    def get_runtime_context(self):
        return SimpleNamespace(gcs_address=self.address)

    def is_initialized(self):
        return False

    def init(self, **settings):
        self.asked.append(settings)
        if settings["address"] != "local":
            raise self.error
        return SimpleNamespace(address_info={"session_dir": "/nowhere"})

    def shutdown(self):
        self.asked.append("shutdown")


@pytest.fixture
def library(monkeypatch, tmp_path):
    def use(error, *address):
        found = NoCluster(error, *address)
        monkeypatch.setattr(joining, "ray", lambda: found)
        return found

    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "")  # so that what is set is taken back
        monkeypatch.delenv(name)
    monkeypatch.setattr(joining, "TOKEN_FILE", tmp_path / "none")
    return use


def test_auto_starts_a_cluster_with_a_token_of_its_own_where_none_runs(library, monkeypatch):
    found = library(ConnectionError("Could not find any running Ray instance"))
    with joined("auto"):
        assert os.environ["RAY_AUTH_MODE"] == "token"
        assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    assert [one if isinstance(one, str) else one["address"] for one in found.asked] == ["auto", "local", "shutdown"]


def test_ray_sends_no_statistics_home(monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "")  # so that what is set is taken back
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED")
    monkeypatch.setattr(calls, "require_modules", lambda *_: None)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    calls.ray.__wrapped__()
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


@pytest.mark.fault(32)
def test_a_ray_that_would_listen_on_all_interfaces_is_not_used(library):
    found = library(None, "192.0.2.7:6379")
    with (
        pytest.raises(ConfigError, match=r"listen on 127\.0\.0\.1 alone, but has the address 192\.0\.2\.7"),
        joined("local"),
    ):
        pass
    assert found.asked[-1] == "shutdown"


@pytest.mark.parametrize(
    ("address", "error", "what_to_do"),
    [
        (
            "auto",
            ConnectionError("Unauthenticated: bad token"),
            "set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH, to the token",
        ),
        ("host:6379", RuntimeError("Authentication failed\nand more"), "set RAY_AUTH_TOKEN"),
        ("ray://host:10001", ConnectionError("no route"), "set RAY_AUTH_TOKEN"),
    ],
)
def test_a_cluster_that_lets_nobody_in_is_said_with_what_to_do(library, address, error, what_to_do):
    library(error)
    with pytest.raises(ConfigError, match=what_to_do) as caught, joined(address):
        pass
    assert "\n" not in str(caught.value)


def test_objects_of_ones_own_are_refused(tmp_path):
    from gymnasium.envs.classic_control import CartPoleEnv  # noqa: PLC0415

    sweep = Sweep(CartPoleEnv, grid={"learning_rate": [1e-3]}, cluster="auto", run_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match="leave out cluster to use objects of your own"):
        sweep.run(10)
