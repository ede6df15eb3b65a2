"""The systems of the paper's comparison on DMLab-30, each for any mixture of tasks.

On DMLab they are the paper's own. Elsewhere the same parts have a size that learns `suite:grid` on a small machine.
"""

from laser_rl.config import (
    Config,
    EnvironmentConfig,
    LossConfig,
    NetworkConfig,
    OptimiserConfig,
    ReplayConfig,
    RunConfig,
    override,
)
from laser_rl.recipes.single import shared

SUITE = "suite:grid"


def laser_multitask(environment: str = SUITE) -> Config:
    """LASER with a memory: PreCo LSTM, PopArt, PixelControl, 87.5 % replay with states refreshed."""
    base = _dmlab(environment) if is_dmlab(environment) else _small(environment)
    return base.model_copy(update={"recipe": "laser-multitask"})


def popart_impala_pixelcontrol(environment: str = SUITE) -> Config:
    """No replay, a plain LSTM; PopArt and PixelControl."""
    base = laser_multitask(environment)
    batch = 32 if is_dmlab(environment) else base.loss.batch_unrolls  # [L] 32 without replay
    return override(
        base,
        {
            "recipe": "popart-impala-pixelcontrol",
            "network.memory": "lstm",  # Hessel et al. 2018
            "replay.fraction": 0.0,
            "replay.capacity_steps": 1,
            "loss.batch_unrolls": batch,
            "loss.trust": "off",
            "loss.trust_bound": None,
        },
    )


def popart_impala(environment: str = SUITE) -> Config:
    """No replay, a plain LSTM; PopArt."""
    base = popart_impala_pixelcontrol(environment)
    return override(base, {"recipe": "popart-impala", "loss.pixel_control_cost": 0.0})


def is_dmlab(environment: str) -> bool:
    """Whether DMLab is meant: suite:dmlab-30, or one of its levels."""
    return environment.startswith(("suite:dmlab", "dmlab/"))


def _dmlab(environment: str) -> Config:
    return Config(
        # A game a process: DMLab's are not safe beside each other. [D]
        environment=EnvironmentConfig(id=environment, slots=shared(environment, 60), placement="process", workers=60),
        network=NetworkConfig(torso="impala", memory="preco", memory_size=256, precision="bf16"),  # preco [L], size [I]
        replay=ReplayConfig(fraction=0.875, capacity_steps=10_000_000),  # [L] 16 online and 112 replayed unrolls
        loss=LossConfig(
            discount=0.99,  # [I]
            unroll_steps=79,  # [L] 80 observations
            batch_unrolls=128,  # [L] with replay, in all
            trust="implied",  # [L]
            baseline_cost=0.5,  # [I]
            entropy_cost=7e-4,  # [D] the middle of the range that [I] draws from
            reduction="sum",  # [I]
            reward_transform="dmlab",  # [I]
            popart=True,  # [L]
            popart_step=3e-4,  # Hessel et al. 2018
            pixel_control_cost=0.05,  # [D] within the published range
        ),
        optimiser=OptimiserConfig(
            kind="rmsprop",  # [I]
            learning_rate=1.6e-4,  # [D] the middle of the range that [I] draws from
            schedule="constant",  # [L] constant in sweeps, [D] for DMLab
            decay=0.99,  # [I]
            momentum=0.0,  # [I]
            epsilon=0.1,  # [L]
        ),
        run=RunConfig(steps=2_500_000_000, runtime="local", checkpoint_every_steps=1_000_000),  # [L] 10 billion frames
    )


def _small(environment: str) -> Config:
    """[T] suite:grid, where marked: the better of a few values, one run of 1.1 M steps each (docs/results/recurrent)."""
    return Config(
        environment=EnvironmentConfig(id=environment, slots=shared(environment, 48)),  # [D]
        network=NetworkConfig(torso="tiles", channels=16, hidden=(128,), memory="preco", memory_size=128),  # [D]
        replay=ReplayConfig(fraction=0.75, capacity_steps=500_000),  # [T]
        loss=LossConfig(
            discount=0.99,  # [I], [T]
            unroll_steps=20,  # [D]
            batch_unrolls=64,  # [D] 16 online and 48 replayed
            trust="implied",  # [L]
            trust_bound=0.3,  # [T]
            entropy_cost=0.01,  # [T]
            popart=True,  # [L]
            pixel_control_cost=0.05,  # [T]
        ),
        optimiser=OptimiserConfig(kind="adam", learning_rate=1e-3, clip_gradient_norm=1.0),  # rate [T]
        run=RunConfig(steps=2_000_000, log_every_updates=100, checkpoint_every_steps=500_000),
    )
