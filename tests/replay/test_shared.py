"""One store in several processes: the same bytes, no mixed row, first in first out, and a killed writer harms nobody."""

import contextlib
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from functools import lru_cache
from itertools import chain, cycle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from laser_rl.replay import shared
from laser_rl.replay.memory_estimate import estimate
from laser_rl.replay.memory_layout import Packed, allocate, pack
from laser_rl.replay.shared import HOLDER, UNSETTLED, Handle
from laser_rl.replay.store import Replay
from tests.replay.inputs import LAYOUTS, PICTURE, STACKED, VECTOR, assert_same, compressed_bytes, numbered, take
from tests.replay.test_threads import CAPACITY, LAYOUT, READERS, WRITERS, assert_unmixed, drawn_from, marked

PATIENCE_S = 60.0
ROOT = Path(__file__).parents[2]
codecs = pytest.mark.parametrize("codec", ["raw", "zstd"])


def shared_store(codec, **options):
    return Replay(LAYOUT, CAPACITY * LAYOUT.steps, codec=codec, budget_bytes=10**6, shared=True, **options)


def everything(store):
    return np.arange(store.first_id, store.next_id)


# Children. One process imports once and forks whoever is asked for: each attaches by its own means.


class Child:
    def __init__(self, nursery, store, role, *arguments):
        ours, theirs = socket.socketpair()
        request = json.dumps([role, store.handle(), arguments]).encode()
        socket.send_fds(nursery, [request], [theirs.fileno()])
        theirs.close()
        ours.settimeout(PATIENCE_S)
        self.socket, self.pid = ours, int(ours.recv(16))

    def stop(self):
        self.socket.send(b".")

    def report(self):
        with self.socket, self.socket.makefile() as answers:
            text = answers.read()
        assert text, f"child {self.pid} ended without a report"
        return json.loads(text)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        self.socket.close()


