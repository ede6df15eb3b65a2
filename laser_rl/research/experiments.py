"""The experiments as data: one for each figure and table of the paper, and two about questions that it leaves open.

Figures count through the arXiv source: 1 Atari, 2 replay ratio and capacity, 3 naive sharing and PBT, 4 clipping and priorities.
"""

from laser_rl.research.experiment import Claim, Experiment, Variant

# Small networks that are computed side by side: nine members cost little more than three.
QUICK = ("convention", "deepsea-10", "deepsea-12", "deepsea-14", "catch", "keydoor", "cartpole")
WITH_PICTURES = (*QUICK, "breakout", "asterix", "space-invaders", "tmaze")
# Members of one agent's question agree on what is best, so Convention has nothing to say.
SINGLE = ("deepsea-10", "catch", "keydoor", "cartpole", "breakout")
NO_MORE = 0.05  # of a score: what "no better" allows

NO_REPLAY = Variant("no replay", "none")
SEPARATE = Variant("separate", "separate")
SHARED = Variant("shared")
WITH_PBT = Variant("shared, PBT", pbt=True)
TRUST_ALL = {"trust": "off", "trust_bound": None}
NAIVE = Variant("naive", settings=TRUST_ALL)
# Half of each batch replayed, as in the appendix; the memory's states are stored ones.
STORED = {"replay.state": "stored"}
DRAWN = {**STORED, "replay.sampling": "prioritised"}
UNIFORM, PRIORITISED, HALF = "uniform, stored", "prioritised β = 1, stored", "prioritised β = 0.5, stored"

