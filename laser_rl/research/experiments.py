"""The experiments of the paper. Each is a function from a task to its conditions, and what the paper says came out.

Figures count through the arXiv source: 1 Atari, 2 replay ratio and capacity, 3 naive sharing and PBT, 4 clipping and priorities.
"""

from collections.abc import Sequence

from laser_rl.research.experiment import Condition, Experiment, RunClaim, Task
from laser_rl.research.variants import (
    alone,
    few,
    few_without_replay,
    mixture,
    separate,
    shared,
    with_pbt,
    without_replay,
)

# Small networks that are computed side by side: nine members cost little more than three.
QUICK = ("convention", "deepsea-10", "deepsea-12", "deepsea-14", "catch", "keydoor", "cartpole")
WITH_PICTURES = (*QUICK, "breakout", "asterix", "space-invaders", "tmaze")
# Members of one agent's question agree on what is best, so Convention has nothing to say.
SINGLE = ("deepsea-10", "catch", "keydoor", "cartpole", "breakout")
NO_MORE = 0.05  # of a score: what "no better" allows
NAIVE_SHARING = {"trust": "off", "trust_bound": None}


def sharing(task: Task) -> Sequence[Condition]:
    """As many environment steps and as many updates in all three."""
    return without_replay(task), separate(task), shared(task)


SHARING = Experiment(
    "sharing",
    "Fig. 1",
    "Does a sweep learn faster from one replay than from one each, or from none?",
    sharing,
    (
        RunClaim("replay beats none", "separate", "no replay", source="Fig. 1"),
        RunClaim("shared replay beats one each", "shared", "separate", source="Fig. 1, sec. 5.4"),
        RunClaim("shared replay beats none", "shared", "no replay", source="Fig. 1"),
        RunClaim("its best member beats that of one each", "shared", "separate", source="Fig. 1", statistic="best"),
    ),
    {"small": WITH_PICTURES},
    "In `small`, one replay for all is as large as all separate ones together; in the paper's sweeps it is as large as each of them.",
)


