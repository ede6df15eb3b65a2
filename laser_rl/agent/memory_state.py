"""The memory's state at the learner: where each column's comes from, and what its lane carries to the next batch.

Every replayed column of a batch is one lane of the replay (with `replay.state` at refresh). Where it goes on (`carried`), it starts from
the state that this learner's own parameters reached at the end of the column's unroll before: after row T−1, since row T is also row 0 of
the next. No second pass is needed, and no stored state is ever used (docs/adr/0016). Online columns start from the actor's state.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from laser_rl.agent.parallel import ALONE, Team, own_columns
from laser_rl.agent.policy import finite
from laser_rl.networks.agent_network import AgentNetwork, Output
from laser_rl.types import Batch, Inputs


class Recurrent:
    """Unrolls a network over batches in their order.

    The first `burn_in_steps` rows of a replayed column only warm the memory up: nothing is learned from them, and no gradient runs through
    (the baseline of Kapturowski et al. 2019, for unrolls drawn at random). Every rank of the `team` knows the states of all columns, so
    that any of them can be saved.
    """

    def __init__(self, network: AgentNetwork, burn_in_steps: int = 0, team: Team = ALONE) -> None:
        self._network, self._burn_in, self._team = network, burn_in_steps, team
        device = next(network.parameters()).device
        self._carried = torch.zeros(0, network.state_size, device=device)
        # Lanes whose state is no use until they begin anew.
        self._lost = torch.zeros(0, dtype=torch.bool, device=device)

    def unroll(self, batch: Batch) -> tuple[Output, Batch]:
        """Outputs at all rows, and the batch less the rows that must not be learned from."""
        auxiliary = self._network.pixel_control is not None
        if not self._network.state_size:
            return self._network(batch.inputs, batch.state, auxiliary=auxiliary)[0], batch
        columns = batch.online.shape[0] * self._team.size
        if len(self._lost) != columns:  # else the room stays where it is: a recorded update knows its address
            self._carried = batch.state.new_zeros(columns, *batch.state.shape[1:])
            self._lost = torch.ones(columns, dtype=torch.bool, device=batch.state.device)
        own = own_columns(columns, self._team)
        start = torch.where(batch.carried[:, None], self._carried[own], batch.state)
        lost = self._lost[own] & batch.carried
        output, states = self._forward(batch, start, auxiliary=auxiliary)
        end = states[-2].detach()
        self._lost.copy_(self._team.columns(lost | ~end.isfinite().all(-1)))
        self._carried.copy_(self._team.columns(finite(end)))
        early = torch.arange(len(batch.is_transition), device=lost.device) < self._burn_in
        warming = early[:, None] & ~batch.online
        return output, batch._replace(is_transition=batch.is_transition & ~lost & ~warming)

    def _forward(self, batch: Batch, start: Tensor, *, auxiliary: bool) -> tuple[Output, Tensor]:
        rows = self._burn_in
        if not rows:
            output: tuple[Output, Tensor] = self._network(batch.inputs, start, auxiliary=auxiliary)
            return output
        first, rest = (Inputs(*(part[which] for part in batch.inputs)) for which in (slice(rows), slice(rows, None)))
        before, states = self._network(first, start, auxiliary=auxiliary)
        # What an online column learns may run through all of its rows; a replayed one is cut here.
        middle = torch.where(batch.online[:, None], states[-1], states[-1].detach())
        after, later = self._network(rest, middle, auxiliary=auxiliary)
        parts = zip(before._asdict().items(), after, strict=True)
        joined = {name: torch.cat([one, other]) for (name, one), other in parts if one is not None}
        return Output(**joined), torch.cat([states, later])

    def forget(self, others: Tensor | bool = True) -> None:
        """After the parameters were replaced: learn nothing from a lane until it begins anew. A tensor lets the device decide."""
        self._lost.bitwise_or_(others)

    def addresses(self) -> tuple[int, ...]:
        """Where the state lies in memory: a recorded update is valid only while this stays the same."""
        return self._carried.data_ptr(), self._lost.data_ptr()

    def state_dict(self) -> dict[str, Tensor]:
        return {"carried": self._carried.clone(), "lost": self._lost.clone()}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        device = self._carried.device
        self._carried, self._lost = (tensors[name].to(device, copy=True) for name in ("carried", "lost"))
