"""Metrics of all members together: each member's share of the replay, the age of its data, and the divergence of the policies."""

from collections.abc import Sequence

import numpy as np
import torch

from laser_rl.agent.learner import Learner
from laser_rl.ops import checks
from laser_rl.replay.memory_layout import allocate
from laser_rl.replay.store import Replay
from laser_rl.training.build import Member
from laser_rl.types import Inputs

UNROLLS = 16  # whose states the policies are compared on
SAMPLE = 256  # unrolls whose age is looked at
PERCENTILES = (0, 25, 50, 75, 100)


def sweep_metrics(members: Sequence[Member], random: np.random.Generator) -> dict[str, float]:
    learners, store = [member.learner for member in members], members[0].replay
    if store is None or not len(store):
        return {}
    stores = [member.replay for member in members]
    return {**composition(stores), **ages(learners, store, random), **divergence(learners, store, random)}


def composition(stores: Sequence[Replay | None]) -> dict[str, float]:
    each = list({id(store): store for store in stores if store is not None}.values())
    unrolls = sum(len(store) for store in each)
    shares: dict[str, float] = {}
    for store in each:
        for number, share in store.composition().items():
            name = f"share_of_{number}"
            shares[name] = shares.get(name, 0.0) + share * len(store) / unrolls
    capacity = sum(store.capacity for store in each)
    return {**shares, "replay_fill": unrolls / capacity, "replay_bytes": sum(store.nbytes for store in each)}


def ages(learners: Sequence[Learner], store: Replay, random: np.random.Generator) -> dict[str, float]:
    """Percentiles of the age of a sample, in updates of the member that has made most."""
    newest = max(learner.version for learner in learners)
    age = newest - store.sample_versions(SAMPLE, random)
    return {f"age_{q}": float(value) for q, value in zip(PERCENTILES, np.percentile(age, PERCENTILES), strict=True)}


@torch.inference_mode()
def divergence(learners: Sequence[Learner], store: Replay, random: np.random.Generator) -> dict[str, float]:
    """Mean KL(π_i ‖ π_j) over replayed states."""
    batch = allocate(store.layout, UNROLLS)
    store.sample_into(UNROLLS, random, batch, 0)
    policies, family = [], learners[0].family
    with checks.unchecked():
        for learner in learners:
            network, device = learner.network, learner.device
            rows = Inputs(*(part.to(device) for part in batch.inputs))
            # A memory starts from zeros at each unroll: the stored state belongs to the network that acted.
            output, _ = network(rows, network.initial_state(UNROLLS))
            policies.append(output.policy)
        return {
            f"divergence_{i}_{j}": float(family.kl(one, other).clamp(min=0.0).mean())
            for i, one in enumerate(policies)
            for j, other in enumerate(policies)
            if i != j
        }
