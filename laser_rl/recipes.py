"""Recipes: functions that return a complete configuration, of one agent or of a sweep, every number with its source.

Sources: [L] the LASER paper (Schmitt et al. 2019), [I] the IMPALA paper (Espeholt et al. 2018), whose values LASER inherits,
[D] our decision where both are silent (docs/differences-from-the-paper.md), [T] tuned by us on the task named (docs/results/README.md).

What a recipe of ours leaves out has the default of `config`: a discount of 0.99, unrolls of 20 steps and an entropy cost of 0.01 [I],
relevance by the implied policy [L] (section 4.3). The papers' own recipes say every number.
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
    auto_slots,
    override,
)
from laser_rl.envs.records import BoxActions, EnvironmentSpec
from laser_rl.envs.scores import tasks_of
from laser_rl.errors import ConfigError, suggestion
from laser_rl.training.pbt import PbtConfig, paper
from laser_rl.training.settings import LogUniform, SweepConfig

SUITE, _DOOM = "suite:grid", ("suite:doom", "doom/")
_WITHOUT_REPLAY = {
    "replay.fraction": 0.0,
    "replay.capacity_steps": 1,
    "loss.batch_unrolls": 32,  # [L]
    "loss.trust": "off",
    "loss.trust_bound": None,
}


def shared(environment: str, slots: int) -> int:
    """At least so many slots, and as many for each task of a mixture.

    >>> shared("laser/Catch", 4), shared("suite:grid", 16)
    (4, 24)
    """
    tasks = len(tasks_of(environment))
    return -(-slots // tasks) * tasks


def cartpole(environment: str = "CartPole-v1") -> Config:
    """Small observations and few actions; also what is used where no other recipe fits. [T]: CartPole and Acrobot, 100,000 steps."""
    return Config(
        recipe="cartpole",
        environment=EnvironmentConfig(id=environment, slots=shared(environment, 4)),  # [T]
        network=NetworkConfig(hidden=(64, 64)),  # [T] the size of stable-baselines3's default
        # [T] 1 online + 31 replayed. With batches of 8 and a rate of 2e-3 a solved task was lost again on some seeds (docs/results).
        replay=ReplayConfig(fraction=31 / 32, capacity_steps=100_000),
        loss=LossConfig(
            batch_unrolls=32,  # [T]
            trust_bound=0.03,  # [T]
            entropy_cost=0.003,  # [T]
            reward_scale=0.1,  # [T] returns of 500 would otherwise swamp the shared torso
        ),
        optimiser=OptimiserConfig(kind="adam", learning_rate=3e-4),  # [T] constant: a run that goes on needs no end
        run=RunConfig(steps=100_000),
    )


def minatar(environment: str = "MinAtar/Breakout-v1") -> Config:
    """MinAtar's 10×10 pictures."""
    return Config(
        recipe="minatar",
        environment=EnvironmentConfig(id=environment, slots=shared(environment, 16)),  # [D], not tuned
        network=NetworkConfig(torso="cnn", channels=16, hidden=(128,)),  # Young & Tian 2019, MinAtar's own networks
        replay=ReplayConfig(fraction=0.875, capacity_steps=500_000),  # fraction [L]
        loss=LossConfig(
            batch_unrolls=32,  # [I], here online and replayed together
            trust_bound=0.1,  # [D], not tuned
        ),
        optimiser=OptimiserConfig(kind="adam", learning_rate=1e-3, schedule="linear"),  # [D], not tuned
        run=RunConfig(steps=3_000_000, log_every_updates=200, checkpoint_every_steps=500_000),
    )


