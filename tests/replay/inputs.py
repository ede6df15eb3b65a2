"""Unrolls in which every byte is a function of the unroll's number, and a gather written as loops."""

import numpy as np
import torch

from laser_rl.replay.shared import COMPRESSED
from laser_rl.types import UnrollLayout, Unrolls

VECTOR = UnrollLayout(5, 0, (4,), "float32", (), "int64", 3)
STACKED_VECTOR = UnrollLayout(5, 2, (4,), "float32", (2,), "float32", 4)
SCALAR = UnrollLayout(3, 0, (), "float32", (), "int64", 2)
PICTURE = UnrollLayout(6, 0, (3, 12, 12), "uint8", (), "int64", 5)
STACKED = UnrollLayout(6, 3, (1, 12, 12), "uint8", (), "int64", 5)
LAYOUTS = [VECTOR, STACKED_VECTOR, SCALAR, PICTURE, STACKED]
OUTCOMES = ("action", "reward", "terminated", "truncated", "lost_life", "is_transition", "behaviour")


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


RECURRENT = UnrollLayout(4, 0, (4,), "float32", (), "int64", 2, state_size=3)
CONTEXT = UnrollLayout(4, 2, (4,), "float32", (), "int64", 2, state_size=3)


class Stream:
    """One slot, row by row: a row is (stream, life, episode, t), and so is its observation. An episode of L steps has rows 0 to L.

    A life ends when the slot's worker dies: its open unroll and its open episode are lost.
    """

    def __init__(self, layout, name, lengths, *, unrecorded=0):
        self.layout, self.name, self.lengths = layout, name, lengths
        self.life, self.episode = 0, -1
        self.length = {}  # of each (stream, life, episode)
        self._begin()
        for _ in range(unrecorded):
            self.head = next(self.rows)
        self.past = []

    def _begin(self):
        self.rows = self._live()
        self.head, self.past = next(self.rows), []

    def _live(self):
        while True:
            self.episode += 1
            self.length[self.name, self.life, self.episode] = steps = next(self.lengths)
            for t in range(steps + 1):
                yield (self.name, self.life, self.episode, t)

    def restart(self, lost_rows=0):
        """Some rows are lost, then a new episode begins."""
        for _ in range(lost_rows):
            next(self.rows)
        self.life += 1
        self._begin()

    def is_last(self, row):
        return row[3] == self.length[row[:3]]

    def cut(self):
        """The next unroll, and its T+1 rows."""
        layout, random = self.layout, np.random.default_rng(abs(hash(self.head)))
        rows = [self.head, *(next(self.rows) for _ in range(layout.steps))]
        fields = {name: np.zeros((1, *shape), dtype) for name, (shape, dtype) in layout.fields().items()}
        before = [None] * layout.context + self.past
        seen = [*before[len(before) - layout.context :], *rows]
        fields["observation"][0] = [row or (0, 0, 0, 0) for row in seen]
        fields["is_first"][0] = [row is not None and row[3] == 0 for row in seen]
        fields["is_transition"][0] = [not self.is_last(row) for row in rows[:-1]]
        for t, row in enumerate(rows[1:]):
            fields["truncated" if row[2] % 2 else "terminated"][0, t] = self.is_last(row)
        fields["member"][0], fields["slot"][0] = divmod(self.name, 10)
        fields["episode"][0] = rows[0][2]
        fields["state"][0] = random.normal(size=layout.state_size)  # must never be seen by a lane
        self.head, self.past = rows[-1], seen[:-1]
        return Unrolls(**fields), rows


class Walk:
    """A store filled by streams, and beside it the plain list of all rows ever inserted: the naive twin of the index."""

    def __init__(self, store, streams):
        self.store, self.streams, self.rows = store, streams, []

    def cut(self, which):
        unrolls, rows = self.streams[which].cut()
        assert self.store.insert(unrolls).tolist() == [len(self.rows)]
        self.rows.append(rows)

    def length(self, row):
        return self.streams[row[0] % len(self.streams)].length[row[:3]]

    def held(self):
        return range(self.store.first_id, self.store.next_id)

    def following(self, unroll):
        """The next one that begins with this one's last row, in the same life of the same stream."""
        return next((i for i in self.held() if i > unroll and self.rows[i][0] == self.rows[unroll][-1]), None)

    def episodes(self):
        """(first, row, last, end) of every episode all of whose rows are held, by completion."""
        steps, found = self.store.layout.steps, []
        for first in self.held():
            for row in range(steps):
                begin = self.rows[first][row]
                if begin[3] == 0:
                    end = self._end(first, (*begin[:3], self.length(begin)))
                    found += [] if end is None else [(first, row, *end)]
        return sorted(found, key=lambda episode: episode[2:])

    def _end(self, unroll, last_row):
        while unroll is not None:
            if last_row in self.rows[unroll][1:]:
                return unroll, self.rows[unroll].index(last_row, 1) - 1
            unroll = self.following(unroll)
        return None


def cycle_of(*lengths):
    """For ever these, one after the other."""
    while True:
        yield from lengths


def compressed_bytes(store):
    """Of all blocks held, as the store counts them; a count that a killed writer left half done is made again first."""
    with store.lock:
        store._ring._settle()
        return store._room.words[COMPRESSED]
