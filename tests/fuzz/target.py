"""A file, what it may begin as, how it is damaged, and who reads it."""

import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.fuzz.mutate import Dice, forged, mutated

OFTEN_ENOUGH = 20  # every so many inputs also take the long way: a whole restore, a whole report
Feed = Callable[[bytes, int], object]


@dataclass(frozen=True)
class Target:
    """A file, what it may begin as, and who reads it."""

    seeds: list[bytes]
    feed: Feed
    is_json: bool = False
    share: float = 1.0  # of the inputs, beside others

    def input(self, name: str, number: int) -> bytes:
        """Input `number`: the same in every run."""
        dice = random.Random(f"{name}/{number}")  # noqa: S311
        return self.mutate(self.seeds[number % len(self.seeds)], dice)

    def mutate(self, seed: bytes, dice: Dice) -> bytes:
        """A seed with damage."""
        return mutated(seed, dice, is_json=self.is_json)


class Tensors(Target):
    """Safetensors files, whose header is JSON after its length."""

    def mutate(self, seed: bytes, dice: Dice) -> bytes:
        """Damage anywhere, or a forged header."""
        if dice.random() < 0.5:
            return super().mutate(seed, dice)
        return header_forged(seed, "<Q", dice)


class Rows(Target):
    """Lines of JSON."""

    def mutate(self, seed: bytes, dice: Dice) -> bytes:
        """Damage anywhere, or a few forged rows."""
        if dice.random() < 0.4:
            return super().mutate(seed, dice)
        rows = seed.splitlines()
        for _ in range(3):
            place = dice.randrange(len(rows))
            rows[place] = json.dumps(forged(json.loads(rows[place]), dice)).encode() if rows[place] else b""
        return b"\n".join(rows) + b"\n"


def header_forged(seed: bytes, form: str, dice: Dice) -> bytes:
    """A file whose JSON header, which stands after its length, says something else."""
    *magic, length = struct.unpack_from(form, seed)
    start = struct.calcsize(form)
    header = json.dumps(forged(json.loads(seed[start : start + length]), dice)).encode(errors="replace")
    return struct.pack(form, *magic, len(header)) + header + seed[start + length :]


@dataclass(frozen=True)
class Segment(Target):
    """A segment of the replay: damaged, with a forged header, or with checksums that fit what is damaged."""

    rewritten: Callable[[Dice], bytes] = field(kw_only=True)

    def mutate(self, seed: bytes, dice: Dice) -> bytes:
        """One of the three."""
        way = dice.random()
        if way < 0.4:
            return super().mutate(seed, dice)
        return header_forged(seed, "<II", dice) if way < 0.7 else self.rewritten(dice)