def pictures(environment: str = "ALE/Breakout-v5") -> Config:
    """Pictures of more than 32 pixels, on a laptop; rewards as they are. [T]: Breakout, Empty-Random; where marked *, Breakout alone."""
    return Config(
        recipe="pictures",
        environment=EnvironmentConfig(
            id=environment,
            slots=shared(environment, 16),  # [D], not tuned
            frame_stack=2,  # [D] one picture shows no motion; four take longer
        ),
        network=NetworkConfig(torso="tiles", channels=8, hidden=(128,)),  # [D] a small part of impala's time on a CPU
        replay=ReplayConfig(fraction=0.875, capacity_steps=100_000, budget_gb=1.0),  # fraction [L]; [T] 0.75 was worse
        loss=LossConfig(
            batch_unrolls=16,  # [T]* 8 were no better and took longer; 2 online + 14 replayed
            trust_bound=0.1,  # [T]* 0.3 was worse
            entropy_cost=0.003,  # [T] better than 0.01
            popart=True,  # [D] rewards are not clipped, and their size is not known
        ),
        optimiser=OptimiserConfig(kind="adam", learning_rate=1e-3, clip_gradient_norm=1.0),  # rate [T], 5e-4 was worse
        run=RunConfig(steps=500_000, checkpoint_every_steps=100_000),
    )


def pendulum(environment: str = "Pendulum-v1") -> Config:
    """One real-valued action and a short horizon. [T]: Pendulum, 150,000 steps; there also what is as in `box2d`, but for the network."""
    settings = {
        "recipe": "pendulum",
        "network.normalise_observation": False,  # [D], not compared
        "loss.discount": 0.9,  # [T]
        "loss.unroll_steps": 10,  # [T]: better than 20 on the one seed compared
        "optimiser.learning_rate": 1e-3,
        "optimiser.schedule": "linear",
        "optimiser.clip_gradient_norm": 0.1,  # [T]
        "run.steps": 150_000,
    }
    return override(box2d(environment), settings)


def continuous(environment: str = "HalfCheetah-v5", actions: int = 6) -> Config:
    """Real-valued actions, so many: `box2d` with its own bound. [T]: HalfCheetah, Walker2d, Hopper, BipedalWalker, 200,000 steps."""
    # [T] on these: unrolls of 10 steps were no better, entropy costs of 0 and 0.01 and a rate of 1e-3 were worse.
    # The KL is a sum over the actions. [T] HalfCheetah, with six: a return of 1,090 with 0.1, 1,722 with 0.3, 3,394 with 1, and
    # 2,193 with every row trusted; Pendulum, with one: -612 with 0.1, -1,019 with 1.
    return override(box2d(environment), {"recipe": "continuous", "loss.trust_bound": actions / 6})


def box2d(environment: str = "LunarLander-v3") -> Config:
    """Vectors in units of their own, few actions. [T]: LunarLander, 100,000 steps, seed 100."""
    return Config(
        recipe="box2d",
        environment=EnvironmentConfig(id=environment, slots=shared(environment, 8)),  # [D]
        # [T] normalised: 71.7 against −42.6 raw. A torso for the value, the size: [D]
        network=NetworkConfig(hidden=(64, 64), separate_value=True, normalise_observation=True),
        # [D]. [T] Pendulum: an update for every new unroll; without the warm-up some seeds collapse onto one action at once.
        replay=ReplayConfig(fraction=31 / 32, capacity_steps=100_000, warmup_steps=2_000),
        loss=LossConfig(
            discount=0.99,  # [T] 0.995 was no better
            unroll_steps=20,  # [T] 40 was no better
            batch_unrolls=32,  # [D] 1 online + 31 replayed
            trust_bound=0.1,  # [T] 0.03 was worse
            entropy_cost=0.003,  # [T] 208.3 against 71.7 with 0.01
            reward_scale=0.05,  # [T] better than PopArt with the entropy cost of then
        ),
        # Rate [T]: 1e-3 was about as good. Constant [D]: a run that goes on needs no end. Clipped [D].
        optimiser=OptimiserConfig(kind="adam", learning_rate=5e-4, clip_gradient_norm=1.0),
        run=RunConfig(steps=200_000),
    )


def mujoco(environment: str = "HalfCheetah-v5") -> Config:
    """MuJoCo's bodies: `continuous` for longer."""
    return override(continuous(environment), {"recipe": "mujoco", "run.steps": 1_000_000})  # [D]