def serve(number):
    """In the nursery: fork a child for every request, until the test process is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    requests = socket.socket(fileno=number)
    while True:
        message, descriptors, *_ = socket.recv_fds(requests, 4096, 1)
        if not message:
            return
        (answers,), (role, handle, arguments) = descriptors, json.loads(message)
        if not os.fork():
            requests.close()
            _live(socket.socket(fileno=answers), role, Handle(*handle), arguments)
        os.close(answers)


def _live(answers, role, handle, arguments):
    def stopped():  # or the test is gone: a child that outlived it would write for ever
        return bool(select.select([answers], [], [], 0)[0]) and answers.recv(1) in {b".", b""}

    answers.send(f"{os.getpid():<16}".encode())
    with contextlib.suppress(BrokenPipeError):
        layout = getattr(ROLES[role], "layout", LAYOUT)
        report = ROLES[role](Replay.attach(layout, handle), stopped, *arguments)
        answers.sendall(json.dumps(report).encode())
    os._exit(0)  # with an error it ends by a traceback and without a report


@pytest.fixture(scope="module")
def nursery(request):
    ours, theirs = socket.socketpair()
    program = f"from {request.module.__name__} import serve; serve({theirs.fileno()})"  # it may have roles of its own
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        pass_fds=[theirs.fileno()],
        cwd=ROOT,
        env=environment,
    )
    theirs.close()
    yield ours
    ours.close()
    process.kill()
    process.wait(PATIENCE_S)


def write(store, stopped, member, count):
    ids, held = [], 0
    for number in range(count):
        ids.extend(store.insert(marked(member, number)).tolist())
        held = max(held, len(store))
    return ids, held


def read(store, stopped, seed):
    """Until it is stopped; the number of batches and the longest wait for one."""
    random, batch, batches, longest_s = np.random.default_rng(seed), allocate(LAYOUT, 16), 0, 0.0
    while not stopped():
        before, begin = store.first_id, time.monotonic()
        ids = store.sample_into(16, random, batch, 0)
        longest_s = max(longest_s, time.monotonic() - begin)
        assert (ids >= before).all()
        assert_unmixed(batch)
        batches += 1
    return batches, longest_s


def write_for_ever(store, stopped, member):
    parts = [pack(LAYOUT, marked(member, number)) for number in range(60)]
    blocks = [Packed(*map(np.concatenate, zip(*parts[i : i + 12], strict=True))) for i in range(0, 60, 12)]
    for block in cycle(blocks):
        if stopped():
            return
        store.insert_packed(block)


def hold(store, stopped):
    with store.lock:
        while not stopped():
            time.sleep(0.01)


def hold_and_leave_heirs(store, stopped, file):
    """Two processes that inherit what we have open, one by fork alone; each goes on living after us."""
    sleeper = subprocess.Popen(["sleep", "60"], pass_fds=[store.handle().file])
    with store.lock:
        child = os.fork()
        if not child:
            Path(file).write_text(json.dumps([os.getpid(), sleeper.pid, store.lock._try()]))
        time.sleep(PATIENCE_S)


ROLES = {role.__name__: role for role in (write, read, write_for_ever, hold, hold_and_leave_heirs)}


# The same store


@codecs
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.observation_shape}x{layout.stack}")
def test_attached_stores_give_the_same_bytes(layout, codec):
    store = Replay(layout, 100 * layout.steps, codec=codec, budget_bytes=10**7, shared=True)
    other = Replay.attach(layout, Handle(*json.loads(json.dumps(store.handle()))))
    unrolls = numbered(layout, range(30))
    ids = store.insert(unrolls)
    assert_same(other.export(ids), unrolls)
    left, right = allocate(layout, 30), allocate(layout, 30)
    store.sample_into(30, np.random.default_rng(1), left, 0)
    other.sample_into(30, np.random.default_rng(1), right, 0)
    assert_same(left, right)
    assert np.array_equal(other.fields(ids, ["member"])["member"], unrolls.member)
    assert np.array_equal(other.fields(ids, ["version"])["version"], unrolls.version)


@codecs
@given(
    start=st.sampled_from([0, 3, 1000]),
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=15),
    noise=st.lists(st.integers(0, 6), min_size=9, max_size=9),
    budget=st.integers(3_100, 20_000),
)
def test_two_that_take_turns_do_what_one_private_store_does(codec, start, sizes, noise, budget):
    options = {"codec": codec, "budget_bytes": budget}
    private = Replay(PICTURE, 7 * PICTURE.steps, **options)
    first = Replay(PICTURE, 7 * PICTURE.steps, **options, shared=True)
    second = Replay.attach(PICTURE, first.handle())
    private.begin_at(start)
    second.begin_at(start)
    for turn, size in enumerate(sizes):
        unrolls = numbered(PICTURE, noise[:size])
        assert np.array_equal((first, second)[turn % 2].insert(unrolls), private.insert(unrolls))
        for store in (first, second):
            for name in ("first_id", "next_id", "steps", "nbytes"):
                assert getattr(store, name) == getattr(private, name), name
            assert compressed_bytes(store) == compressed_bytes(private)
            assert store.composition() == private.composition()
            assert_same(store.export(everything(store)), private.export(everything(private)))
    with pytest.raises(ValueError, match="empty replay") if len(first) else contextlib.nullcontext():
        first.begin_at(0)


STRANGER = """
import json, sys
import numpy as np
from laser_rl.replay.shared import Handle
from laser_rl.replay.store import Replay
from tests.replay.inputs import STACKED, numbered
from tests.replay.test_shared import digest_of, own_memory

expected = numbered(STACKED, range(1000, 1003))
for text in sys.argv[1:]:
    before = own_memory()
    store = Replay.attach(STACKED, Handle(*json.loads(text)))
    taken, digest, ids = own_memory() - before, digest_of(store), store.insert(expected).tolist()
    print(json.dumps([digest, taken, ids, len(store), store.nbytes]))
