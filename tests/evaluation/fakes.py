"""Environments whose episodes are known in closed form."""

import numpy as np

from laser_rl.envs.records import DiscreteActions, EnvironmentSpec, ObservationSpec, Rows


class Scripted:
    """Slot s plays episodes of `lengths[s]`, in a cycle; every step pays slot + 1. Rows come back for a random part of the slots.

    The observation is (slot, episode, t), so that a mixed-up row shows. `broken` lists (slot, episode, t) where the stream breaks once.
    """

    def __init__(self, lengths, *, partial=None, broken=(), truncate=False):
        self.spec = EnvironmentSpec("Scripted", ObservationSpec((3,)), DiscreteActions(2))
        self.slots, self._lengths = len(lengths), lengths
        self._random = None if partial is None else np.random.default_rng(partial)
        self._broken, self._truncate = set(broken), truncate
        self._position = [[0, -1] for _ in lengths]  # episode, t
        self._owing = []
        self.steps = np.zeros(self.slots, int)
        self.actions = []

    def reset(self):
        assert not self._owing
        self._owing = list(range(self.slots))
        return self._ready()

    def step(self, slots, action):
        assert len(slots) == len(action) == len(set(slots.tolist()))
        assert not set(slots.tolist()) & set(self._owing), "a slot that owes a row was asked to act"
        self.actions += [
            (int(slot), *self._position[slot], int(chosen)) for slot, chosen in zip(slots, action, strict=True)
        ]
        self.steps[slots] += 1
        self._owing += slots.tolist()
        return self._ready()

    def _ready(self):
        assert self._owing, "nobody owes a row"
        ready = list(self._owing)
        if self._random is not None:
            ready = self._random.permutation(ready)[: self._random.integers(1, len(ready) + 1)].tolist()
        self._owing = [slot for slot in self._owing if slot not in ready]
        rows = [self._row(slot) for slot in ready]
        columns = list(zip(*rows, strict=True))
        types = [np.int64, np.float32, bool, np.float32, bool, bool, bool, bool, np.int64, np.int64]
        return Rows(*(np.array(column, dtype) for column, dtype in zip(columns, types, strict=True)))

    def _row(self, slot):
        episode, t = self._position[slot]
        length = self._lengths[slot][episode % len(self._lengths[slot])]
        restarted = (slot, episode, t) in self._broken
        if restarted:  # the same episode number again: the open one is lost
            self._broken.remove((slot, episode, t))
            t = 0
        elif t == length:
            episode, t = episode + 1, 0
        else:
            t += 1
        self._position[slot] = [episode, t]
        length = self._lengths[slot][episode % len(self._lengths[slot])]
        ended = t == length
        reward = 0.0 if t == 0 else slot + 1.0
        flags = (ended and not self._truncate, ended and self._truncate, False, restarted)
        return (slot, (slot, episode, t), t == 0, reward, *flags, episode, 0)
