"""Recipes: functions that return a complete configuration, of one agent or of a sweep, every number with its source.

Sources: [L] the LASER paper (Schmitt et al. 2019), [I] the IMPALA paper (Espeholt et al. 2018), whose values LASER inherits,
[D] our decision where both are silent (docs/differences-from-the-paper.md), [T] tuned by us on the task named (docs/results/README.md).
"""

from collections.abc import Callable

from laser_rl.config import (
    AtariConfig,
    Config,
    EnvironmentConfig,
    LossConfig,
    NetworkConfig,
    OptimiserConfig,
    ReplayConfig,
    RunConfig,
)
from laser_rl.envs.records import BoxActions, EnvironmentSpec
from laser_rl.errors import ConfigError
from laser_rl.sweep.pbt import PbtConfig, paper
from laser_rl.sweep.settings import SweepConfig
from laser_rl.sweep.space import LogUniform


def cartpole(environment: str = "CartPole-v1") -> Config:
    """Small observations and few actions; also what is used where no other recipe fits.

    >>> cartpole().loss.batch_unrolls
    8
    """
    return Config(
        recipe="cartpole",
        environment=EnvironmentConfig(id=environment, slots=4),  # [T] CartPole
        network=NetworkConfig(hidden=(64, 64)),  # [T] CartPole; the size of stable-baselines3's default
        replay=ReplayConfig(fraction=0.875, capacity_steps=100_000),  # fraction [L]
        loss=LossConfig(
            discount=0.99,  # [I] is 0.99 for Atari too
            unroll_steps=20,  # [I]
            batch_unrolls=8,  # [T] CartPole: 1 online + 7 replayed
            trust="implied",  # [L] section 4.3
            trust_bound=0.03,  # [T] CartPole
            entropy_cost=0.0,  # [T] CartPole
            reward_scale=0.1,  # [T] CartPole: returns of 500 would otherwise swamp the shared torso
        ),
        # [T] CartPole. The schedule matters at the end: with a constant rate a solved task is lost again on some seeds.
        optimiser=OptimiserConfig(kind="adam", learning_rate=2e-3, schedule="linear"),
        run=RunConfig(steps=50_000),
    )


def minatar(environment: str = "MinAtar/Breakout-v1") -> Config:
    """MinAtar's 10×10 pictures.

    >>> minatar().network.torso
    'cnn'
    """
    return Config(
        recipe="minatar",
        environment=EnvironmentConfig(id=environment, slots=16),  # [D], not tuned
        network=NetworkConfig(torso="cnn", channels=16, hidden=(128,)),  # Young & Tian 2019, MinAtar's own networks
        replay=ReplayConfig(fraction=0.875, capacity_steps=500_000),  # fraction [L]
        loss=LossConfig(
            discount=0.99,  # MinAtar's own agents
            unroll_steps=20,  # [I]
            batch_unrolls=32,  # [I], here online and replayed together
            trust="implied",  # [L]
            trust_bound=0.1,  # [D], not tuned
            entropy_cost=0.01,  # [I]
        ),
        optimiser=OptimiserConfig(kind="adam", learning_rate=1e-3, schedule="linear"),  # [D], not tuned
        run=RunConfig(steps=3_000_000, log_every_updates=200, checkpoint_every_steps=500_000),
    )


def continuous(environment: str = "Pendulum-v1") -> Config:
    """Real-valued actions.

    >>> continuous().loss.reward_scale
    0.05
    """
    return Config(
        recipe="continuous",
        environment=EnvironmentConfig(id=environment, slots=8),  # [T] Pendulum
        network=NetworkConfig(hidden=(64, 64), separate_value=True),  # [D], not compared
        # [T] Pendulum: an update for every new unroll. Without the warm-up some seeds collapse onto one action at once.
        replay=ReplayConfig(fraction=31 / 32, capacity_steps=100_000, warmup_steps=2_000),
        loss=LossConfig(
            discount=0.9,  # [T] Pendulum
            unroll_steps=10,  # [T] Pendulum: better than 20 on the one seed compared
            batch_unrolls=32,  # [T] Pendulum: 1 online + 31 replayed
            trust="implied",  # [L]
            trust_bound=0.1,  # [T] Pendulum
            entropy_cost=0.003,  # [T] Pendulum
            reward_scale=0.05,  # [T] Pendulum
        ),
        optimiser=OptimiserConfig(
            kind="adam",
            learning_rate=1e-3,
            schedule="linear",
            clip_gradient_norm=0.1,  # [T] Pendulum
        ),
        run=RunConfig(steps=150_000),
    )


