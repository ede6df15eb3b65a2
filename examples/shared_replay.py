"""Three members of a sweep learn DeepSea from one replay, in tables instead of networks: LASER's mathematics with nothing around it.

A diver moves down one row a step, left or right; only the path that goes right every time finds the treasure (1), and each step right costs
a little. Acting at random finds it once in 2^SIZE episodes. Run: python examples/shared_replay.py [SEED ...]
"""

import sys

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from laser_rl.ops import actor_critic, checks, rmsprop, trust_region
from laser_rl.ops.distributions import Categorical

SIZE, SLOTS, STEPS, UPDATES, DISCOUNT, BOUND = 10, 4, 22, 500, 0.99, 0.1
REPLAYED, CAPACITY = 28, 2000  # unrolls: with SLOTS of the member's own newest, 87.5 % of each batch are replayed
SETTINGS = [(0.02, 0.003), (0.05, 0.01), (0.1, 0.03)]  # learning rate, entropy cost
STRETCHES, SOLVED = 5, 0.9
DIRECTION = Categorical(2)
Unrolls = tuple[Tensor, Tensor]  # states [T+1, columns] and outcomes [T, columns, 6]


class Replay:
    """The newest CAPACITY unrolls, whoever produced them: T+1 states, and T rows of action, reward, discount, is_transition and logits."""

    def __init__(self) -> None:
        """Empty."""
        self.states = torch.zeros(STEPS + 1, CAPACITY, dtype=torch.long)
        self.outcomes = torch.zeros(STEPS, CAPACITY, 6)
        self.written = 0

    def insert(self, unrolls: Unrolls) -> None:
        """First in, first out."""
        places = (self.written + torch.arange(SLOTS)) % CAPACITY
        self.states[:, places], self.outcomes[:, places] = unrolls
        self.written += SLOTS

    def mix(self, newest: Unrolls, generator: torch.Generator) -> Unrolls:
        """The newest unrolls of one member, then REPLAYED uniform draws."""
        drawn = torch.randint(min(self.written, CAPACITY), (REPLAYED,), generator=generator)
        states, outcomes = newest
        return torch.cat([states, self.states[:, drawn]], 1), torch.cat([outcomes, self.outcomes[:, drawn]], 1)


class Member:
    """A learner and its divers. Rows follow docs/glossary.md: the row after an episode's last step is not a transition."""

    def __init__(self, learning_rate: float, entropy_cost: float, generator: torch.Generator) -> None:
        """Start with the uniform policy, at the surface."""
        self.parameters = [torch.zeros((SIZE + 1) * SIZE, 2), torch.zeros((SIZE + 1) * SIZE)]
        self.optimisers = [rmsprop.initial(table) for table in self.parameters]
        self.learning_rate, self.entropy_cost, self.generator = torch.tensor(learning_rate), entropy_cost, generator
        self.row, self.column = torch.zeros(2, SLOTS, dtype=torch.long)

    def act(self) -> Unrolls:
        """STEPS rows of every slot."""
        states, outcomes = [self.row * SIZE + self.column], []
        for _ in range(STEPS):
            logits = self.parameters[0][states[-1]]
            action = DIRECTION.sample(logits, self.generator)
            is_transition = self.row < SIZE
            never_left = self.column == self.row
            self.column = is_transition * (self.column + 2 * action - 1).clamp(0, SIZE - 1)
            self.row = is_transition * (self.row + 1)
            ended = self.row == SIZE
            reward = is_transition * ((ended & never_left & (action == 1)).float() - 0.01 / SIZE * action)
            outcomes.append(torch.stack([action, reward, DISCOUNT * ~ended, is_transition, *logits.unbind(-1)], -1))
            states.append(self.row * SIZE + self.column)
        return torch.stack(states), torch.stack(outcomes)

    def learn(self, batch: Unrolls) -> float:
        """One update; returns the share of replayed steps inside the trust region."""
        logits, value = [table.detach().requires_grad_() for table in self.parameters]
        states, outcomes = batch
        action, reward, discount, is_transition, *stored = outcomes.unbind(-1)
        policy, behaviour, is_transition = logits[states[:-1]], torch.stack(stored, -1), is_transition.bool()
        trusted = trust_region.within(trust_region.kl_to_implied(DIRECTION, policy, behaviour), BOUND)
        online = torch.arange(SLOTS + REPLAYED) < SLOTS
        losses = actor_critic.actor_critic_losses(
            DIRECTION, policy, value[states], behaviour, action.long(), reward, discount, is_transition, online, trusted
        )
        total = losses.policy.sum() + 0.5 * losses.value.sum() + self.entropy_cost * losses.entropy.sum()
        gradients = torch.autograd.grad(total, [logits, value])
        for table, gradient, state in zip(self.parameters, gradients, self.optimisers, strict=True):
            rmsprop.update(table, gradient, state, torch.tensor(True), learning_rate=self.learning_rate)
        replayed = is_transition & ~online
        return ((trusted & replayed).sum() / replayed.sum()).item()


def run(*, shared: bool, seed: int) -> tuple[Tensor, Tensor]:
    """Train the sweep; returns each member's share of treasures found in each stretch, and its mean accepted share."""
    generator = torch.Generator().manual_seed(seed)
    members = [Member(*setting, generator) for setting in SETTINGS]
    replays = [Replay()] * len(members) if shared else [Replay() for _ in members]
    episodes, treasures = torch.zeros(2, len(members), STRETCHES)
    accepted = torch.zeros(len(members))
    for update in range(UPDATES):
        for index, (member, replay) in enumerate(zip(members, replays, strict=True)):
            newest = member.act()
            replay.insert(newest)
            accepted[index] += member.learn(replay.mix(newest, generator)) / UPDATES
            _, outcomes = newest
            stretch = update * STRETCHES // UPDATES
            episodes[index, stretch] += (outcomes[..., 2] == 0).sum()
            treasures[index, stretch] += (outcomes[..., 1] > 0).sum()
    return treasures / episodes, accepted


def show(seed: int) -> dict[bool, int]:
    """Run the sweep with separate replays and with one for all, print both; returns how many members solved it in each."""
    table = Table(title=f"DeepSea {SIZE}: share of episodes that find the treasure (seed {seed})", title_justify="left")
    steps = [UPDATES * (i + 1) // STRETCHES * STEPS * SLOTS // 1000 for i in range(STRETCHES)]
    for heading in ("replay", "rate", "entropy", *(f"{count}k" for count in steps), "trusted"):
        table.add_column(heading, justify="right", no_wrap=True)
    solved = {}
    for shared in (False, True):
        curves, accepted = run(shared=shared, seed=seed)
        solved[shared] = int((curves[:, -1] >= SOLVED).sum())
        for (rate, cost), curve, share in zip(SETTINGS, curves, accepted, strict=True):
            cells = [f"{point:.2f}" for point in curve]
            table.add_row("one for all" if shared else "its own", f"{rate:g}", f"{cost:g}", *cells, f"{share:.0%}")
        table.add_section()
    Console().print(table)
    return solved


def main() -> None:
    """Show every seed that was asked for, then count."""
    torch.set_num_threads(1)
    seeds = [int(word) for word in sys.argv[1:]] or [0]
    with checks.unchecked():
        counts = [show(seed) for seed in seeds]
    own, shared = [sum(count[kind] for count in counts) for kind in (False, True)]
    members = len(SETTINGS) * len(seeds)
    print("Columns: steps of each member. One seed shows one run, not an effect: try others.")
    print(
        f"Solved (at least {SOLVED:.0%} at the end): own replay {own} of {members} members, one for all {shared} of {members}."
    )


if __name__ == "__main__":
    main()
