"""Hours and cost of the paper's protocol on Atari (57 games, 200 M frames, 9 members), from what was measured on one card.

    python benchmarks/scaling.py                                  # the tables of benchmarks/results/2026-11-16-scaling-tables.txt
    python benchmarks/scaling.py --efficiency 1 --cores 32 --prices 2.5

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
# Training frames a second of nine members at ×4 and 96 %, by version of the runtime.
VERSIONS = {
    "15 November: only the slowest member acted": 47_953,
    "16 November: all act, updates at will": 71_719,
    "16 November: three updates at a time": 77_333,
    "the learner alone: if nothing were lost": 84_986,
}


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


@dataclass(frozen=True)
class Card:
    """Measured on 15 and 16 November 2026: one NVIDIA H200 with 16 cores; see benchmarks/README.md.

    Attributes:
        alone: training frames a second of the learner with nothing beside it, by width of the network.
        together: those of nine members of one sweep. Where emulators decide, for ×1 at 87.5 %, there is none.
        steps: of Breakout's emulators in a second on all cores, beside a learner.
    """

    alone: tuple[tuple[int, float], ...] = ((4, 84_986), (1, 269_738))
    together: tuple[tuple[Case, float], ...] = (
        (Case(4, 0.96), 77_333),
        (Case(4, 0.875), 65_206),
        (Case(1, 0.96), 249_334),
    )
    steps: float = 12_637
    cores: int = 16

    def learner(self, width: int) -> float:
        """Training frames a second of one learner alone."""
        return dict(self.alone)[width]

    def members(self, case: Case) -> float:
        """Training frames a second of nine members; where nobody measured them, of the same network at 96 %."""
        return dict(self.together).get(case) or dict(self.together)[Case(case.width, 0.96)]


@dataclass(frozen=True)
class Assumed:
    """What nobody has measured yet.

    Attributes:
        efficiency: training frames of nine members together, as a share of one learner alone; None: as measured, `Card.together`.
        overhead: hours for start, checkpoints, evaluation and work that is lost when something fails, as a share of training.
        cores: that each card has for its emulators.
    """

    efficiency: float | None = None
    overhead: float = 0.05
    cores: int = 16


CASES = (Case(4, 0.96), Case(4, 0.875), Case(1, 0.96), Case(1, 0.875))


def new_steps(case: Case, training_frames: float) -> float:
    """How many a second go with so many training frames a second.

    >>> new_steps(Case(4, 0.96), 2560)
    95.0
    """
    return training_frames / (BATCH * ROWS) * case.new_steps


def learner_steps(case: Case, card: Card, efficiency: float | None = None) -> float:
    """New steps a second that the nine learners of one card can take.

    >>> round(learner_steps(Case(4, 0.96), Card())), round(learner_steps(Case(4, 0.96), Card(), efficiency=1.0))
    (2870, 3154)
    """
    measured = card.members(case) if efficiency is None else efficiency * card.learner(case.width)
    return new_steps(case, measured)


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
    39.6
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
        alone = hours_of(FRAMES / FRAMES_A_STEP, new_steps(case, card.learner(case.width)))
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


def versions(card: Card, assumed: Assumed) -> list[str]:
    """A line for each version: the paper's case on one card."""
    lines = ["| nine members | training frames/s | hours of a sweep | card-hours |", "|---|---|---|---|"]
    for name, frames in VERSIONS.items():
        efficiency = frames / card.learner(CASES[0].width)
        one = sweep_hours(CASES[0], card, Assumed(efficiency, assumed.overhead, assumed.cores))
        lines.append(f"| {name} | {frames:,} | {one:.1f} | {GAMES * one:,.0f} |")
    return lines


def report(card: Card, assumed: Assumed, cards: Sequence[int] = (1, 8, 64), prices: Sequence[float] = (2, 3, 4)) -> str:
    """All tables."""
    tables = [demands(card, assumed), costs(card, assumed, cards, prices), versions(card, assumed)]
    return "\n\n".join("\n".join(lines) for lines in tables)


def main() -> None:
    """Tables to standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--efficiency", type=float, help="of nine members, as a share of one learner alone; as measured"
    )
    parser.add_argument("--overhead", type=float, default=Assumed.overhead)
    parser.add_argument("--cores", type=int, default=Assumed.cores, help="of each card, for its emulators")
    parser.add_argument("--cards", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--prices", type=float, nargs="+", default=[2, 3, 4], help="of a card for an hour")
    asked = parser.parse_args()
    # Nine small networks together can do more than one alone, so a little more than 1 is no mistake; 90 for 90 % is one.
    efficient = asked.efficiency is None or 0 < asked.efficiency <= 2
    if not efficient or asked.overhead < 0 or min(asked.cores, *asked.cards) < 1:
        parser.error("expected an efficiency in (0, 2], an overhead of at least 0, and at least one core and card")
    print(report(Card(), Assumed(asked.efficiency, asked.overhead, asked.cores), asked.cards, asked.prices))


if __name__ == "__main__":
    main()
