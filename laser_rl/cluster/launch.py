"""From the settings of a sweep to a finished sweep on a cluster: into a Ray cluster, with a token, and out of it again."""

import atexit
import contextlib
import logging
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Unpack

from laser_rl.cluster.calls import ray
from laser_rl.cluster.guard import ProcessGuard
from laser_rl.cluster.placement import HeadLost
from laser_rl.cluster.supervisor import ClusterSupervisor, LockStep
from laser_rl.envs.scores import tasks_of
from laser_rl.errors import ConfigError
from laser_rl.training.directory import RunDirectory
from laser_rl.training.evaluate import Result
from laser_rl.training.launch import Around
from laser_rl.training.process_handle import end_at_once
from laser_rl.training.settings import ClusterSettings, SweepConfig
from laser_rl.training.supervisor import require_by_name

log = logging.getLogger("laser_rl.training")
# Bytes of shared memory for deliveries and parameters; the replay is no part of it.
LEAST_STORE, MOST_STORE = 100 << 20, 4 << 30
INLINE_BYTES = 1 << 20  # that go along with a call
LOOPBACK = "127.0.0.1"
QUIET = {"log_to_driver": False, "logging_level": "ERROR"}
TOKEN_FILE = Path("~/.ray/auth_token")


def run_cluster(
    cluster: ClusterSettings, sweep: SweepConfig, directory: RunDirectory | None, **around: Unpack[Around]
) -> Result:
    """Run a sweep on a cluster; ConfigError for what cannot be sent there, before anything is started."""
    if directory is None:
        raise ConfigError("a sweep on a cluster needs a run directory: only its checkpoints outlive it; give one")
    require_possible(sweep, cluster, **around)
    kind = LockStep if sweep.base.run.runtime == "serial" else ClusterSupervisor
    with joined(cluster.address):
        return kind(sweep, directory, cluster, **around).run()


def require_possible(sweep: SweepConfig, cluster: ClusterSettings, **around: Unpack[Around]) -> None:
    """Refuse what a cluster cannot do, before anything is started."""
    require_by_name(sweep, "on a cluster", "leave out cluster to use objects of your own", **around)
    if sweep.stack == "on":
        raise ConfigError(
            "on a cluster each member has processes of its own, so they are not computed side by side; leave out --stack"
        )
    if sweep.base.run.devices > 1:
        raise ConfigError(
            f"run.devices {sweep.base.run.devices} are of one machine, and a learner of a cluster has one; leave out one of the two"
        )
    if sweep.processes != 1:
        raise ConfigError(
            f"--processes {sweep.processes} spreads a sweep over one machine, --cluster over several; leave out one of the two"
        )
    for config in sweep.configs:
        if config.replay.fraction and config.replay.sampling != "uniform":
            raise ConfigError(
                "priorities are kept by one learner for one store, a cluster's replay lies in several; use --replay.sampling uniform"
            )
        if config.replay.fraction and config.network.memory != "none" and config.replay.state == "refresh":
            raise ConfigError(
                "a memory is refreshed by replaying whole episodes in order, which a cluster's replay does not do; "
                "use --replay.state stored (with --replay.burn-in-steps), or leave out --cluster"
            )
    environment, runners = sweep.base.environment, cluster.runners
    tasks = max(1, len(tasks_of(environment.id)))
    if runners < 1 or environment.slots % (tasks * runners) * (tasks > 1) or runners > environment.slots:
        slots = f"{environment.slots} slots" + (f" of {tasks} tasks" if tasks > 1 else "")
        raise ConfigError(
            f"{runners} runners cannot share the {slots} of a member; "
            f"use --cluster-runners {max(1, environment.slots // tasks // 2)} or fewer, or more --environment.slots"
        )
    if sweep.base.run.runtime == "serial" and runners > 1:
        raise ConfigError(
            f"in lock-step (--runtime serial) a member has one runner, not {runners}; leave out --cluster-runners, or use --runtime local"
        )


@contextlib.contextmanager
def joined(address: str) -> Iterator[None]:
    """Join a cluster, "auto", "local", host:port or ray://host:port, while the block lasts; one that is joined already stays so."""
    own_token = _authenticate()
    library = ray()
    if library.is_initialized():
        yield
        return
    guard = _connect(library, address, own_token=own_token)
    try:
        yield
    except HeadLost:
        # Ray would wait a minute for a head that is gone, and then crash this process. It also crashes an interpreter that ends, so
        # that our exit status would be lost; that is why the end is cut short.
        atexit.unregister(library.shutdown)
        atexit.register(end_at_once, HeadLost.exit_status)
        raise
    finally:
        if not isinstance(sys.exception(), HeadLost):
            library.shutdown()
        if guard is not None:
            guard.close()


def _authenticate() -> bool:
    """Token authentication, unless the user has said otherwise; True if there was no token and one was made for this process alone."""
    if os.environ.setdefault("RAY_AUTH_MODE", "token") != "token":
        return False
    given = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if given or TOKEN_FILE.expanduser().exists():
        return False
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    return True


def _connect(library: Any, address: str, *, own_token: bool) -> ProcessGuard | None:
    # Ray starts its actors with a niceness of 15, so that anything else on the machine would go before them. Deliveries have
    # some 150 KB; by way of the object store, as Ray sends all above 100, they cost several calls more. Heard by a new cluster only.
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_max_direct_call_object_size", str(INLINE_BYTES))
    try:
        if address == "local":
            return _start(library)
        library.init(**QUIET, address=address)
    except ConfigError:
        raise
    except Exception as error:
        text = f"{type(error).__name__} {error}".lower()
        refused = "token" in text or "unauthenticated" in text or "authentication" in text
        if address == "auto" and isinstance(error, ConnectionError) and not refused:
            log.info("no Ray cluster runs here; one is started on this machine")
            return _start(library)
        hint = "start one with 'ray start --head', look at 'ray status', or use --cluster auto"
        if own_token or refused:
            hint = (
                "set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH, to the token that it was started with "
                "(or RAY_AUTH_MODE=disabled, if it has none)"
            )
        said = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
        raise ConfigError(f"there is no way into the Ray cluster {address!r}: {said}; {hint}") from None
    return None


def _start(library: Any) -> ProcessGuard:
    """Start a cluster of this machine alone: it listens on the loopback address only, and nothing of it outlives this process."""
    free = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").exists() else LEAST_STORE  # noqa: S108 - only looked at
    store = max(LEAST_STORE, min(MOST_STORE, free // 3))
    # Ray takes the loopback address, and then listens on nothing else, only where it believes that clusters are not possible. To join
    # another one later, this process needs an address that others can reach. A Ray of another version may keep this elsewhere.
    constants: Any = sys.modules.get("ray._private.ray_constants", SimpleNamespace())
    before, constants.ENABLE_RAY_CLUSTER = getattr(constants, "ENABLE_RAY_CLUSTER", None), False
    try:
        started = library.init(**QUIET, address="local", include_dashboard=False, object_store_memory=store)
    finally:
        constants.ENABLE_RAY_CLUSTER = before
    guard = ProcessGuard(started.address_info["session_dir"])
    address = str(library.get_runtime_context().gcs_address)
    if not address.startswith(f"{LOOPBACK}:"):
        library.shutdown()
        guard.close()
        raise ConfigError(
            f"Ray {library.__version__} was asked to listen on {LOOPBACK} alone, but has the address {address}; "
            "use another version of Ray, or start a cluster yourself and name it: --cluster HOST:PORT"
        )
    return guard
