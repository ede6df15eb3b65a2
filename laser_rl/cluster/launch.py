"""From the settings of a sweep to a finished sweep on a cluster."""

from collections.abc import Sequence
from functools import partial

from laser_rl.cluster.connection import joined
from laser_rl.cluster.lock_step import LockStep
from laser_rl.cluster.supervisor import ClusterSupervisor
from laser_rl.errors import ConfigError
from laser_rl.metrics.rows import Sink
from laser_rl.networks.build import TorsoSource
from laser_rl.training.build import EnvironmentSource
from laser_rl.training.cluster_settings import ClusterSettings, require_possible
from laser_rl.training.directory import RunDirectory
from laser_rl.training.launch import Elsewhere
from laser_rl.training.member_training import Callback
from laser_rl.training.result import Result
from laser_rl.training.settings import SweepConfig
from laser_rl.training.supervisor import require_by_name


def on_cluster(cluster: ClusterSettings | None) -> Elsewhere | None:
    """For `launch.train`: run on this cluster; None: on this machine."""
    return None if cluster is None else partial(run_cluster, cluster)


def run_cluster(
    cluster: ClusterSettings,
    sweep: SweepConfig,
    directory: RunDirectory | None,
    *,
    source: EnvironmentSource | None = None,
    torso: TorsoSource | None = None,
    sinks: Sequence[Sink] = (),
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Run a sweep on a cluster; ConfigError for what cannot be sent there, before anything is started."""
    if directory is None:
        raise ConfigError(
            "a sweep on a cluster needs a run directory: its checkpoints are all that outlives it; give one"
        )
    require_by_name(source, torso, "on a cluster", "leave out cluster to use objects of your own")
    require_possible(sweep, cluster)
    others = [sink for sink in sinks if sink is not directory.log]  # the supervisor writes into the log itself
    kind = LockStep if sweep.base.run.runtime == "serial" else ClusterSupervisor
    with joined(cluster.address):
        return kind(sweep, directory, cluster, sinks=others, callbacks=callbacks).run()