def ratio(task: Task) -> Sequence[Condition]:
    """Two controls. With the same online unrolls, updates are as many and batches grow; in the same batch, updates become fewer."""
    batch = task.few.base.loss.batch_unrolls
    online = max(1, batch // 8)
    pure = {**mixture(0, 8 * online), "loss.new_unrolls_per_update": online}
    return (
        few_without_replay(task, "0", online),
        few(task, "1/2", **mixture(online, online)),
        few(task, "3/4", **mixture(online, 3 * online)),
        few(task, "7/8", **mixture(online, 7 * online)),
        few(task, "pure replay", **pure),
        few_without_replay(task, "0, same batch", 8 * online),
        few(task, "1/2, same batch", **mixture(4 * online, 4 * online)),
        few(task, "3/4, same batch", **mixture(2 * online, 6 * online)),
    )


RATIO = Experiment(
    "ratio",
    "Fig. 2, left",
    "How much of a batch should be replayed?",
    ratio,
    (
        RunClaim("7/8 replay beats none, same updates", "7/8", "0", source="Fig. 2"),
        RunClaim("7/8 replay beats none, same batch", "7/8", "0, same batch", source="Fig. 2"),
        RunClaim("7/8 beats 1/2, same updates", "7/8", "1/2", source="sec. 5.3"),
        RunClaim("7/8 beats 1/2, same batch", "7/8", "1/2, same batch", source="sec. 5.3"),
        RunClaim("7/8 beats pure replay", "7/8", "pure replay", source="Fig. 2, Props. 2 and 3"),
        RunClaim("pure replay is worse than none", "0", "pure replay", source="Fig. 2", statistic="end"),
    ),
    {"small": SINGLE},
    "All have the same environment steps. “7/8” and “pure replay” are in both controls. Pure replay has no entropy cost either: that is on "
    "online rows only, as in the paper.",
)


def capacity(task: Task) -> Sequence[Condition]:
    """From a sixteenth of all the steps of a member to all of them."""
    steps = task.few.base.run.steps
    largest = min(steps, 10_000_000)  # the paper's largest
    return tuple(
        few(task, name, **{"replay.capacity_steps": max(largest // share, _least(task))})
        for name, share in (("1/16", 16), ("1/4", 4), ("all", 1))
    )


def _least(task: Task) -> int:
    """Room for the newest unroll of every slot."""
    base = task.few.base
    return base.loss.unroll_steps * base.environment.slots


CAPACITY = Experiment(
    "capacity",
    "Fig. 2, right",
    "How much should a replay hold?",
    capacity,
    (
        RunClaim("a larger replay is better", "all", "1/16", source="Fig. 2, sec. 5.3"),
        RunClaim("the last fourfold still helps", "all", "1/4", source="Fig. 2"),
    ),
    {"small": SINGLE},
    "Capacity as a share of a member's steps; of the paper's 10 M where a run is longer.",
)


def naive(task: Task) -> Sequence[Condition]:
    """No replay, one replay with every row trusted, one with a trust region."""
    return without_replay(task), shared(task, "naive", **NAIVE_SHARING), shared(task)


NAIVE = Experiment(
    "naive",
    "Fig. 3, left",
    "Does sharing without a trust region fail?",
    naive,
    (
        RunClaim("naive sharing is worse than no replay", "no replay", "naive", source="Fig. 3", statistic="end"),
        RunClaim("a trust region beats naive sharing", "shared", "naive", source="Fig. 3", statistic="end"),
        RunClaim("with a trust region sharing beats no replay", "shared", "no replay", source="Fig. 3"),
    ),
    {"small": WITH_PICTURES},
)


def pbt(task: Task) -> Sequence[Condition]:
    """One replay for all, with and without population based training."""
    return shared(task), with_pbt(task)


PBT = Experiment(
    "pbt",
    "Fig. 3, right",
    "Does population based training on top of sharing help?",
    pbt,
    (
        RunClaim("PBT on top is better", "shared, PBT", "shared", source="Fig. 3"),
        RunClaim("its best member is better", "shared, PBT", "shared", source="Fig. 3", statistic="best"),
    ),
    {"small": ("deepsea-10", "deepsea-12", "deepsea-14", "catch", "keydoor", "cartpole")},
    "Convention is left out: its members differ in the discount, and a copy of parameters would mix what they want.",
)


def rho(task: Task) -> Sequence[Condition]:
    """Naive sharing with less clipping, between no replay and the trust region."""
    return (
        without_replay(task),
        shared(task, "naive", **NAIVE_SHARING),
        shared(task, "naive, ρ̄ = 2", **NAIVE_SHARING, clip_rho=2.0),
        shared(task, "naive, ρ̄ = 4", **NAIVE_SHARING, clip_rho=4.0),
        shared(task),
    )


RHO = Experiment(
    "rho",
    "Fig. 4, left",
    "Does less clipping rescue naive sharing?",
    rho,
    (
        RunClaim("ρ̄ = 2 is worse than no replay", "no replay", "naive, ρ̄ = 2", source="Fig. 4", statistic="end"),
        RunClaim("ρ̄ = 4 is worse than no replay", "no replay", "naive, ρ̄ = 4", source="Fig. 4", statistic="end"),
        RunClaim("ρ̄ = 4 is worse than ρ̄ = 1", "naive", "naive, ρ̄ = 4", source="Fig. 4", statistic="end"),
        RunClaim("the trust region beats ρ̄ = 4", "shared", "naive, ρ̄ = 4", source="Fig. 4", statistic="end"),
    ),
    {"small": QUICK},
)


def priorities(task: Task) -> Sequence[Condition]:
    """Half of each batch replayed, as in the appendix; states are stored ones but for the last condition."""
    half = task.few.base.loss.batch_unrolls // 2
    stored = {**mixture(half, half), "replay.state": "stored"}
    drawn = {**stored, "replay.sampling": "prioritised"}
    return (
        few_without_replay(task, "no replay", half),
        few(task, "uniform, stored", **stored),
        few(task, "prioritised β = 1, stored", **drawn),
        few(task, "prioritised β = 0.5, stored", **drawn, **{"replay.importance_exponent": 0.5}),
        few(task, "uniform, refreshed", **mixture(half, half)),
    )


PRIORITIES = Experiment(
    "priorities",
    "Fig. 4, right",
    "Do priorities help, where memory states are not refreshed?",
    priorities,
    (
        RunClaim("uniform replay beats none", "uniform, stored", "no replay", source="Fig. 4, app. A.2"),
        RunClaim(
            "priorities are no better than uniform draws",
            "uniform, stored",
            "prioritised β = 1, stored",
            -NO_MORE,
            "app. A.2",
        ),
        RunClaim(
            "full correction is no worse than half",
            "prioritised β = 1, stored",
            "prioritised β = 0.5, stored",
            -NO_MORE,
            "app. A.2",
        ),
        RunClaim("refreshed states beat stored ones", "uniform, refreshed", "uniform, stored", source="app. A.2"),
    ),
    {"small": ("tmaze", "tmaze-both")},
    "“No better” and “no worse” allow a twentieth of the way from random play to the best. In `tmaze` only one of the two turns is "
    "announced, which was built to punish wrong states; in `tmaze-both` both are.",
)


def comparison(task: Task) -> Sequence[Condition]:
    """The rows of the table: no replay, one agent with replay, a sweep with a replay each, a sweep with one for all, and PBT."""
    return without_replay(task), alone(task, "one agent"), separate(task), shared(task), with_pbt(task)


COMPARISON = Experiment(
    "comparison",
    "Table 1",
    "Which agent is the best over all tasks?",
    comparison,
    (
        RunClaim("LASER beats no replay", "separate", "no replay", source="Table 1", statistic="best"),
        RunClaim("shared LASER beats LASER", "shared", "separate", source="Table 1", statistic="best"),
        RunClaim("shared LASER beats no replay", "shared", "no replay", source="Table 1", statistic="best"),
        RunClaim(
            "one LASER beats a sweep without replay", "one agent", "no replay", source="Table 1", statistic="best"
        ),
        RunClaim("PBT on top is better", "shared, PBT", "shared", source="sec. 5.4", statistic="best"),
    ),
    {"small": tuple(name for name in WITH_PICTURES if name != "convention")},
    "Scores are those of the best member, as in the paper; “one agent” is no maximum over members. Convention is left out: its members "
    "want different things.",
)