def atari(environment: str = "ALE/Breakout-v5") -> Config:
    """The paper's single LASER agent: large network, 87.5 % replay, IMPALA's tuned schedule.

    >>> config = atari()
    >>> config.replay.capacity_steps, config.loss.batch_unrolls, config.network.width
    (15000000, 128, 4)
    """
    return Config(
        recipe="atari",
        environment=EnvironmentConfig(
            id=environment,
            slots=64,  # [D]
            frame_stack=4,  # [I]
            atari=AtariConfig(most_noops=37, most_frames=108_000),  # [L] evaluation protocol
        ),
        network=NetworkConfig(torso="impala", width=4, precision="bf16"),  # [L] 4 times the filters; bf16 [D]
        replay=ReplayConfig(fraction=0.875, capacity_steps=15_000_000),  # [L] single-agent experiment: 87.5 %, 15 M
        loss=LossConfig(
            discount=0.995,  # [L]
            unroll_steps=19,  # [L] 20 observations
            batch_unrolls=128,  # [L] with replay, in all
            trust="implied",  # [L]
            entropy_cost=0.01,  # [I]
            baseline_cost=0.5,  # [I]
            reduction="sum",  # [I]
            reward_transform="clip",  # [I]
            life_loss_ends_discount=True,  # [I]
        ),
        optimiser=OptimiserConfig(
            kind="rmsprop",  # [I]
            learning_rate=6e-4,  # [I]
            schedule="linear",  # [I]
            decay=0.99,  # [I]
            momentum=0.0,  # [I]
            epsilon=0.01,  # [I]
        ),
        run=RunConfig(steps=50_000_000, runtime="local", checkpoint_every_steps=1_000_000),  # [L] 200 M frames
    )


def impala(environment: str = "ALE/Breakout-v5") -> Config:
    """The paper's baseline: no replay, batch 32; all else as `atari`.

    >>> impala().replay.fraction, impala().loss.batch_unrolls
    (0.0, 32)
    """
    base = atari(environment)
    return base.model_copy(
        update={
            "recipe": "impala",
            "replay": ReplayConfig(fraction=0.0, capacity_steps=1),
            "loss": base.loss.model_copy(update={"batch_unrolls": 32, "trust": "off"}),  # [L] 32 without replay
        }
    )


RECIPES: dict[str, Callable[[str], Config]] = {
    "cartpole": cartpole,
    "minatar": minatar,
    "continuous": continuous,
    "impala": impala,
    "atari": atari,
}


def by_name(name: str, environment: str | None = None) -> Config:
    """A recipe, for another environment than its own if one is given.

    >>> by_name("minatar", "MinAtar/Freeway-v1").environment.id
    'MinAtar/Freeway-v1'
    """
    if name in SWEEPS:
        raise ConfigError(f"recipe {name!r} is for several agents: use it with laser sweep, or choose another")
    if name not in RECIPES:
        raise ConfigError(f"there is no recipe {name!r}; there are {', '.join(RECIPES)}")
    recipe = RECIPES[name]
    return recipe(environment) if environment is not None else recipe()  # type: ignore[call-arg]


def for_environment(spec: EnvironmentSpec, environment: str) -> Config:
    """The recipe that fits what an environment looks like."""
    if isinstance(spec.action, BoxActions):
        return continuous(environment)
    if not spec.observation.is_image:
        return cartpole(environment)
    small = max(spec.observation.shape[1:]) <= 32  # noqa: PLR2004 - as networks.build chooses
    return minatar(environment) if small else atari(environment)


def demo(environment: str = "laser/DeepSea-10") -> SweepConfig:
    """Three members that share a replay, in seconds: the treasure of DeepSea, once one has found it, is everybody's.

    >>> demo().settings
    ({'learning_rate': 0.0005}, {'learning_rate': 0.001}, {'learning_rate': 0.002})
    """
    base = cartpole(environment)
    sparse = {"trust_bound": 0.1, "entropy_cost": 0.01, "reward_scale": 1.0}  # [T] DeepSea-10
    return SweepConfig(
        base=base.model_copy(
            update={
                "recipe": "demo",
                "environment": EnvironmentConfig(id=environment, slots=8),  # [D]
                "loss": base.loss.model_copy(update=sparse),
                "optimiser": base.optimiser.model_copy(update={"schedule": "constant"}),  # [L] constant in sweeps
                # [T] DeepSea-10: all three solve it on seeds 0, 1 and 2; with a replay each, one of them does not.
                "run": RunConfig(steps=20_000, log_every_updates=20),
            }
        ),
        grid={"learning_rate": (5e-4, 1e-3, 2e-3)},  # [T] DeepSea-10
    )