SHARING = Experiment(
    "sharing",
    "Fig. 1",
    "Does a sweep learn faster from one replay than from one each, or from none?",
    (NO_REPLAY, SEPARATE, SHARED),
    (
        Claim("replay beats none", "separate", "no replay", source="Fig. 1"),
        Claim("shared replay beats one each", "shared", "separate", source="Fig. 1, sec. 5.4"),
        Claim("shared replay beats none", "shared", "no replay", source="Fig. 1"),
        Claim("its best member beats that of one each", "shared", "separate", source="Fig. 1", statistic="best"),
    ),
    {"small": WITH_PICTURES},
    "In `small`, one replay for all is as large as all separate ones together; in the paper's sweeps it is as large as each of them.",
)
# Two controls. With the same online unrolls, updates are as many and batches grow; in the same batch, updates become fewer.
RATIO = Experiment(
    "ratio",
    "Fig. 2, left",
    "How much of a batch should be replayed?",
    (
        Variant("0", "none", "few", (1, 0)),
        Variant("1/2", "separate", "few", (1, 1)),
        Variant("3/4", "separate", "few", (1, 3)),
        Variant("7/8", "separate", "few", (1, 7)),
        Variant("pure replay", "separate", "few", (0, 8)),
        Variant("0, same batch", "none", "few", (8, 0)),
        Variant("1/2, same batch", "separate", "few", (4, 4)),
        Variant("3/4, same batch", "separate", "few", (2, 6)),
    ),
    (
        Claim("7/8 replay beats none, same updates", "7/8", "0", source="Fig. 2"),
        Claim("7/8 replay beats none, same batch", "7/8", "0, same batch", source="Fig. 2"),
        Claim("7/8 beats 1/2, same updates", "7/8", "1/2", source="sec. 5.3"),
        Claim("7/8 beats 1/2, same batch", "7/8", "1/2, same batch", source="sec. 5.3"),
        Claim("7/8 beats pure replay", "7/8", "pure replay", source="Fig. 2, Props. 2 and 3"),
        Claim("pure replay is worse than none", "0", "pure replay", source="Fig. 2", statistic="end"),
    ),
    {"small": SINGLE},
    "All have the same environment steps. “7/8” and “pure replay” are in both controls. Pure replay has no entropy cost either: that is on "
    "online rows only, as in the paper.",
)
CAPACITY = Experiment(
    "capacity",
    "Fig. 2, right",
    "How much should a replay hold?",
    (
        Variant("1/16", "separate", "few", capacity=16),
        Variant("1/4", "separate", "few", capacity=4),
        Variant("all", "separate", "few", capacity=1),
    ),
    (
        Claim("a larger replay is better", "all", "1/16", source="Fig. 2, sec. 5.3"),
        Claim("the last fourfold still helps", "all", "1/4", source="Fig. 2"),
    ),
    {"small": SINGLE},
    "Capacity as a share of a member's steps; of the paper's 10 M where a run is longer.",
)
NAIVE_SHARING = Experiment(
    "naive",
    "Fig. 3, left",
    "Does sharing without a trust region fail?",
    (NO_REPLAY, NAIVE, SHARED),
    (
        Claim("naive sharing is worse than no replay", "no replay", "naive", source="Fig. 3", statistic="end"),
        Claim("a trust region beats naive sharing", "shared", "naive", source="Fig. 3", statistic="end"),
        Claim("with a trust region sharing beats no replay", "shared", "no replay", source="Fig. 3"),
    ),
    {"small": WITH_PICTURES},
)
PBT = Experiment(
    "pbt",
    "Fig. 3, right",
    "Does population based training on top of sharing help?",
    (SHARED, WITH_PBT),
    (
        Claim("PBT on top is better", "shared, PBT", "shared", source="Fig. 3"),
        Claim("its best member is better", "shared, PBT", "shared", source="Fig. 3", statistic="best"),
    ),
    {"small": tuple(name for name in QUICK if name != "convention")},
    "Convention is left out: its members differ in the discount, and a copy of parameters would mix what they want.",
)
RHO = Experiment(
    "rho",
    "Fig. 4, left",
    "Does less clipping rescue naive sharing?",
    (
        NO_REPLAY,
        NAIVE,
        Variant("naive, ρ̄ = 2", settings={**TRUST_ALL, "clip_rho": 2.0}),
        Variant("naive, ρ̄ = 4", settings={**TRUST_ALL, "clip_rho": 4.0}),
        SHARED,
    ),
    (
        Claim("ρ̄ = 2 is worse than no replay", "no replay", "naive, ρ̄ = 2", source="Fig. 4", statistic="end"),
        Claim("ρ̄ = 4 is worse than no replay", "no replay", "naive, ρ̄ = 4", source="Fig. 4", statistic="end"),
        Claim("ρ̄ = 4 is worse than ρ̄ = 1", "naive", "naive, ρ̄ = 4", source="Fig. 4", statistic="end"),
        Claim("the trust region beats ρ̄ = 4", "shared", "naive, ρ̄ = 4", source="Fig. 4", statistic="end"),
    ),
    {"small": QUICK},
)
PRIORITIES = Experiment(
    "priorities",
    "Fig. 4, right",
    "Do priorities help, where memory states are not refreshed?",
    (
        Variant("no replay", "none", "few", (4, 0)),
        Variant(UNIFORM, "separate", "few", (4, 4), settings=STORED),
        Variant(PRIORITISED, "separate", "few", (4, 4), settings=DRAWN),
        Variant(HALF, "separate", "few", (4, 4), settings={**DRAWN, "replay.importance_exponent": 0.5}),
        Variant("uniform, refreshed", "separate", "few", (4, 4)),
    ),
    (
        Claim("uniform replay beats none", UNIFORM, "no replay", source="Fig. 4, app. A.2"),
        Claim("priorities are no better than uniform draws", UNIFORM, PRIORITISED, -NO_MORE, "app. A.2"),
        Claim("full correction is no worse than half", PRIORITISED, HALF, -NO_MORE, "app. A.2"),
        Claim("refreshed states beat stored ones", "uniform, refreshed", UNIFORM, source="app. A.2"),
    ),
    {"small": ("tmaze", "tmaze-both")},
    "“No better” and “no worse” allow a twentieth of the way from random play to the best. In `tmaze` only one of the two turns is "
    "announced, which was built to punish wrong states; in `tmaze-both` both are.",
)
COMPARISON = Experiment(
    "comparison",
    "Table 1",
    "Which agent is the best over all tasks?",
    (NO_REPLAY, Variant("one agent", "separate", "one"), SEPARATE, SHARED, WITH_PBT),
    (
        Claim("LASER beats no replay", "separate", "no replay", source="Table 1", statistic="best"),
        Claim("shared LASER beats LASER", "shared", "separate", source="Table 1", statistic="best"),
        Claim("shared LASER beats no replay", "shared", "no replay", source="Table 1", statistic="best"),
        Claim("one LASER beats a sweep without replay", "one agent", "no replay", source="Table 1", statistic="best"),
        Claim("PBT on top is better", "shared, PBT", "shared", source="sec. 5.4", statistic="best"),
    ),
    {"small": tuple(name for name in WITH_PICTURES if name != "convention")},
    "Scores are those of the best member, as in the paper; “one agent” is no maximum over members. Convention is left out: its members "
    "want different things.",
)
# Fixed shares have the same online unrolls, so the same updates; adaptive ones weigh those of α = 1/8.
ADAPTIVE_ALPHA = Experiment(
    "adaptive-alpha",
    "beyond: sec. 3's open question",
    "Is an online share that follows Proposition 3's bound better than a fixed one?",
    (
        Variant("α = 1/8", unrolls=(1, 7)),
        Variant("α = 1/4", unrolls=(1, 3)),
        Variant("α = 1/2", unrolls=(1, 1)),
        Variant("adaptive", unrolls=(1, 7), settings={"online_share": "adaptive"}),
        Variant("adaptive, baseline", unrolls=(1, 7), settings={"online_share": "adaptive_baseline"}),
    ),
    tuple(
        Claim(f"{name} beats {fixed}", name, fixed)
        for name in ("adaptive", "adaptive, baseline")
        for fixed in ("α = 1/8", "α = 1/4", "α = 1/2")
    ),
    {"small": WITH_PICTURES},
    "docs/adaptive-alpha.md says what is estimated and how it is applied.",
)
RELEVANCE = Experiment(
    "relevance",
    "beyond: sec. 4.3's alternatives",
    "Which behaviours should be trusted, and by policy and value alike?",
    (
        Variant("KL to implied"),
        Variant("KL to behaviour", settings={"trust": "behaviour"}),
        Variant("KL to behaviour, 0.4", settings={"trust": "behaviour", "trust_bound": 0.4}),
        Variant("target acceptance 0.5", settings={"target_acceptance": 0.5}),
        Variant("target acceptance 0.9", settings={"target_acceptance": 0.9}),
        Variant("strict policy", settings={"policy_trust_bound": 0.01}),
        Variant("strict value", settings={"trust_bound": 0.01, "policy_trust_bound": 0.1}),
        Variant("loose policy", settings={"policy_trust_bound": 0.4}),
    ),
    (
        Claim("KL to the implied policy beats KL to the behaviour", "KL to implied", "KL to behaviour"),
        Claim("a bound of 0.4 on KL to the behaviour beats one of 0.1", "KL to behaviour, 0.4", "KL to behaviour"),
        Claim("a target acceptance of 0.5 beats a fixed bound", "target acceptance 0.5", "KL to implied"),
        Claim("a target acceptance of 0.9 beats a fixed bound", "target acceptance 0.9", "KL to implied"),
        Claim("a stricter bound for the policy alone is better", "strict policy", "KL to implied"),
        Claim("a stricter bound for the value alone is better", "strict value", "KL to implied"),
        Claim("a looser bound for the policy alone is better", "loose policy", "KL to implied"),
    ),
    {"small": QUICK},
    "Both KL criteria have a bound of 0.1 where no other is named; strict is 0.01, loose 0.4.",
)

_PAPER = (SHARING, RATIO, CAPACITY, NAIVE_SHARING, PBT, RHO, PRIORITIES, COMPARISON)
EXPERIMENTS = {experiment.name: experiment for experiment in (*_PAPER, ADAPTIVE_ALPHA, RELEVANCE)}