def atari(environment: str = "ALE/Breakout-v5") -> Config:
    """The paper's single LASER agent: large network, 87.5 % replay, IMPALA's tuned schedule."""
    return Config(
        recipe="atari",
        environment=EnvironmentConfig(
            id=environment,
            slots=auto_slots(),  # [D]
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
            trust_bound=0.3,  # [T] Assault, Demon Attack and Road Runner, 3 M frames, network ×1
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
    """The paper's baseline: no replay, batch 32; all else as `atari`."""
    return override(atari(environment), {"recipe": "impala", **_WITHOUT_REPLAY})


def laser_multitask(environment: str = SUITE) -> Config:
    """LASER with a memory: PreCo LSTM, PopArt, PixelControl, 87.5 % replay with states refreshed.

    On DMLab it is the paper's own; elsewhere the same parts have a size that learns `suite:grid`, or `doom/basic`, on a small machine.
    """
    base = _dmlab(environment) if is_dmlab(environment) else _small(environment)
    if environment.startswith(
        _DOOM
    ):  # [D] an engine that hangs is replaced; a picture has 21 kB. [T] basic: the last two
        own = {"environment.placement": "process", "replay.capacity_steps": 100_000, "replay.budget_gb": 1.0}
        base = override(base, {**own, "network.normalise_features": True, "optimiser.learning_rate": 5e-4})
    return base.model_copy(update={"recipe": "laser-multitask"})


def popart_impala_pixelcontrol(environment: str = SUITE) -> Config:
    """No replay, a plain LSTM; PopArt and PixelControl."""
    base = laser_multitask(environment)
    own = {"recipe": "popart-impala-pixelcontrol", "network.memory": "lstm"}  # lstm: Hessel et al. 2018
    batch = {} if is_dmlab(environment) else {"loss.batch_unrolls": base.loss.batch_unrolls}
    return override(base, {**own, **_WITHOUT_REPLAY, **batch})


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
            batch_unrolls=64,  # [D] 16 online and 48 replayed
            trust_bound=0.3,  # [T]
            entropy_cost=0.01,  # [T]
            popart=True,  # [L]
            pixel_control_cost=0.05,  # [T]
        ),
        optimiser=OptimiserConfig(kind="adam", learning_rate=1e-3, clip_gradient_norm=1.0),  # rate [T]
        run=RunConfig(steps=2_000_000, log_every_updates=100, checkpoint_every_steps=500_000),
    )


def demo(environment: str = "laser/DeepSea-10") -> SweepConfig:
    """Three members that share a replay, in seconds: once one has found the treasure of DeepSea, all learn from it."""
    settings = {
        "recipe": "demo",
        "environment.slots": shared(environment, 8),  # [D]
        "replay.fraction": 0.875,  # [L]
        "loss.batch_unrolls": 8,  # [T] DeepSea-10: 1 online + 7 replayed
        "loss.trust_bound": 0.1,  # [T] DeepSea-10, as entropy and reward scale
        "loss.entropy_cost": 0.01,
        "loss.reward_scale": 1.0,
        "optimiser.schedule": "constant",  # [L] constant in sweeps
        # [T] DeepSea-10, on seeds 100 to 119: all three solve it on each. After 20,000 steps the slowest often has not.
        "run.steps": 30_000,
        "run.log_every_updates": 20,
    }
    rates = (5e-4, 1e-3, 2e-3)  # [T] DeepSea-10
    return SweepConfig(base=override(cartpole(environment), settings), grid={"learning_rate": rates})


def atari_shared(environment: str = "ALE/Breakout-v5") -> SweepConfig:
    """The paper's sweep on Atari: nine members, one replay; all else as `atari`."""
    settings = {
        "recipe": "atari-shared",
        "environment.slots": 64,  # [D] of each of nine members
        "replay.fraction": 0.96,  # [L] 5 online and 123 replayed unrolls
        "replay.capacity_steps": 10_000_000,  # the capacity of the paper's other shared replays, [D] for Atari
        "optimiser.schedule": "constant",  # [L] constant in sweeps
    }
    # [L] factors of 1/2, 1 and 2 around IMPALA's values.
    grid = {"learning_rate": (3e-4, 6e-4, 1.2e-3), "entropy_cost": (5e-3, 1e-2, 2e-2)}
    return SweepConfig(base=override(atari(environment), settings), grid=grid)


