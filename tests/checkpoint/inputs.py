"""Random unrolls and snapshots, and what a fault needs: a forked child that is killed."""

import os
import signal
import time
import warnings

import numpy as np
import torch

from laser_rl.checkpoint import REPLAY, Snapshot, segments
from laser_rl.types import UnrollLayout, Unrolls

LAYOUT = UnrollLayout(3, 1, (2, 5), "uint8", (2,), "float32", 4)


def unrolls(count, seed=0, layout=LAYOUT):
    """Every byte random; flags 0 or 1."""
    random = np.random.default_rng(seed)
    arrays = {}
    for name, (shape, dtype) in layout.fields().items():
        size = (count, *shape)
        kind = np.dtype(dtype).kind
        numbers = random.normal(size=size) if kind == "f" else random.integers(0, 2 if kind == "b" else 100, size)
        arrays[name] = numbers.astype(dtype)
    return Unrolls(**arrays)


def write_segment(folder, layout, first_id, unrolls, previous=None):
    """A segment as a run writes it; before it there was nothing, if nothing else is said."""
    before = segments.follow({}, first_id, unrolls) if previous is None else previous
    return segments.write_segment(folder, layout, first_id, unrolls, before)


def snapshot(step, run_dir=None, segments=0):
    """A snapshot all of whose numbers follow from its step, with `segments` segments of two unrolls."""
    generator = torch.Generator().manual_seed(step)
    tensors = {
        "learner": {"weight": torch.randn(8, 4, generator=generator), "count": torch.tensor(step)},
        "random": {"state": generator.get_state()},
    }
    entries = [write_segment(run_dir / REPLAY, LAYOUT, 2 * i, unrolls(2, i)) for i in range(step, step + segments)]
    return Snapshot(step, tensors, {"update": step, "scores": [0.1 * step, float("inf")]}, entries)


def assert_is(loaded, expected):
    """Every tensor and every number of a loaded checkpoint is what was written."""
    assert loaded.step == expected.step
    assert loaded.state == expected.state
    assert list(loaded.segments) == list(expected.segments)
    assert loaded.tensors.keys() == expected.tensors.keys()
    for group, tensors in expected.tensors.items():
        assert loaded.tensors[group].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert loaded.tensors[group][name].dtype == tensor.dtype
            assert torch.equal(loaded.tensors[group][name], tensor)


def forked(action):
    """The process number of a child that runs `action` and leaves without any clean-up of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of threads; the child touches none of theirs
        child = os.fork()
    if child == 0:
        status = 1
        try:
            action()
            status = 0
        finally:
            os._exit(status)
    return child


def outcome(child, seconds=30):
    """How a child ended: an exit status, or minus the signal."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError(f"the child did not end within {seconds} s")


def kill_at(number):
    """From now on this process dies just before its call `number` (from 0) of those that touch the disk, half-way through a write."""
    calls = iter(range(number + 1))

    def deadly(call, name):
        def replacement(*arguments, **options):
            if next(calls) == number:
                if name == "write":
                    call(arguments[0], arguments[1][: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return replacement

    for name in ("open", "write", "fsync", "close", "mkdir", "replace", "rename", "unlink", "rmdir"):
        setattr(os, name, deadly(getattr(os, name), name))
