"""Batches copied into memory that stays: the bytes of a fresh upload, whatever an earlier batch left."""

import pytest
import torch

from laser_rl.replay.memory_layout import DeviceBatch, allocate
from laser_rl.replay.store import Replay
from laser_rl.types import UnrollLayout
from tests.replay.inputs import LAYOUTS, assert_column, assert_same, numbered

ODD = UnrollLayout(6, 3, (1, 9, 9), "uint8", (), "int64", 5)  # no frame begins at a multiple of eight bytes
WIDE = UnrollLayout(6, 1, (2, 8, 8), "uint8", (), "int64", 5)


def gathered(layout, numbers, *, stacked, pin=False):
    unrolls = numbered(layout, numbers, first_share=0.4)
    store = Replay(layout, 100 * layout.steps)
    batch = allocate(layout, len(numbers), stacked=stacked, pin=pin)
    store.gather(store.insert(unrolls), batch, 0)
    return batch, unrolls


@pytest.mark.parametrize("layout", [*LAYOUTS, ODD, WIDE])
@pytest.mark.parametrize("stacked", [False, True])
def test_memory_that_stays_holds_each_batch_in_turn(layout, stacked):
    first, _ = gathered(layout, range(7), stacked=stacked)
    there = DeviceBatch(layout, first, "cpu")
    addresses = [field.data_ptr() for field in there.batch]
    for numbers in (range(7), range(20, 27)):
        host, unrolls = gathered(layout, numbers, stacked=stacked)
        there.copy_from(host)
        assert [field.data_ptr() for field in there.batch] == addresses
        for column in range(7):
            assert_column(layout, there.batch, column, unrolls, column)
        assert_same(there.batch, DeviceBatch(layout, host, "cpu").copy_from(host))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("layout", [*LAYOUTS, ODD, WIDE])
def test_on_a_gpu_it_is_what_the_host_stacks(layout):
    host, _ = gathered(layout, range(7), stacked=False, pin=True)
    expected, _ = gathered(layout, range(7), stacked=True)
    there = DeviceBatch(layout, host, "cuda")
    there.copy_from(host)
    assert_same(type(expected)(*(field.cpu() for field in there.batch)), expected)
