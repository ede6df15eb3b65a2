"""Recipes of sweeps."""

from laser_rl.config import override
from laser_rl.recipes.agents import atari, cartpole, is_dmlab, laser_multitask, shared
from laser_rl.training.pbt import PbtConfig, paper
from laser_rl.training.settings import LogUniform, SweepConfig


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
    """Population based training for runs of minutes: what it means where a recipe has none of its own. [D], not tuned.

    Args:
        steps: of each member.
    """
    # The size of a return is not known here, so any difference counts: a margin in a file is better.
    return PbtConfig(burn_in_steps=steps // 10, every_episodes=50, margin=0.0)
