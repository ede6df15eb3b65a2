"""What is known of all members together: whose data the replay holds, how old it is, how far apart the policies are."""

from collections.abc import Sequence

import numpy as np
import torch

from laser_rl.ops import checks
from laser_rl.replay.records import allocate
from laser_rl.replay.store import Replay
from laser_rl.runtime.build import Member

UNROLLS = 16  # whose states the policies are compared on
PERCENTILES = (0, 25, 50, 75, 100)


def survey(members: Sequence[Member], random: np.random.Generator) -> dict[str, float]:
    """The numbers of one row."""
    store = members[0].replay
    if store is None or not len(store):
        return {}
    return {**composition(members, store), **ages(members, store, random), **divergence(members, store, random)}


def composition(members: Sequence[Member], store: Replay) -> dict[str, float]:
    """Shares of the replay by member; of member 0's own where every member has one."""
    shares = {f"share_of_{number}": share for number, share in store.composition().items()}
    return {
        **shares,
        "replay_fill": store.steps / members[0].config.replay.capacity_steps,
        "replay_bytes": sum({id(m.replay): m.replay.nbytes for m in members if m.replay is not None}.values()),
    }


def ages(members: Sequence[Member], store: Replay, random: np.random.Generator) -> dict[str, float]:
    """Percentiles of the age, in updates of the member that is furthest, of a sample."""
    newest = max(member.learner.version for member in members)
    age = newest - store.versions(store.sample(256, random))
    return {f"age_{q}": float(value) for q, value in zip(PERCENTILES, np.percentile(age, PERCENTILES), strict=True)}


@torch.inference_mode()
def divergence(members: Sequence[Member], store: Replay, random: np.random.Generator) -> dict[str, float]:
    """Mean KL(π_i ‖ π_j) over replayed states."""
    batch = allocate(members[0].layout, UNROLLS)
    store.sample_into(UNROLLS, random, batch, 0)
    policies = []
    with checks.unchecked():
        for member in members:
            network, device = member.learner.network, member.learner.device
            output, _ = network(batch.observation.to(device), batch.is_first.to(device), network.initial_state(UNROLLS))
            policies.append(output.policy)
        family = members[0].family
        return {
            f"divergence_{i}_{j}": float(family.kl(one, other).clamp(min=0.0).mean())
            for i, one in enumerate(policies)
            for j, other in enumerate(policies)
            if i != j
        }
