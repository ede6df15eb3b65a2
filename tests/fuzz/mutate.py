"""Inputs that are nearly right: bytes with damage, and JSON in which single values are exchanged. The same seed makes the same input."""

import copy
import json
import math
import random
from typing import Any

Dice = random.Random
# What parsers have stumbled over: ends, nesting, numbers that are none or too large, names that lead elsewhere, things that execute.
TOKENS = [
    b"", b"\x00", b"\xff\xfe", b'"', b"'", b"[", b"{", b"]", b"}", b"\n", b":", b",", b"-", b"#", b"null", b"NaN", b"Infinity",
    b"-Infinity", b"1e999", b"-1",
    b"9" * 30, b"9" * 5000, b"[" * 3000, b'{"a":' * 3000, b"../../secret", b"/etc/passwd", b"\\u0000", b"\xed\xa0\x80", b"&a [*a]",
    b"*a", b"<<: ",
    b"!!python/object/apply:os.system [true]", b"!!int ''", b"!!float x", b"!!bool x", b"!!timestamp x", b"!!binary x", b"!!set",
    b"? [a]", b"---", b"%YAML 9.9",
    b"cos\nsystem\n(S'true'\ntR.", b"\x80\x04\x95\x1c\x00\x00\x00", b"F8_E4M3", b"F4", b"C64", b"BF16", b"U64", b"\x28\xb5\x2f\xfd",
    b"\x5b\x2a\x4d\x18",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 7, 1 << 31, 1 << 63, 1 << 64, 10**30, 10**400, 0.5, -0.0, 1e308, -1e308, 5e-324, math.nan, math.inf,
    -math.inf, "", "x", "nan",
    "1e3", "None", "\x00", "\ud800", "a" * 3000, "../../secret", "/etc/passwd", "laser/Catch", "os:system", [], {}, [[]], [1, 2, 3],
    [None], {"x": 1}, [{}], [[[[[]]]]],
    "0" * 64,
]  # fmt: skip


def damaged(data: bytes, dice: Dice) -> bytes:
    """One to four places flipped, cut, doubled, zeroed, moved or replaced."""
    found = bytearray(data)
    for _ in range(dice.choice([1, 1, 1, 2, 4])):
        place, other = (dice.randrange(len(found) + 1) for _ in range(2))
        length = min(dice.choice([1, 1, 2, 4, 8, 64, 1000]), max(len(found) - place, 0))
        match dice.randrange(8):
            case 0 if found:
                found[place % len(found)] ^= 1 << dice.randrange(8)
            case 1 if found:
                found[place % len(found)] = dice.randrange(256)
            case 2:
                del found[place:]
            case 3:
                del found[place : place + length]
            case 4:
                found[other:other] = found[place : place + length]
            case 5:
                found[place : place + length] = bytes(length)
            case 6:
                found[place : place + length] = found[other : other + length]
            case _:
                found[place : place + dice.choice([0, length])] = dice.choice(TOKENS)
    return bytes(found)


def forged(value: Any, dice: Dice) -> Any:
    """A copy of a JSON value in which one to three places hold something else, or are gone, or are called otherwise."""
    made = json.loads(json.dumps(value))
    for _ in range(dice.choice([1, 1, 2, 3])):
        made = _changed(made, dice)
    return made


def _changed(value: Any, dice: Dice) -> Any:
    inner = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not inner or dice.random() < 0.05:
        return _other(value, dice)
    key = dice.choice(inner)
    if isinstance(value[key], dict | list) and value[key] and dice.random() < 0.8:
        value[key] = _changed(value[key], dice)
    elif dice.random() < 0.7:
        value[key] = _other(value[key], dice)
    elif dice.random() < 0.5:
        del value[key]
    elif isinstance(value, dict):
        value[dice.choice(["", "x", "format", f"{key}s", str(key)[1:], "../x"])] = value.pop(key)
    else:
        value.insert(dice.randrange(len(value) + 1), _other(value[key], dice))
    return value


def _other(value: Any, dice: Dice) -> Any:
    if isinstance(value, str) and dice.random() < 0.3:
        return damaged(value.encode(errors="replace"), dice).decode(errors="replace")
    if isinstance(value, int | float) and dice.random() < 0.3:
        return dice.choice([-value, value + 1, value * 1000, str(value)])
    return copy.deepcopy(dice.choice(VALUES))


def mutated(data: bytes, dice: Dice, *, is_json: bool) -> bytes:
    """Half of the JSON files stay JSON, so that what comes after the parser is met too."""
    if is_json and dice.random() < 0.6:
        return json.dumps(forged(json.loads(data), dice), ensure_ascii=dice.random() < 0.9).encode(errors="replace")
    return damaged(data, dice)
