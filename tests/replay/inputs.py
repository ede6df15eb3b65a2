"""Unrolls in which every byte is a function of the unroll's number, and a gather written as loops."""

import numpy as np
import torch

from laser_rl.types import UnrollLayout, Unrolls

VECTOR = UnrollLayout(5, 0, (4,), "float32", (), "int64", 3)
STACKED_VECTOR = UnrollLayout(5, 2, (4,), "float32", (2,), "float32", 4)
SCALAR = UnrollLayout(3, 0, (), "float32", (), "int64", 2)
PICTURE = UnrollLayout(6, 0, (3, 12, 12), "uint8", (), "int64", 5)
STACKED = UnrollLayout(6, 3, (1, 12, 12), "uint8", (), "int64", 5)
LAYOUTS = [VECTOR, STACKED_VECTOR, SCALAR, PICTURE, STACKED]
OUTCOMES = ("action", "reward", "terminated", "truncated", "lost_life", "real", "behaviour")


def numbered(layout, numbers, *, first_share=0.15):
    """Every field drawn by a generator seeded with the number; about half of the frames' bytes compress."""
    singles = [_one(layout, int(number), first_share) for number in numbers]
    fields = layout.fields()
    return Unrolls(
        *(
            np.stack([single[name] for single in singles])
            if singles
            else np.zeros((0, *fields[name][0]), fields[name][1])
            for name in Unrolls._fields
        )
    )


def _one(layout, number, first_share):
    random, fields = np.random.default_rng(number), {}
    for name, (shape, dtype) in layout.fields().items():
        if dtype == "bool":
            fields[name] = np.asarray(random.random(shape) < first_share)
        elif dtype == "uint8":
            fields[name] = (random.integers(0, 256, shape) * (random.random(shape) < number % 7 / 7)).astype(dtype)
        elif dtype == "float32":
            fields[name] = np.asarray(random.normal(size=shape), dtype)
        else:
            fields[name] = np.asarray(random.integers(0, 100, shape), dtype)
    fields["member"], fields["version"] = np.asarray(number % 3, np.int32), np.asarray(number, np.int64)
    return fields


def take(unrolls, chosen):
    return Unrolls(*(array[chosen] for array in unrolls))


def assert_same(left, right):
    for name, a, b in zip(left._fields, left, right, strict=True):
        assert a.dtype == b.dtype, name
        assert a.shape == b.shape, name
        same = torch.equal(a, b) if isinstance(a, torch.Tensor) else np.array_equal(a, b)
        assert same, name


def assert_column(layout, batch, column, unrolls, i):
    """Column of a batch against unroll i, row by row, frame by frame."""
    for t in range(layout.steps + 1):
        row = layout.context + t
        stack, alive = [], True
        for age in range(layout.stack):
            frame = unrolls.observation[i, row - age]
            stack.insert(0, frame if alive else np.zeros_like(frame))
            alive = alive and not unrolls.is_first[i, row - age]
        expected = np.concatenate(stack) if layout.observation_shape else np.array(stack[0])
        assert np.array_equal(batch.observation[t, column].numpy(), expected), f"observation of row {t}"
        assert bool(batch.is_first[t, column]) == bool(unrolls.is_first[i, row])
        for name in ("last_action", "last_reward"):
            assert np.array_equal(getattr(batch, name)[t, column].numpy(), getattr(unrolls, name)[i, t]), name
    for name in OUTCOMES:
        for t in range(layout.steps):
            assert np.array_equal(getattr(batch, name)[t, column].numpy(), getattr(unrolls, name)[i, t]), name
    for name in ("member", "slot", "episode", "seed", "version"):
        assert int(getattr(batch, name)[column]) == int(getattr(unrolls, name)[i]), name