def dmlab_pbt(environment: str = "suite:dmlab-30") -> SweepConfig:
    """The paper's sweep with population based training on DMLab-30; of any other mixture, if one is named."""
    base = override(laser_multitask(environment), {"recipe": "dmlab-pbt"})
    if is_dmlab(environment):
        rates, costs = LogUniform(low=5e-6, high=5e-3), LogUniform(low=5e-5, high=1e-2)  # [I] appendix D
    else:
        rates, costs = LogUniform(low=3e-4, high=3e-3), LogUniform(low=1e-3, high=3e-2)  # [D] around the recipe's own
    return SweepConfig(
        base=base,
        random={"learning_rate": rates, "entropy_cost": costs},
        draws=10,  # [L]
        pbt=paper() if is_dmlab(environment) else small_pbt(base.run.steps),  # [I] appendix F
    )


def small_pbt(steps: int) -> PbtConfig:
    """Population based training for members of so many steps, in minutes: the rule where a recipe has none. [D], not tuned."""
    # The size of a return is not known here, so any difference counts: a margin in a file is better.
    return PbtConfig(burn_in_steps=steps // 10, every_episodes=50, margin=0.0)


_AGENTS = (
    cartpole, minatar, pictures, continuous, pendulum, box2d, mujoco, impala, atari, popart_impala, popart_impala_pixelcontrol,
    laser_multitask,
)  # fmt: skip
RECIPES: dict[str, Callable[..., Config]] = {agent.__name__.replace("_", "-"): agent for agent in _AGENTS}
SWEEPS: dict[str, Callable[..., SweepConfig]] = {"demo": demo, "atari-shared": atari_shared, "dmlab-pbt": dmlab_pbt}


def by_name(name: str, environment: str | None = None) -> Config:
    """A recipe, for another environment than its own if one is given.

    >>> by_name("minatar", "MinAtar/Freeway-v1").environment.id
    'MinAtar/Freeway-v1'
    """
    if name in SWEEPS:
        raise ConfigError(f"recipe {name!r} is for several agents: use it with laser sweep, or choose another")
    if name not in RECIPES:
        raise ConfigError(f"there is no recipe {name!r}; {suggestion(name, [*RECIPES, *SWEEPS])}")
    return RECIPES[name](*([] if environment is None else [environment]))


def for_environment(spec: EnvironmentSpec, environment: str) -> Config:
    """The recipe that fits what an environment looks like."""
    from laser_rl.envs.make import is_atari, is_box2d  # noqa: PLC0415 - gymnasium, which no other recipe needs

    shapes = spec.observation.pictures
    if isinstance(spec.action, BoxActions):
        raw = {"network.normalise_observation": False} if shapes else {}  # the normaliser is for vectors
        is_pendulum = environment.startswith("Pendulum-")  # which `continuous` does not learn in 100,000 steps
        return override(pendulum(environment) if is_pendulum else continuous(environment, len(spec.action.low)), raw)
    if not shapes:
        return box2d(environment) if is_box2d(environment) else cartpole(environment)
    small = max(max(shape[1:]) for shape in shapes) <= 32  # noqa: PLR2004 - as networks.build chooses
    if spec.tasks or is_dmlab(environment) or environment.startswith(_DOOM):
        chosen = laser_multitask(environment)
    elif is_atari(environment):
        return atari(environment)
    else:
        chosen = minatar(environment) if small else pictures(environment)
    # Neither is for observations of several parts.
    alone = {"environment.frame_stack": 1, "loss.pixel_control_cost": 0.0}
    return override(chosen, alone) if spec.observation.parts else chosen