def atari_shared(environment: str = "ALE/Breakout-v5") -> SweepConfig:
    """The paper's sweep on Atari: nine members, one replay; all else as `atari`.

    >>> sweep = atari_shared()
    >>> len(sweep.settings), sweep.base.replay.capacity_steps
    (9, 10000000)
    """
    base = atari(environment)
    return SweepConfig(
        base=base.model_copy(
            update={
                "recipe": "atari-shared",
                # [L] 96 %: 5 online and 123 replayed unrolls. 10 M is the capacity of its other shared replays, [D] for Atari.
                "replay": ReplayConfig(fraction=0.96, capacity_steps=10_000_000),
                "optimiser": base.optimiser.model_copy(update={"schedule": "constant"}),  # [L] constant in sweeps
            }
        ),
        # [L] factors of 1/2, 1 and 2 around IMPALA's values.
        grid={"learning_rate": (3e-4, 6e-4, 1.2e-3), "entropy_cost": (5e-3, 1e-2, 2e-2)},
    )


def dmlab_pbt(environment: str) -> SweepConfig:
    """The settings of the paper's sweep with population based training on DMLab-30, for any environment given.

    DMLab itself, its memory networks, PopArt and PixelControl are not here yet. The margin is meant for normalised scores: set
    `pbt.score_low` and `pbt.score_high` to the returns of a random player and of a human.

    >>> sweep = dmlab_pbt("MinAtar/Breakout-v1")
    >>> len(sweep.settings), sweep.pbt.every_episodes
    (10, 5000)
    """
    base = Config(
        recipe="dmlab-pbt",
        environment=EnvironmentConfig(id=environment, slots=64),  # [D]
        replay=ReplayConfig(fraction=0.875, capacity_steps=10_000_000),  # [L] 16 online and 112 replayed unrolls
        loss=LossConfig(
            discount=0.99,  # [I]
            unroll_steps=79,  # [L] 80 observations
            batch_unrolls=128,  # [L] with replay, in all
            trust="implied",  # [L]
            baseline_cost=0.5,  # [I]
            reduction="sum",  # [I]
            reward_transform="dmlab",  # [I]
        ),
        optimiser=OptimiserConfig(
            kind="rmsprop",  # [I]
            schedule="constant",  # [L] constant in sweeps, [D] for DMLab
            decay=0.99,  # [I]
            momentum=0.0,  # [I]
            epsilon=0.1,  # [L]
        ),
        run=RunConfig(steps=2_500_000_000, checkpoint_every_steps=1_000_000),  # [L] 10 billion frames
    )
    return SweepConfig(
        base=base,
        random={
            "learning_rate": LogUniform(low=5e-6, high=5e-3),
            "entropy_cost": LogUniform(low=5e-5, high=1e-2),
        },  # [I] appendix D
        draws=10,  # [L]
        pbt=paper(),  # [I] appendix F
    )


def small_pbt(steps: int) -> PbtConfig:
    """Population based training for runs of minutes: what it means where a recipe has none of its own. [D], not tuned.

    Args:
        steps: of each member.

    >>> small_pbt(15_000).burn_in_steps
    1500
    """
    # The size of a return is not known here, so any difference counts: a margin in a file is better.
    return PbtConfig(burn_in_steps=steps // 10, every_episodes=50, margin=0.0)


SWEEPS: dict[str, Callable[[str], SweepConfig]] = {
    "demo": demo,
    "atari-shared": atari_shared,
    "dmlab-pbt": dmlab_pbt,
}


def sweep_by_name(name: str, environment: str | None = None) -> SweepConfig:
    """A recipe for a sweep, for another environment than its own if one is given.

    >>> sweep_by_name("atari-shared", "ALE/Pong-v5").base.environment.id
    'ALE/Pong-v5'
    """
    if name not in SWEEPS:
        raise ConfigError(f"there is no recipe for sweeps {name!r}; there are {', '.join(SWEEPS)}")
    if name == "dmlab-pbt" and environment is None:
        raise ConfigError(
            "recipe 'dmlab-pbt' has no environment of its own: DMLab is not supported yet; name one to play"
        )
    recipe = SWEEPS[name]
    return recipe(environment) if environment is not None else recipe()  # type: ignore[call-arg]
