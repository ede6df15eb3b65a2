"""The whole episodes of a run's replay, found the slow way: rows one by one, a stream at a time."""

import numpy as np

from laser_rl import checkpoint
from laser_rl.checkpoint import REPLAY, read_segment
from laser_rl.training.saving import STORE_IDS

OUTCOMES = ("action", "reward", "terminated", "truncated", "lost_life", "behaviour")


def streams(run_dir, layout, gone=()):
    """By (store, member, slot): unrolls as dictionaries, in order; those numbered `gone` are left out."""
    loaded = checkpoint.latest(run_dir, replay="unread")
    bounds = loaded.state["replays"]
    found = {}
    for entry in loaded.segments:
        store = entry.first_id // STORE_IDS
        for first, block in read_segment(run_dir / REPLAY, entry, layout):
            for at in range(len(block.member)):
                unroll = {name: getattr(block, name)[at] for name in block._fields}
                if first + at in gone or first + at < store * STORE_IDS + bounds[store]["first_id"]:
                    continue
                key = (store, int(unroll["member"]), int(unroll["slot"]))
                found.setdefault(key, []).append(unroll)
    return found


def row_of(layout, unroll, t):
    inputs = [unroll[name][t + (layout.context if name in {"observation", "is_first"} else 0)]
              for name in ("observation", "is_first", "last_action", "last_reward")]  # fmt: skip
    return [np.array(one) for one in inputs]


def episodes(run_dir, layout, gone=()):
    """Dictionaries of arrays, with whose they are; in no particular order."""
    whole = []
    for (store, member, slot), unrolls in streams(run_dir, layout, gone).items():
        rows, last = None, None
        for unroll in unrolls:
            now = row_of(layout, unroll, 0)
            if last is not None and not all(np.array_equal(a, b) for a, b in zip(last, now, strict=True)):
                rows = None
            for t in range(layout.steps):
                observation, first, *_ = row_of(layout, unroll, t)
                if first:
                    rows = []
                if rows is None:
                    continue
                rows.append({"observation": observation, **{name: np.array(unroll[name][t]) for name in OUTCOMES}})
                if unroll["terminated"][t] or unroll["truncated"][t]:
                    final = row_of(layout, unroll, t + 1)[0]
                    arrays = {name: np.stack([row[name] for row in rows]) for name in OUTCOMES}
                    seen = np.stack([*(row["observation"] for row in rows), final])
                    whole.append({"store": store, "member": member, "slot": slot, "observation": seen, **arrays})
                    rows = None
            last = row_of(layout, unroll, layout.steps)
    return whole


def key(episode):
    """What tells an episode from all others: its bytes."""
    return b"".join(np.ascontiguousarray(episode[name]).tobytes() for name in ("observation", *OUTCOMES))
