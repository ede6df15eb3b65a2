"""The Atari experiment: protocol, games and every run of it, fixed before the first result.

**Protocol.** Dopamine's (Machado et al. 2018), so that the public curves of its agents can stand beside ours: sticky actions 0.25, no
no-ops, the loss of a life is no signal, episodes of at most 108,000 frames; 84×84 grey frames, four of them stacked, action repeat 4 and
rewards clipped to ±1 as in the recipe. A score is the mean raw return of the training episodes that ended within a million frames.
Frames are emulator frames. The learning rate is constant: 6 M frames are 3 % of the paper's linear schedule over 200 M.

**Calibration** (stage 1): Assault, Demon Attack and Road Runner, which stage 2 does not use; seeds 1 and 2; 3 M frames. One factor at a
time from the centre, in the order of `FACTORS`; a later factor starts from the best value of those before it. Of two values the better one
has the larger mean over games and seeds of the human-normalised score in the last million frames; a difference below its standard error
(paired by game and seed) is a tie, and a tie keeps the centre.

The bound 0.3 won; the factors after it were nevertheless run from the centre's bound 0.1 first. Clipping and the replay share kept the
centre there. 32 environments won there, so they are run once more from bound 0.3 (`b0.3-slots32` against `b0.3`) before they are chosen.

**Comparison** (stage 2): the ten games of Atari-10 (Aitchison, Sweetser and Hutter 2023), a subset that others chose because scores on
it predict scores on all 57. The calibrated agent (`CHOSEN`) with seeds 1 to 3, `impala` with as many environments and seeds 1 and 2,
6 M frames.

**Sharing** (stage 3): every third of the ten games from the second on, which has nothing to do with scores. Three members that differ in
their learning rate by a factor of 30; one replay that all of them write to, with the chosen trust region or with every row trusted, or a
replay each, together as large; seeds 1 and 2, 3 M frames a member.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from laser_rl import recipes
from laser_rl.config import Config, override

FRAMES_A_STEP = 4
CALIBRATION_GAMES = ("Assault", "DemonAttack", "RoadRunner")
COMPARISON_GAMES = (
    "Amidar", "BattleZone", "Bowling", "DoubleDunk", "Frostbite", "KungFuMaster", "NameThisGame", "Phoenix", "Qbert", "Riverraid",
)  # fmt: skip

SHARING_GAMES = COMPARISON_GAMES[1::3]
RATES = (1e-4, 6e-4, 3e-3)

PROTOCOL: Mapping[str, Any] = {
    "environment.atari.sticky_actions": 0.25,
    "environment.atari.most_noops": 0,
    "loss.life_loss_ends_discount": False,
    "optimiser.schedule": "constant",
    "network.width": 1,
    "environment.slots": 64,
}
CENTRE: Mapping[str, Any] = {"replay.fraction": 0.9375, "replay.capacity_steps": 2_000_000, "loss.trust_bound": 0.1}

# By name: the settings in which a variant differs from the centre.
FACTORS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "trust bound": {
        "b0.01": {"loss.trust_bound": 0.01},
        "b0.03": {"loss.trust_bound": 0.03},
        "centre": {},
        "b0.3": {"loss.trust_bound": 0.3},
        "b-off": {"loss.trust": "off", "loss.trust_bound": None},
    },
    "gradient clipping": {"clip40": {"optimiser.clip_gradient_norm": 40.0}},
    "replay share": {"replay0.875": {"replay.fraction": 0.875}, "replay0.97": {"replay.fraction": 31 / 32}},
    "age of online unrolls": {"slots32": {"environment.slots": 32}},
    "age of online unrolls, from bound 0.3": {"b0.3-slots32": {"environment.slots": 32, "loss.trust_bound": 0.3}},
}
# What the calibration chose by the rule above; committed before the first run of stage 2.
CHOSEN: Mapping[str, Any] = {"loss.trust_bound": 0.3, "environment.slots": 64}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    **{name: settings for factor in FACTORS.values() for name, settings in factor.items()},
    "laser": CHOSEN,
    "impala": {"environment.slots": CHOSEN["environment.slots"]},
    "shared": CHOSEN,
    "naive": {**CHOSEN, "loss.trust": "off", "loss.trust_bound": None},
    "separate": {**CHOSEN, "replay.capacity_steps": CENTRE["replay.capacity_steps"] // len(RATES)},
}


@dataclass(frozen=True)
class Part:
    """One run of the queue.

    >>> Part(1, "Assault", "b0.03", 2, 3_000_000).name
    '1-Assault-b0.03-2'
    """

    stage: int
    game: str
    variant: str
    seed: int
    frames: int

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rates of a sweep's members; none of a single run."""
        return RATES if self.stage == 3 else ()

    @property
    def all_frames(self) -> int:
        """Frames of all members together."""
        return self.frames * max(1, len(self.rates))

    @property
    def name(self) -> str:
        """Names the row of results and the folder while it runs."""
        return f"{self.stage}-{self.game}-{self.variant}-{self.seed}"


def parts() -> list[Part]:
    """Every run, in the order in which they are made: first one seed of a whole factor or of all games, then the next."""
    calibration = [
        Part(1, game, variant, seed, 3_000_000)
        for factor in FACTORS.values()
        for seed in (1, 2)
        for game in CALIBRATION_GAMES
        for variant in factor
    ]
    comparison = [
        Part(2, game, variant, seed, 6_000_000)
        for seed, variants in ((1, ("laser", "impala")), (2, ("laser", "impala")), (3, ("laser",)))
        for game in COMPARISON_GAMES
        for variant in variants
    ]
    sharing = [
        Part(3, game, variant, seed, 3_000_000)
        for seed in (1, 2)
        for game in SHARING_GAMES
        for variant in ("shared", "naive", "separate")
    ]
    return calibration + comparison + sharing


def config_of(part: Part) -> Config:
    """The whole configuration of a run.

    >>> config = config_of(Part(1, "Assault", "b0.03", 2, 3_000_000))
    >>> config.environment.id, config.loss.trust_bound, config.run.steps, config.environment.atari.sticky_actions
    ('ALE/Assault-v5', 0.03, 750000, 0.25)
    """
    environment = f"ALE/{part.game}-v5"
    run = {"run.seed": part.seed, "run.steps": part.frames // FRAMES_A_STEP}
    if part.variant == "impala":
        return override(recipes.impala(environment), {**PROTOCOL, **VARIANTS["impala"], **run})
    return override(recipes.atari(environment), {**PROTOCOL, **CENTRE, **VARIANTS[part.variant], **run})
