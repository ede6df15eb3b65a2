"""What a cluster cannot do is refused before anything is started. Nothing of Ray is imported here."""

from laser_rl.envs.scores import tasks_of
from laser_rl.errors import ConfigError
from laser_rl.training.settings import ClusterSettings, SweepConfig


def require_possible(sweep: SweepConfig, cluster: ClusterSettings) -> None:
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
