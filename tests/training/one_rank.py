"""One process of a team that nobody supervises, as an actor of a cluster would be: joins, learns from its columns, says what it has become.

python -m tests.training.one_rank RANK SIZE ADDRESS DEVICE
"""

import hashlib
import sys

import safetensors.torch
import torch

from laser_rl.agent.parallel import own_columns, part_of
from laser_rl.training.ranks import join
from tests.agent.teams import COLUMNS, learner, network, uneven_batch

KIND = {"memory": "lstm", "tasks": 2}
LOSS = {"popart": True, "popart_step": 0.05, "target_acceptance": 0.5}
RATES = {"clip_gradient_norm": 0.5}
UPDATES = 5


def batches(net):
    return [uneven_batch(net, update, tasks=2) for update in range(UPDATES)]


def learned(rank, size, address, device):
    """The learner of one rank after all batches, and a hash of all that it is."""
    team = join(rank, size, address, torch.device(device), timeout_s=60.0, nccl=False)
    try:
        net = network(**KIND).to(device)
        one = learner(net, LOSS, RATES, team=team)
        for batch in batches(net):
            one.update(part_of(batch, own_columns(COLUMNS, team)), progress=0.0)
        groups = one.state_dict().tensors
    finally:
        team.close()
    flat = {f"{g}.{n}": t.cpu().contiguous() for g, named in groups.items() for n, t in named.items()}
    return one, hashlib.sha256(safetensors.torch.save(flat)).hexdigest()


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(learned(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])[1])
