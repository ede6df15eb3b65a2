"""An online share that follows Prop. 3: the counts of a batch stay as they are, the rows of the policy's loss are weighted.

The weights of an update come from the updates before it: a weight that came from the same advantages would bias their mean.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from laser_rl.agent.parallel import ALONE, Team
from laser_rl.config import LossConfig
from laser_rl.errors import ConfigError
from laser_rl.ops import mixing
from laser_rl.ops.actor_critic import ActorCriticLosses
from laser_rl.ops.distributions import Family
from laser_rl.ops.trust_region import ENUMERABLE
from laser_rl.types import Batch

RATE = 0.01  # both of α and of what it is estimated from: about the last hundred updates count
SERVED = 0.9  # share of the replayed states whose best action is to be kept; the bound has no largest value where gaps are near 0
HEAVIEST = 4.0
STATE = mixing.MOMENTS + 1  # decayed moments, and α


class OnlineShare(NamedTuple):
    """The weights of a batch, and α as estimated from it."""

    weight: Tensor  # [B], of the policy's loss
    state: Tensor  # [members, STATE], after this batch
    numbers: dict[str, Tensor]  # each [members]


def require_countable(family: Family, loss: LossConfig) -> None:
    """ConfigError where α is to follow a maximum over actions that cannot be listed."""
    size = family.joint_size
    if loss.online_share != "fixed" and (size is None or size > ENUMERABLE):
        found = "infinitely many" if size is None else size
        raise ConfigError(
            f"loss.online_share is {loss.online_share}, which needs at most {ENUMERABLE} actions, and here are {found}; use fixed"
        )


@torch.no_grad()
def online_share(
    state: Tensor,
    family: Family,
    policy: Tensor,
    value: Tensor,
    batch: Batch,
    losses: ActorCriticLosses,
    hyper: LossConfig,
    unit: Tensor | None = None,
    team: Team = ALONE,
) -> OnlineShare:
    """Weights from the state, and the state moved on.

    Args:
        state: [members, STATE], zeros to begin with.
        family: what the policy's parameters mean; its actions can be listed.
        policy: parameters [T, B, P].
        value: V [T, B], as the advantage has it.
        batch: the columns of each member one after the other.
        losses: of this batch; their masks are the policy's.
        hyper: what members side by side have in common.
        unit: [B], of values and advantages, if not all columns have the same: one slope serves all.
        team: the ranks that have the other columns of this batch.
    """
    members, learnable = len(state), losses.policy_learnable
    kinds = torch.stack([learnable & batch.online, learnable & ~batch.online], dim=-1) * batch.weight[:, None]
    online, replayed = team.sum(_by_member(kinds, members).sum(1)).unbind(-1)
    plain = online / (online + replayed)  # NaN where nothing is learned from
    least, most = hyper.online_share_least, hyper.online_share_most
    share = torch.where(state[:, 0] > 0, state[:, -1], plain.nan_to_num(nan=least).clamp(least, most))
    weights = mixing.share_weights(share, online, replayed, heaviest=HEAVIEST)
    unit = torch.ones_like(batch.weight) if unit is None else unit
    sums = (1 - RATE) * state[:, :-1] + team.sum(_moments(family, policy, batch, losses, unit, members))
    line = mixing.fit(sums, correlated=len(batch.is_transition))
    odds = _odds(line, family, policy, value / unit, batch, hyper)
    counted = _by_member(learnable & ~batch.online, members)
    # A quantile is no sum: every rank needs the rows of all.
    every, among = team.columns(odds.mT).mT, team.columns(counted.mT).mT
    needed = mixing.share_of(mixing.served(every, among, SERVED))
    trust = mixing.confidence(line)
    after = mixing.followed(share, needed, plain, trust, rate=RATE, least=least, most=most)
    numbers = {
        "online_share": mixing.weighted_share(weights, online, replayed),
        "online_share_needed": needed,
        "online_share_confidence": trust,
    }
    width = batch.online.shape[0] // members
    own, others = (weight[:, None].expand(-1, width).reshape(-1) for weight in weights)
    return OnlineShare(torch.where(batch.online, own, others), torch.cat([sums, after[:, None]], dim=1), numbers)


def _moments(
    family: Family, policy: Tensor, batch: Batch, losses: ActorCriticLosses, unit: Tensor, members: int
) -> Tensor:
    """Moments of the advantages of the stored actions against how much the policy prefers them."""
    evaluation = family.evaluate(policy, batch.action)
    feature = evaluation.log_prob + evaluation.entropy
    # ρ makes the fit the one that the policy's own actions would give, as far as it is not clipped.
    weight = torch.where(losses.policy_learnable, losses.estimate.rho, 0.0)
    rows = (feature, losses.estimate.advantage / unit, weight)
    return mixing.moments(*(_by_member(part, members) for part in rows))


def _odds(
    line: mixing.MixingLine, family: Family, policy: Tensor, value: Tensor, batch: Batch, hyper: LossConfig
) -> Tensor:
    """Prop. 3's odds of every row, [members, N]."""
    members = len(line.slope)
    log_pi, log_mu = family.joint_log_probs(policy), family.joint_log_probs(batch.behaviour)
    q = line.slope.clamp(min=0.0)[:, None, None] * _by_member(mixing.centred(log_pi), members)
    if hyper.online_share == "adaptive":
        q = q + _by_member(value, members).unsqueeze(-1)
    omega = _by_member(mixing.distortion(log_pi, log_mu, clip_rho=hyper.clip_rho), members)
    return mixing.needed_odds(q, omega, resolution=line.resolution[:, None])


def _by_member(rows: Tensor, members: int) -> Tensor:
    """[T, B, ...] as [members, N, ...]; the columns of a member lie side by side."""
    return torch.unflatten(rows, 1, (members, -1)).transpose(0, 1).flatten(1, 2)
