"""Experiments beyond the paper: questions that it leaves open."""

from collections.abc import Sequence

from laser_rl.research.experiment import Condition, Experiment, RunClaim, Task
from laser_rl.research.experiments import QUICK, WITH_PICTURES
from laser_rl.research.variants import mixture, shared


def adaptive_alpha(task: Task) -> Sequence[Condition]:
    """One replay for all. Fixed shares have the same online unrolls, so the same updates; adaptive ones weigh those of α = 1/8."""
    online = max(1, task.sweep.base.loss.batch_unrolls // 8)
    return (
        shared(task, "α = 1/8", **mixture(online, 7 * online)),
        shared(task, "α = 1/4", **mixture(online, 3 * online)),
        shared(task, "α = 1/2", **mixture(online, online)),
        shared(task, "adaptive", **mixture(online, 7 * online), online_share="adaptive"),
        shared(task, "adaptive, baseline", **mixture(online, 7 * online), online_share="adaptive_baseline"),
    )


ADAPTIVE_ALPHA = Experiment(
    "adaptive-alpha",
    "beyond: sec. 3's open question",
    "Is an online share that follows Proposition 3's bound better than a fixed one?",
    adaptive_alpha,
    tuple(
        RunClaim(f"{name} beats {fixed}", name, fixed)
        for name in ("adaptive", "adaptive, baseline")
        for fixed in ("α = 1/8", "α = 1/4", "α = 1/2")
    ),
    {"small": WITH_PICTURES},
    "docs/adaptive-alpha.md says what is estimated and how it is applied.",
)


def relevance(task: Task) -> Sequence[Condition]:
    """One replay for all; what is trusted differs."""
    return (
        shared(task, "KL to implied"),
        shared(task, "KL to behaviour", trust="behaviour"),
        shared(task, "KL to behaviour, 0.4", trust="behaviour", trust_bound=0.4),
        shared(task, "target acceptance 0.5", target_acceptance=0.5),
        shared(task, "target acceptance 0.9", target_acceptance=0.9),
        shared(task, "strict policy", policy_trust_bound=0.01),
        shared(task, "strict value", trust_bound=0.01, policy_trust_bound=0.1),
        shared(task, "loose policy", policy_trust_bound=0.4),
    )


RELEVANCE = Experiment(
    "relevance",
    "beyond: sec. 4.3's alternatives",
    "Which behaviours should be trusted, and by policy and value alike?",
    relevance,
    (
        RunClaim("KL to the implied policy beats KL to the behaviour", "KL to implied", "KL to behaviour"),
        RunClaim("a bound of 0.4 on KL to the behaviour beats one of 0.1", "KL to behaviour, 0.4", "KL to behaviour"),
        RunClaim("a target acceptance of 0.5 beats a fixed bound", "target acceptance 0.5", "KL to implied"),
        RunClaim("a target acceptance of 0.9 beats a fixed bound", "target acceptance 0.9", "KL to implied"),
        RunClaim("a stricter bound for the policy alone is better", "strict policy", "KL to implied"),
        RunClaim("a stricter bound for the value alone is better", "strict value", "KL to implied"),
        RunClaim("a looser bound for the policy alone is better", "loose policy", "KL to implied"),
    ),
    {"small": QUICK},
    "Both KL criteria have a bound of 0.1 where no other is named; strict is 0.01, loose 0.4.",
)
