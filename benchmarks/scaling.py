"""Hours and cost of the paper's protocol on Atari (57 games, 200 M frames, 9 members), from what was measured on one card.

    python benchmarks/scaling.py                                  # the tables of docs/scaling.md
    python benchmarks/scaling.py --efficiency 0.95 --cores 32 --prices 2.5

Nothing is measured here: change a figure of `Card` or an assumption of `Assumed`, and everything follows. Nine members share one replay,
so a sweep of one game stays on one card; games are independent, and cards take them one after the other.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

from laser_rl.replay.mixer import Counts

GAMES, MEMBERS, FRAMES, FRAMES_A_STEP = 57, 9, 200_000_000, 4
BATCH, STEPS, ROWS = 128, 19, 20  # unrolls of a batch; steps and input rows of an unroll
HOUR_S, DAY_H = 3600, 24


@dataclass(frozen=True)
class Card:
    """Measured on 15 November 2026: one NVIDIA H200 with 16 cores; see benchmarks/README.md.

    Attributes:
        frames: that the learner alone trains on in a second, by width of the network.
        steps: of Breakout's emulators in a second on all cores, beside a learner.
    """

    frames: tuple[tuple[int, float], ...] = ((4, 83_319), (1, 252_327))
    steps: float = 12_637
    cores: int = 16

    def learner(self, width: int) -> float:
        """Training frames a second."""
        return dict(self.frames)[width]


@dataclass(frozen=True)
class Assumed:
    """What nobody has measured yet.

    Attributes:
        efficiency: training frames of nine members together, as a share of one learner alone.
        overhead: hours for start, checkpoints, evaluation and work that is lost when something fails, as a share of training.
        cores: that each card has for its emulators.
    """

    efficiency: float = 0.9
    overhead: float = 0.05
    cores: int = 16


@dataclass(frozen=True)
class Case:
    """A network and a replay fraction."""

    width: int
    fraction: float

    def __str__(self) -> str:
        return f"×{self.width}, {100 * self.fraction:g} %"

    @property
    def new_steps(self) -> int:
        """That an update consumes.

        >>> Case(4, 0.96).new_steps, Case(4, 0.875).new_steps
        (95, 304)
        """
        return Counts.of(BATCH, self.fraction).online * STEPS

    @property
    def updates(self) -> float:
        """Of one member in one game."""
        return FRAMES / FRAMES_A_STEP / self.new_steps


CASES = (Case(4, 0.96), Case(4, 0.875), Case(1, 0.96), Case(1, 0.875))


def learner_steps(case: Case, card: Card, efficiency: float) -> float:
    """New steps a second that the learners of one card can take.

    >>> round(learner_steps(Case(4, 0.96), Card(), 1.0))
    3092
    """
    return efficiency * card.learner(case.width) / (BATCH * ROWS) * case.new_steps


def emulator_steps(card: Card, cores: int) -> float:
    """A second on so many cores, all of them as fast as those measured.

    >>> round(emulator_steps(Card(), 8))
    6318
    """
    return card.steps / card.cores * cores


def hours_of(steps: float, steps_a_second: float) -> float:
    """The time that so many steps take."""
    return steps / steps_a_second / HOUR_S


def sweep_hours(case: Case, card: Card, assumed: Assumed) -> float:
    """Of nine members in one game on one card; the slower of learners and emulators decides.

    >>> round(sweep_hours(Case(4, 0.96), Card(), Assumed(efficiency=1, overhead=0)), 1)
    40.4
    """
    pace = min(learner_steps(case, card, assumed.efficiency), emulator_steps(card, assumed.cores))
    return (1 + assumed.overhead) * hours_of(MEMBERS * FRAMES / FRAMES_A_STEP, pace)


def rounds(cards: int, games: int = GAMES) -> int:
    """How many games the busiest card has.

    >>> rounds(1), rounds(8), rounds(64)
    (57, 8, 1)
    """
    return math.ceil(games / cards)


def demands(card: Card, assumed: Assumed) -> list[str]:
    """A line a case: what a member needs, and what limits a card."""
    lines = [
        (
            "| network, replay | updates a member and game | hours of one learner alone | new steps/s of a card's nine members | "
            f"cores for them | limit with {assumed.cores} cores | hours of a sweep |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        alone = hours_of(FRAMES / FRAMES_A_STEP, learner_steps(case, card, 1.0))
        wanted, given = learner_steps(case, card, assumed.efficiency), emulator_steps(card, assumed.cores)
        cells = [
            str(case),
            f"{case.updates:,.0f}",
            f"{alone:.2f}",
            f"{wanted:,.0f}",
            f"{wanted / emulator_steps(card, 1):.1f}",
        ]
        cells += ["learners" if wanted <= given else "emulators", f"{sweep_hours(case, card, assumed):.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def costs(card: Card, assumed: Assumed, cards: Sequence[int], prices: Sequence[float]) -> list[str]:
    """A line for each case and number of cards."""
    priced = "".join(f" at {price:g} |" for price in prices)
    lines = [
        f"| network, replay | cards | days | card-hours, used | held |{priced}",
        "|---|---|---|---|---|" + "---|" * len(prices),
    ]
    for case in CASES:
        one = sweep_hours(case, card, assumed)
        for count in cards:
            wall, used = rounds(count) * one, GAMES * one
            cells = [str(case), str(count), f"{wall / DAY_H:.1f}", f"{used:,.0f}", f"{count * wall:,.0f}"]
            lines.append(f"| {' | '.join([*cells, *(f'{price * used:,.0f}' for price in prices)])} |")
    return lines


def efficiencies(card: Card, assumed: Assumed, values: Sequence[float]) -> list[str]:
    """A line for each efficiency: the paper's case on one card."""
    lines = ["| nine members, share of one learner alone | hours of a sweep | card-hours |", "|---|---|---|"]
    for value in values:
        one = sweep_hours(CASES[0], card, Assumed(value, assumed.overhead, assumed.cores))
        lines.append(f"| {100 * value:.1f} % | {one:.1f} | {GAMES * one:,.0f} |")
    return lines


def report(card: Card, assumed: Assumed, cards: Sequence[int] = (1, 8, 64), prices: Sequence[float] = (2, 3, 4)) -> str:
    """All tables."""
    tables = [demands(card, assumed), costs(card, assumed, cards, prices)]
    tables.append(efficiencies(card, assumed, (0.576, 0.8, 0.9, 0.95, 1.0)))
    return "\n\n".join("\n".join(lines) for lines in tables)


def main() -> None:
    """Tables to standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--efficiency", type=float, default=Assumed.efficiency)
    parser.add_argument("--overhead", type=float, default=Assumed.overhead)
    parser.add_argument("--cores", type=int, default=Assumed.cores, help="of each card, for its emulators")
    parser.add_argument("--cards", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--prices", type=float, nargs="+", default=[2, 3, 4], help="of a card for an hour")
    asked = parser.parse_args()
    if not 0 < asked.efficiency <= 1 or asked.overhead < 0 or min(asked.cores, *asked.cards) < 1:
        parser.error("expected an efficiency in (0, 1], an overhead of at least 0, and at least one core and card")
    print(report(Card(), Assumed(asked.efficiency, asked.overhead, asked.cores), asked.cards, asked.prices))


if __name__ == "__main__":
    main()
