"""Who trusts whose data, against plain loops."""

import pytest
import torch

from laser_rl.agent.learner_metrics import AGES, GROUPS, shares, tally
from laser_rl.agent.loss import Loss
from tests.agent.test_learner import B, T, random_batch

SOURCES, MEMBERS = 4, 3


def many(seed):
    """Columns of three members side by side, with sources (one of them unknown) and ages over all groups."""
    g = torch.Generator().manual_seed(seed)
    one = random_batch(seed)
    columns = MEMBERS * B
    wide = one._replace(
        is_transition=torch.rand(T, columns, generator=g) < 0.8,
        online=torch.rand(columns, generator=g) < 0.3,
        member=torch.randint(0, SOURCES + 1, (columns,), generator=g).int(),
    )
    learnable = (torch.rand(T, columns, generator=g) < 0.5) & wide.is_transition
    relevance = torch.rand(T, columns, generator=g) * 3
    age = torch.tensor([0, 9, 10, 99, 100, 999, 1_000, 9_999, 10_000, 10**6, -5, 3, 50, 500, 5_000])
    return Loss(torch.zeros(()), {}, learnable, relevance, relevance), wide, age[torch.randperm(columns, generator=g)]


@pytest.mark.parametrize("seed", range(5))
def test_the_counts_are_those_of_plain_loops(seed):
    loss, batch, age = many(seed)
    expected = torch.zeros(MEMBERS, SOURCES + GROUPS, 3)
    for column in range(MEMBERS * B):
        if batch.online[column]:
            continue
        member, source = column // B, int(batch.member[column])
        group = SOURCES + sum(int(age[column]) >= limit for limit in AGES)
        for t in range(T):
            if batch.is_transition[t, column]:
                row = torch.tensor([float(loss.learnable[t, column]), 1.0, loss.relevance[t, column]])
                expected[member, group] += row
                if source < SOURCES:
                    expected[member, source] += row
    torch.testing.assert_close(tally(loss, batch, age, sources=SOURCES, members=MEMBERS), expected)


def test_a_single_agent_reports_ages_only_and_nothing_that_was_not_replayed():
    counted = torch.tensor(
        [[3.0, 6.0, 0.6], [1.0, 2.0, 0.1], [0.0, 0.0, 0.0], [2.0, 4.0, 0.5], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    )
    assert shares(counted, sources=1) == {"acceptance_age_0": 0.5, "acceptance_age_2": 0.5}


def test_members_of_a_sweep_report_by_source_too():
    counted = torch.tensor([[1.0, 4.0, 2.0], [4.0, 4.0, 0.0], [5.0, 8.0, 2.0]] + [[0.0] * 3] * 4)
    by_source = {"acceptance_from_0": 0.25, "kl_from_0": 0.5, "acceptance_from_1": 1.0, "kl_from_1": 0.0}
    assert shares(counted, sources=2) == {**by_source, "acceptance_age_0": 0.625}


def test_an_infinite_divergence_does_not_spoil_the_mean():
    loss, batch, age = many(0)
    loss = loss._replace(relevance=torch.full_like(loss.relevance, torch.inf))
    assert torch.isfinite(tally(loss, batch, age, sources=SOURCES, members=MEMBERS)).all()
