"""The rows of sweeps that nobody ran: members differ in known ways, so that a mixed-up member shows."""

import contextlib
import json

import numpy as np
import pytest

from laser_rl.metrics.log import MetricsLog, read
from tests.row_hash import rows_hash

TIMES = 60


def settings_of(members):
    rates, costs = (3e-4, 6e-4, 1.2e-3), (5e-3, 1e-2, 2e-2)
    return [{"learning_rate": rates[k % 3], "entropy_cost": costs[k // 3 % 3]} for k in range(members)]


def trust(learner, source, time=1.0):
    """Less with the distance of the two, and different in each direction."""
    if learner == source:
        return 0.99 - 0.01 * learner * time
    return max(0.02, 1 - 0.09 * abs(learner - source) * (0.4 + time) - 0.02 * (learner > source))


def train_values(member, members, time, hyper, random):
    level = 200 + 30 * ((member * 4) % members)
    noise = random.normal(0, 6)
    return {
        "member": member,
        "return_mean": level * (1 - np.exp(-4 * time)) + noise,
        "acceptance": trust(member, member, time),
        **{f"acceptance_from_{j}": trust(member, j, time) for j in range(members)},
        **{f"kl_from_{j}": 0.01 * abs(member - j) for j in range(members)},
        **{f"acceptance_age_{b}": 0.98 - 0.02 * member - 0.12 * b for b in range(5) if b < 1 + 5 * time},
        "rollbacks": member // 2,
        "skipped_updates": member,
        "steps_per_second": 1000.0,
        "updates_per_second": 10.0,
        **hyper,
    }


def sweep_values(members, time, random):
    shares = random.dirichlet(np.full(members, 200.0))
    ages = np.quantile(np.linspace(0, 4000 * time, 50), [0, 0.25, 0.5, 0.75, 1])
    return {
        **{f"share_of_{j}": share for j, share in enumerate(shares)},
        **{f"age_{q}": age for q, age in zip((0, 25, 50, 75, 100), ages, strict=True)},
        **{f"divergence_{i}_{j}": 0.05 * abs(i - j) + 0.01 * (i > j) for i in range(members) for j in range(members) if i != j},
        "replay_fill": time,
        "replay_bytes": int(1e8 * time),
    }  # fmt: skip


def exploit(log, step, update, member, hyper, random):
    donor = int(random.choice([k for k in range(len(hyper)) if k != member]))
    before, after = hyper[member], {name: value * random.choice([1.2, 1 / 1.2]) for name, value in hyper[donor].items()}
    marks = {f"before_{n}": v for n, v in before.items()} | {f"after_{n}": v for n, v in after.items()}
    scores = {"score": 10.0 + member, "donor_score": 99.5}
    log.write("event", step, update, {"event": "exploit", "member": member, "donor": donor, **scores, **marks})
    hyper[member] = after


def a_sweep(run_dir, members, *, pbt=False, evaluated=True, times=TIMES):
    """Write metrics.jsonl and sweep.json; the highest return is that of the member with the highest (4 k) mod K."""
    random, hyper = np.random.default_rng(members), settings_of(members)
    run_dir.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(MetricsLog(run_dir)) as log:
        for t in range(1, times + 1):
            for member in range(members):
                log.write("train", 1000 * t, 10 * t, train_values(member, members, t / times, hyper[member], random))
                if pbt and t % 12 == 2 * member % 12 and t > 5:
                    exploit(log, 1000 * t, 10 * t, member, hyper, random)
            log.write("sweep", 1000 * t * members, 10 * t * members, sweep_values(members, t / times, random))
        for member in range(members if evaluated else 0):
            interval = {"ci95_low": 90.0 + member, "ci95_high": 110.0 + member}
            log.write("evaluation", 1000 * times, 10 * times, {"member": member, "mean": 100.0 + member, **interval})
    content = {
        "format": 1,
        "recipe": "cartpole",
        "share": "shared",
        "settings": settings_of(members),
        "pbt": {"factor": 1.2} if pbt else None,
        "base": {"loss": {"discount": 0.99}},
    }
    (run_dir / "sweep.json").write_text(json.dumps(content))
    return run_dir


@pytest.mark.parametrize("died", [(5, 5), (7, 4), (4, 7)])
def test_a_resumed_sweep_has_the_hash_of_an_uninterrupted_one(tmp_path, died):
    def train(log, times, members=(0, 1), *, sweep=True):
        for t in times:
            for member in members:
                log.write("train", 10 * t, t, {"member": member, "kl": t / 7 + member})
            if sweep:
                log.write("sweep", 20 * t, 2 * t, {"replay_fill": t / 9})

    with contextlib.closing(MetricsLog(tmp_path / "whole")) as log:
        train(log, range(1, 9))
    with contextlib.closing(MetricsLog(tmp_path / "resumed")) as log:
        train(log, range(1, 4))
        for member, end in enumerate(died):  # one member got further than the other before the end
            train(log, range(4, end + 1), (member,), sweep=False)
        log.write("sweep", 80, 8, {"replay_fill": 0.1})
        log.resumed(60, 6)
        for member in (0, 1):
            log.resumed(30, 3, member=member)
        train(log, range(4, 9))
    assert rows_hash(tmp_path / "whole") == rows_hash(tmp_path / "resumed")
    assert len(read(tmp_path / "resumed", ["event"])) == 3