"""


def own_memory():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def digest_of(store):
    digest = hashlib.sha256()
    for i in everything(store):
        for field in store.export(np.array([i])):
            digest.update(field.tobytes())
    return digest.hexdigest()


def test_a_process_of_its_own_attaches_without_copying():
    arguments = {"budget_bytes": 10**8, "shared": True}
    stores = [Replay(STACKED, 20_000 * STACKED.steps, codec=codec, **arguments) for codec in ("raw", "zstd")]
    for store in stores:
        store.insert(numbered(STACKED, range(100)))
    digests = [digest_of(store) for store in stores]
    answer = subprocess.run(
        [sys.executable, "-c", STRANGER, *(json.dumps(store.handle()) for store in stores)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        timeout=PATIENCE_S,
    )
    for store, expected, line in zip(stores, digests, answer.stdout.splitlines(), strict=True):
        digest, taken, ids, length, nbytes = json.loads(line)
        assert digest == expected
        assert nbytes == store.nbytes > 9 * 10**6
        assert taken < 2 * 10**6
        assert (ids, length) == ([100, 101, 102], 103)
        assert_same(store.export(np.array(ids)), numbered(STACKED, range(1000, 1003)))


def test_memory_is_that_of_what_was_held_and_has_no_name():
    store = Replay(PICTURE, 10_000 * PICTURE.steps, codec="zstd", budget_bytes=10**10, shared=True)
    store.insert(numbered(PICTURE, range(35)))
    status = os.fstat(store.handle().file)
    assert status.st_size > 5 * store.nbytes
    assert store.nbytes <= status.st_blocks * 512 < store.nbytes + 100_000
    assert str(Path(f"/proc/self/fd/{store.handle().file}").readlink()) == "/memfd:laser-replay (deleted)"
    descriptor = store.handle().file
    del store
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.parametrize("budget", [None, 5_000, 50_000])
def test_noise_never_needs_more_room_than_there_is(budget):
    store = Replay(PICTURE, 200 * PICTURE.steps, codec="zstd", budget_bytes=budget, shared=True)
    needed, random = estimate(PICTURE, 200 * PICTURE.steps, "zstd", budget), np.random.default_rng(0)
    for size in range(60):
        unrolls = numbered(PICTURE, range(size % 7))
        unrolls.observation[...] = random.integers(0, 256, unrolls.observation.shape)
        store.insert(unrolls)
    assert store.nbytes <= needed.total


# The lock


def test_two_stores_of_one_process_exclude_each_other(monkeypatch):
    monkeypatch.setattr(shared, "LOCK_S", 0.05)
    first = Replay(VECTOR, 100, shared=True)
    second = Replay.attach(VECTOR, first.handle())
    with first.lock:
        assert len(second) == 0  # asks nobody
        for store in (first, second):
            with pytest.raises(TimeoutError, match=r"waited 0\.05 s for a thread of this process"):
                store.insert(numbered(VECTOR, [1]))
    second.insert(numbered(VECTOR, [1]))
    assert first.next_id == 1


def test_who_waits_says_for_whom_and_a_killed_holder_holds_nothing(monkeypatch, nursery):
    monkeypatch.setattr(shared, "LOCK_S", 0.2)
    store = shared_store("raw")
    child = Child(nursery, store, "hold")
    wait_until(lambda: store._room.words[HOLDER] == child.pid)
    with pytest.raises(TimeoutError, match=f"for process {child.pid};"):
        store.insert(marked(0, 0))
    child.kill()
    wait_until(lambda: not Path(f"/proc/{child.pid}").exists())
    assert store.insert(marked(0, 0)).tolist() == [0]


def test_heirs_of_a_killed_holder_do_not_keep_the_lock(nursery, tmp_path):
    store, file = shared_store("raw"), tmp_path / "heirs"
    child = Child(nursery, store, "hold_and_leave_heirs", str(file))
    wait_until(lambda: file.exists() and file.read_text().endswith("]"))
    *heirs, got_it_too = json.loads(file.read_text())
    try:
        child.kill()
        begin = time.monotonic()
        store.insert(marked(0, 0))
        assert time.monotonic() - begin < 2
        assert all(Path(f"/proc/{heir}").exists() for heir in heirs)
        assert not got_it_too
    finally:
        for heir in heirs:
            os.kill(heir, signal.SIGKILL)


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


# Writers that are cut off


class CutOffError(BaseException):
    pass


def cut_off_after(instructions, call):
    """End a call after so many instructions of Python in the ring; False if it came to its end before."""
    left = instructions

    def trace(frame, event, _):
        nonlocal left
        if not frame.f_code.co_qualname.startswith("_Ring."):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                raise CutOffError
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except CutOffError:
        return True
    finally:
        sys.settrace(before)
    return False


@lru_cache
def all_unrolls():
    return numbered(PICTURE, [6 * number + 5 if number % 3 else number for number in range(40)])


def unrolls_of(numbers):
    return take(all_unrolls(), np.asarray(numbers, np.int64))


@lru_cache
def packed(first, last):
    return pack(PICTURE, unrolls_of(range(first, last)))


@codecs
def test_an_insert_cut_off_after_any_instruction_leaves_whole_unrolls_only(codec):
    store = Replay(PICTURE, 8 * PICTURE.steps, codec=codec, budget_bytes=14_000, shared=True)
    other, needed = Replay.attach(PICTURE, store.handle()), estimate(PICTURE, 8 * PICTURE.steps, codec, 14_000).total
    model, instructions, whole, published = [], 0, 0, set()  # unroll i holds the number model[i]
    while whole < 10:
        begin, first = len(model), instructions % 31
        whole += not cut_off_after(instructions, lambda at=first: store.insert_packed(packed(at, at + 4)))
        published.add(store.next_id - begin)
        model.extend(range(first, first + store.next_id - begin))
        for count in (0, instructions % 5):  # as it was left, and as it goes on
            if count:
                other.insert_packed(packed(first, first + count))
            model.extend(range(first, first + count))
            held = everything(other)
            assert other.next_id == len(model)
            assert_same(other.export(held), unrolls_of([model[i] for i in held]))
        blocks = other._room.length[held % 8].sum() if codec == "zstd" else 0
        assert compressed_bytes(other) == blocks <= 14_000
        assert store.nbytes <= needed
        instructions += 1
    assert instructions > 100
    assert published >= ({0, 4} if codec == "raw" else {0, 1, 2, 3, 4})


@pytest.mark.parametrize(("before", "after"), [(5, 900), (900, 5)])
def test_a_load_cut_off_after_any_instruction_leaves_an_empty_store(before, after):
    instructions, cut = 0, True
    while cut:
        store = Replay(PICTURE, 8 * PICTURE.steps, codec="zstd", shared=True)
        store.begin_at(before)
        cut = cut_off_after(instructions, lambda store=store: store.begin_at(after))
        assert len(store) == 0
        with pytest.raises(ValueError, match="empty"):
            store.sample_into(1, np.random.default_rng(0), allocate(store.layout, 1), 0)
        ids = store.insert(unrolls_of([1, 2]))
        assert ids.tolist() in ([after, after + 1], [before, before + 1])
        assert_same(store.export(ids), unrolls_of([1, 2]))
        instructions += 1
    assert ids.tolist() == [after, after + 1]


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def kill_in_the_middle(store, child):
    """Stop it wherever it is: if that is between two writes of an insert, kill it, else let it go on."""
    os.kill(child.pid, signal.SIGSTOP)
    wait_until(lambda: state_of(child.pid) == "T")
    if store._room.words[HOLDER] == child.pid and store._room.words[UNSETTLED]:
        child.kill()
        return True
    os.kill(child.pid, signal.SIGCONT)
    return False


def check_kills(nursery, codec, kills):
    store, batch = shared_store(codec), allocate(LAYOUT, CAPACITY)
    store.insert(marked(0, 0))
    readers = [Child(nursery, store, "read", seed) for seed in range(2)]
    writers = [Child(nursery, store, "write_for_ever", member) for member in range(3)]
    random, longest_s = np.random.default_rng(1), 0.0
    while kills:
        time.sleep(random.uniform(0, 0.005))
        victim = int(random.integers(3))
        if not kill_in_the_middle(store, writers[victim]):
            continue
        begin = time.monotonic()
        ids = store.insert(marked(3, kills))
        longest_s = max(longest_s, time.monotonic() - begin)
        with contextlib.suppress(KeyError):  # they have left already
            assert store.fields(ids, ["version"])["version"].tolist() == [kills * WRITERS + 3]
        store.sample_into(CAPACITY, np.random.default_rng(kills), batch, 0)
        assert_unmixed(batch)
        writers[victim] = Child(nursery, store, "write_for_ever", victim)
        kills -= 1
    for reader in readers:
        reader.stop()
    for batches, waited_s in [reader.report() for reader in readers]:
        assert batches > 0
        longest_s = max(longest_s, waited_s)
    for writer in writers:
        writer.kill()
    assert longest_s < 2
    for number in range(CAPACITY):  # those killed last have made room for what never came
        store.insert(marked(number % WRITERS, number))
    store.gather(everything(store), batch, 0)
    assert_unmixed(batch)
    assert batch.version.tolist() == [number * WRITERS + number % WRITERS for number in range(CAPACITY)]
    assert compressed_bytes(store) == store._room.length.sum()
    return longest_s


@pytest.mark.fault(22)
@codecs
def test_writers_killed_in_the_middle_of_inserts_harm_nobody(nursery, codec):
    check_kills(nursery, codec, 16)


# Four writers and four readers, each a process


def check_race(nursery, codec, count):
    store = shared_store(codec)
    store.insert(marked(0, 0))
    readers = [Child(nursery, store, "read", seed) for seed in range(READERS)]
    writers = [Child(nursery, store, "write", member, count) for member in range(WRITERS)]
    ids, held = zip(*(writer.report() for writer in writers), strict=True)
    assert max(held) == CAPACITY
    for reader in readers:
        reader.stop()
    batches = [reader.report()[0] for reader in readers]
    assert all(batches)
    total = WRITERS * count + 1
    assert sorted(chain.from_iterable(ids)) == list(range(1, total))  # every id given once, none left out
    assert all(own == sorted(own) for own in ids)
    assert (store.next_id, store.first_id) == (total, total - CAPACITY)
    written = {i: number * WRITERS + member for member in range(WRITERS) for number, i in enumerate(ids[member])}
    assert store.fields(everything(store), ["version"])["version"].tolist() == [
        written[i] for i in everything(store).tolist()
    ]
    counts = {m: sum(i >= store.first_id for i in ids[m]) / CAPACITY for m in range(WRITERS)}
    assert store.composition() == {m: share for m, share in counts.items() if share}
    other, batch = Replay.attach(LAYOUT, store.handle()), allocate(LAYOUT, 1280)
    drawn = other.sample_into(1280, np.random.default_rng(3), batch, 0)
    assert batch.version.tolist() == [written[i] for i in drawn.tolist()]
    assert_unmixed(batch)
    drawn = drawn_from(other, 64 * 200, seed=4) - other.first_id
    uniform = stats.chisquare(np.bincount(drawn, minlength=CAPACITY)).pvalue
    assert uniform > 0.001
    read_rows = 16 * sum(batches)
    return f"{total:,} inserts, {read_rows:,} unrolls read, 0 mixed, at most {max(held)} of {CAPACITY} held, p = {uniform:.2f}"


@pytest.mark.fault(12)
@codecs
def test_four_writers_and_four_readers_in_processes(nursery, codec):
    check_race(nursery, codec, 150)


@pytest.mark.slow
@pytest.mark.fault(12)
@codecs
def test_four_writers_and_four_readers_in_processes_for_longer(nursery, codec, figure):
    figure(f"processes, {codec}: {check_race(nursery, codec, 5000)}")


@pytest.mark.slow
@pytest.mark.fault(22)
@codecs
def test_three_hundred_writers_killed_in_the_middle_of_inserts(nursery, codec, figure):
    longest_s = check_kills(nursery, codec, 300)
    figure(f"300 kills within inserts ({codec}): nothing torn, nobody waited more than {1000 * longest_s:.0f} ms")
