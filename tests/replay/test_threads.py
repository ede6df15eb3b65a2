"""Writers and readers at once: no mixed row, first in first out, uniform, and nobody waits for the interpreter lock."""

import sys
import threading
import time
from itertools import chain

import numpy as np
import pytest
from scipy import stats

from laser_rl.replay import encoded_unrolls
from laser_rl.replay.memory_layout import allocate
from laser_rl.replay.store import Replay
from laser_rl.types import UnrollLayout, empty_unrolls

LAYOUT = UnrollLayout(4, 2, (1, 64, 64), "uint8", (), "int64", 3)  # large enough to be caught half written
CAPACITY, WRITERS, READERS = 16, 4, 4


def marked(member, number):
    """Every field of the unroll tells who wrote it and when; the frames compress to different sizes."""
    unrolls, mark = empty_unrolls(LAYOUT, 1), number * WRITERS + member
    unrolls.observation[...] = mark % 251
    unrolls.observation[0, :, 0, :, : number % 17] = np.arange(number % 17)
    unrolls.is_first[...] = False
    for field in (unrolls.last_action, unrolls.action, unrolls.seed, unrolls.episode, unrolls.version):
        field[...] = mark
    for field in (unrolls.last_reward, unrolls.reward, unrolls.behaviour):
        field[...] = mark % 10_007
    unrolls.member[...] = member
    return unrolls


def assert_unmixed(batch):
    mark = batch.version
    for field in (batch.last_action, batch.action, batch.seed, batch.episode):
        assert (field == mark).all()
    for field in (batch.last_reward, batch.reward, batch.behaviour.movedim(-1, 0)):
        assert (field == mark % 10_007).all()
    assert (batch.member == mark % WRITERS).all()
    assert (batch.observation[..., 17:] == (mark % 251)[:, None, None, None]).all()
    pixel, stripe = batch.observation[..., :17].movedim(1, -1), (mark // WRITERS) % 17
    for column in range(17):
        expected = np.where(column < stripe, column, mark % 251)
        assert (pixel[..., column, :].numpy() == expected).all()


def write(store, member, count, ids, held, failures):
    try:
        for number in range(count):
            ids[member].extend(store.insert(marked(member, number)).tolist())
            held[member] = max(held[member], len(store))
    except BaseException as error:
        failures.append(error)


def read(store, seed, stop, ages, failures):
    random, batch = np.random.default_rng(seed), allocate(LAYOUT, 16)
    try:
        while not stop.is_set():
            before = store.first_id
            ids = store.sample_into(16, random, batch, 0)
            assert (ids >= before).all()
            assert_unmixed(batch)
            ages.append(len(ids))
    except BaseException as error:
        failures.append(error)


def drawn_from(store, count, seed):
    """Ids that a store draws, with what they are gathered into."""
    batch, random = allocate(store.layout, 64), np.random.default_rng(seed)
    return np.concatenate([store.sample_into(64, random, batch, 0) for _ in range(count // 64)])


def race(codec, count):
    store = Replay(LAYOUT, CAPACITY * LAYOUT.steps, codec=codec, budget_bytes=10**6)
    store.insert(marked(0, 0))
    ids, failures, batches, stop = [[] for _ in range(WRITERS)], [], [], threading.Event()
    held = [0] * WRITERS
    writers = [threading.Thread(target=write, args=(store, m, count, ids, held, failures)) for m in range(WRITERS)]
    readers = [threading.Thread(target=read, args=(store, s, stop, batches, failures)) for s in range(READERS)]
    for thread in (*writers, *readers):
        thread.start()
    for thread in writers:
        thread.join(timeout=120)
    stop.set()
    for thread in readers:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in (*writers, *readers))
    if failures:
        raise failures[0]
    assert batches  # on a busy machine not of every reader
    assert max(held) == CAPACITY
    return store, ids, sum(batches)


def check_race(codec, count):
    store, ids, read_rows = race(codec, count)
    total = WRITERS * count + 1
    assert sorted(chain.from_iterable(ids)) == list(range(1, total))  # every id given once, none left out
    assert all(own == sorted(own) for own in ids)
    assert (store.next_id, store.first_id) == (total, total - CAPACITY)
    held = store.export(np.arange(store.first_id, store.next_id))
    written = {i: number * WRITERS + member for member in range(WRITERS) for number, i in enumerate(ids[member])}
    assert held.version.tolist() == [written[i] for i in range(store.first_id, store.next_id)]
    counts = {m: sum(i >= store.first_id for i in ids[m]) / CAPACITY for m in range(WRITERS)}
    assert store.composition() == {m: share for m, share in counts.items() if share}
    drawn = drawn_from(store, 64 * 200, seed=3) - store.first_id
    uniform = stats.chisquare(np.bincount(drawn, minlength=CAPACITY)).pvalue
    assert uniform > 0.001
    return f"{total:,} inserts, {read_rows:,} unrolls read, 0 mixed, at most {CAPACITY} of {CAPACITY} held, p = {uniform:.2f}"


@pytest.mark.fault(12)
@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_four_writers_and_four_readers(codec):
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads change places between almost any two instructions
    try:
        check_race(codec, 150)
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.slow
@pytest.mark.fault(12)
@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_four_writers_and_four_readers_for_longer(codec, figure):
    figure(f"threads, {codec}: {check_race(codec, 5000)}")


def progress_during(call):
    """How often another thread gets a turn during one call, if it gets none unless the call gives up the interpreter lock."""
    turns, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            turns[0] += 1
            time.sleep(0)

    thread, interval = threading.Thread(target=count, daemon=True), sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    try:
        thread.start()
        before = turns[0]
        call()
        return turns[0] - before
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join(timeout=10)


def test_other_threads_go_on_while_frames_are_compressed_and_decompressed():
    noise = np.random.default_rng(0).integers(0, 16, (64, 21 * 84 * 84)).astype(np.uint8)
    out, blocks = np.zeros_like(noise), b"".join(encoded_unrolls.compress(noise))
    assert progress_during(lambda: [encoded_unrolls.compress(noise) for _ in range(3)]) > 0
    assert progress_during(lambda: [encoded_unrolls.decompress(blocks, out) for _ in range(10)]) > 0
    assert np.array_equal(out, noise)


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_other_threads_go_on_while_a_batch_is_gathered(codec):
    layout = UnrollLayout(20, 3, (1, 84, 84), "uint8", (), "int64", 18)
    store, batch = Replay(layout, 20 * 32, codec=codec, budget_bytes=10**8), allocate(layout, 32)
    ids = store.insert(empty_unrolls(layout, 32))
    assert progress_during(lambda: [store.gather(ids, batch, 0) for _ in range(30)]) > 0


def test_the_measure_itself_sees_that_python_gives_no_turn():
    assert progress_during(lambda: sum(range(10**6))) <= 1
