"""A store that is read by a process which its owner did not start: the same bytes, also after the owner's end; never another file."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from laser_rl.errors import ConfigError
from laser_rl.replay.shared import Handle
from laser_rl.replay.store import Replay
from tests.replay.inputs import STACKED, VECTOR, assert_same, numbered

ROOT = Path(__file__).parents[2]
OWNER = """
import json, sys
from laser_rl.replay.store import Replay
from tests.replay.inputs import STACKED, numbered
store = Replay(STACKED, 50 * STACKED.steps, codec=sys.argv[1], budget_bytes=10**7, shared=True)
store.insert(numbered(STACKED, range(30)))
print(json.dumps(store.handle()), flush=True)
for line in sys.stdin:
    store.insert(numbered(STACKED, range(30, 70)))
    print("in", flush=True)
"""


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_a_stranger_reads_what_comes_in_and_what_a_killed_owner_left(codec):
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, codec], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as owner:
        try:
            lent = Handle(*json.loads(owner.stdout.readline()))
            store = Replay.attach(STACKED, lent)
            assert_same(store.export(np.arange(30)), numbered(STACKED, range(30)))
            owner.stdin.write("more\n")
            owner.stdin.flush()
            assert owner.stdout.readline() == "in\n"
            assert (store.first_id, store.next_id) == (20, 70)
        finally:
            owner.send_signal(signal.SIGKILL)
            owner.wait(60)
    assert_same(store.export(np.arange(20, 70)), numbered(STACKED, range(20, 70)))
    with pytest.raises(ConfigError, match=r"expected the memory of a replay at /proc/\d+/fd/\d+, got"):
        Replay.attach(STACKED, lent)


def test_another_file_under_the_same_numbers_is_refused():
    """As in a container, or when the numbers of a dead owner have been given again."""
    store, other = (Replay(VECTOR, 10 * VECTOR.steps, shared=True) for _ in range(2))
    store.insert(numbered(VECTOR, range(3)))
    right = store.handle()
    assert len(Replay.attach(VECTOR, right)) == 3
    opened = len(list(Path("/proc/self/fd").iterdir()))
    for wrong in (
        right._replace(file=other.handle().file),
        right._replace(inode=right.inode + 1),
        right._replace(device=right.device + 1),
    ):
        with pytest.raises(ConfigError, match="found another file"):
            Replay.attach(VECTOR, wrong)
    assert len(list(Path("/proc/self/fd").iterdir())) == opened
