"""The parts of the local runtime: who may write when, how far a learner runs ahead, and where its time goes."""

import itertools
import threading
from collections import deque
from contextlib import closing, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from laser_rl import checkpoint
from laser_rl.agent.actor import Actor
from laser_rl.agent.learner import Learner
from laser_rl.gpu_streams import on, own_stream
from laser_rl.metrics.log import read
from laser_rl.replay.memory_layout import DeviceBatch, allocate
from laser_rl.replay.mixer import Mixer
from laser_rl.replay.prefetcher import Prefetcher
from laser_rl.training import member_group as feeding
from laser_rl.training.directory import RunDirectory
from laser_rl.training.member_group import PinnedBatch, ThreadMailbox, _Copy
from laser_rl.training.threads import Busy
from tests.replay.inputs import STACKED, numbered
from tests.training.small import finish, small

CPU = torch.device("cpu")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_an_actor_takes_the_newest_that_is_there_and_waits_for_none():
    mailbox, mine, there = ThreadMailbox(torch.zeros(2), 0), torch.full((2,), 9.0), set()

    def copies(version):
        handover = Told([])
        handover.written = lambda: copy.version in there
        copy = _Copy(torch.empty(2), version, handover)
        return copy

    mailbox._copies = deque(copies(-1) for _ in range(4))
    for version in range(1, 6):
        mailbox.publish(torch.full((2,), float(version)), version)
    assert mailbox.collect(mine, 0) == 0  # none has arrived
    assert mine.tolist() == [9.0] * 2
    there |= {1, 2, 3}
    assert mailbox.collect(mine, 0) == 3
    assert mine.tolist() == [3.0] * 2
    assert mailbox.collect(mine, 3) == 3
    there |= {4, 5}
    assert mailbox.collect(mine, 3) == 5
    assert mine.tolist() == [5.0] * 2


class Told:
    """A handover that takes down what it is told."""

    def __init__(self, said):
        self.said = said

    def _say(self, what):
        said = self.said

        class Around(nullcontext):
            def __enter__(self):
                said.append(f"{what} begins")

            def __exit__(self, *_):
                said.append(f"{what} ends")

        return Around()

    def write(self):
        return self._say("write")

    def read(self):
        return self._say("read")

    def await_written(self, who, whom):
        self.said.append("host waits for the upload before")


def test_a_crate_is_filled_after_its_upload_and_uploaded_on_the_stream_given(monkeypatch):
    said, host = [], allocate(STACKED, 4, stacked=False)
    monkeypatch.setattr(feeding, "on", lambda stream: Told(said)._say(f"stream {stream}"))
    monkeypatch.setattr(DeviceBatch, "record_stream", lambda self, stream: None)
    crate = PinnedBatch(STACKED, host, torch.device("cpu"), "three")
    crate.handover = Told(said)

    def fill(batch):
        said.append("fill")
        batch.reward.fill_(7.0)
        batch.observation.fill_(5)

    crate.fill(fill)
    with crate.read() as batch:
        assert batch.observation.shape[2] == STACKED.stack
        assert (batch.reward == 7.0).all()
        assert (batch.observation == 5).all()
        said.append("learn")
    assert said == [
        "host waits for the upload before",
        "fill",
        "stream three begins",
        "write begins",
        "write ends",
        "stream three ends",
        "read begins",
        "learn",
        "read ends",
    ]


class Mark:
    """An event on a card that has come to `Mark.now`."""

    now, made, asked = 0, 0, 0

    def __init__(self):
        Mark.made += 10
        self.at = Mark.made

    def query(self):
        Mark.asked += 1
        if Mark.asked > 1000:  # nobody else would ever move the card
            Mark.now, Mark.asked = self.at, 0
        return self.at <= Mark.now

    def elapsed_time(self, end):
        assert end.at <= Mark.now, "read before it is over"
        return float(end.at - self.at)


@pytest.fixture
def card(monkeypatch):
    Mark.now = Mark.made = Mark.asked = 0
    monkeypatch.setattr("laser_rl.training.threads.marked", lambda device, timing: Mark())
    return Mark


def test_a_learner_is_at_most_two_updates_ahead_of_its_card(card):
    busy = Busy(torch.device("cuda"))
    ends = []
    for _ in range(6):
        with busy.learning():
            if len(ends) > 1:  # all but the last one have been waited for, and no more
                assert ends[-2] <= card.now < ends[-1]
        ends.append(card.made)


def test_the_busy_share_counts_updates_that_are_over_and_never_waits(card, monkeypatch):
    times = iter([0.0, 0.1, 0.2])
    monkeypatch.setattr("laser_rl.training.threads.time", SimpleNamespace(monotonic=lambda: next(times)))
    busy = Busy(torch.device("cuda"))
    for _ in range(2):
        with busy.learning():
            pass
    card.now = 20  # the end of the first update, which took 10 ms
    assert busy.report() == pytest.approx({"learner_busy": 0.1, "learner_wait": 0.0})
    assert card.asked == 2
    card.now = 40
    assert busy.report()["learner_busy"] == pytest.approx(0.1)


def test_rows_say_how_busy_the_learner_is(tmp_path):
    # On a CPU: a card is busy with one update while the learner's thread waits for the next batch, and the two overlap.
    _, training = finish(small(runtime="local", device="cpu"), tmp_path)
    rows = [row for row in read(tmp_path) if row["kind"] == "train"]
    assert rows
    for row in rows:
        assert 0 < row["learner_busy"] <= 1
        assert 0 <= row["learner_wait"] <= 1
        assert row["learner_busy"] + row["learner_wait"] <= 1.001
    assert len(training.extra) == 1


def test_games_in_two_groups_fill_whole_streams():
    pytest.importorskip("ale_py")
    settings = {"slots": 4, "frame_stack": 2, "hidden": (4,), "torso": "mlp", "batch_unrolls": 4, "fraction": 0.5}
    settings |= {"most_frames": 160, "environment.atari.threads": 1}
    config = small("ALE/Pong-v5", device="cpu", runtime="local", steps=240, **settings)
    result, training = finish(config)
    assert result.updates > 0
    replay = training.member.replay
    unrolls = replay.export(np.arange(replay.first_id, replay.next_id))
    for slot in range(4):
        own = unrolls.slot == slot
        newest = unrolls.observation[own]
        # Each unroll begins with the rows that its slot's last one ended with.
        assert own.sum() > 2
        for before, after in itertools.pairwise(newest):
            assert (after[:2] == before[-2:]).all()


@pytest.mark.slow
def test_games_go_on_from_a_checkpoint_that_was_taken_while_rows_were_owed(tmp_path):
    pytest.importorskip("ale_py")
    settings = {"slots": 4, "hidden": (4,), "torso": "mlp", "batch_unrolls": 4, "fraction": 0.5}
    settings |= {"most_frames": 160, "environment.atari.threads": 1, "checkpoint_every_steps": 60}
    config = small("ALE/Pong-v5", device="cpu", runtime="local", steps=200, **settings)

    class Killed(Exception):
        pass

    def kill(progress):
        if progress.kind == "evaluation":
            raise Killed

    with pytest.raises(Killed):
        finish(config, tmp_path, callbacks=[kill])
    saved = checkpoint.latest(tmp_path)
    assert len(saved.tensors["actor-00"]["ready"]) == 2  # one group's
    result, training = finish(config, tmp_path)
    assert training.steps >= 200
    assert result.updates > 0


def checksum(batch):
    return tuple(float(field.double().sum()) for field in batch)


@needs_gpu
@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_on_a_gpu_every_batch_is_the_one_that_was_filled(monkeypatch, runtime):
    filled, learned, fill, update = [], [], Mixer.fill, Learner.update

    def noting_fill(self, batch, first_column=0):
        fill(self, batch, first_column)
        filled.append(checksum(batch._replace(observation=batch.observation[-1:])))

    def noting_update(self, batch, *, progress):
        assert batch.observation.is_cuda
        newest = batch.observation[-1:, :, -1:]
        learned.append(torch.stack([field.double().sum() for field in batch._replace(observation=newest)]))
        return update(self, batch, progress=progress)

    monkeypatch.setattr(Mixer, "fill", noting_fill)
    monkeypatch.setattr(Learner, "update", noting_update)
    config = small("laser/Catch", runtime=runtime, options={"image": True}, frame_stack=3, device="cuda", steps=3000)
    result, _ = finish(config)
    assert result.updates == len(learned) > 100
    for there, here in zip(learned, filled, strict=False):
        assert tuple(there.tolist()) == pytest.approx(here)
    assert torch.isfinite(result.member.learner.flat.value).all()


@needs_gpu
def test_on_a_gpu_batches_come_in_order_while_the_card_is_behind():
    device, numbers = torch.device("cuda"), iter(range(10_000))
    stream, busy = torch.cuda.Stream(), Busy(device)
    heavy, seen = torch.randn(4096, 4096, device=device), []

    def fill(batch):
        unrolls = numbered(STACKED, [next(numbers)])
        batch.version.fill_(int(unrolls.version[0]))
        batch.observation.fill_(int(unrolls.version[0]) % 251)

    crates = []
    for _ in range(3):
        host = allocate(STACKED, 64, pin=True, stacked=False)
        crates.append(PinnedBatch(STACKED, host, device, stream))
    with closing(Prefetcher(lambda crate: crate.fill(fill), crates)) as ahead:
        for _ in range(60):
            crate = ahead.next(30.0)
            with crate.read() as batch, busy.learning():
                for _ in range(5):
                    heavy = (heavy @ heavy).clamp(-1, 1)
                # The newest frame is never cut; it and the version must be of the same batch all along.
                frame = batch.observation[:, :, -1].flatten(2).double()
                seen.append(torch.stack([batch.version.double().mean(), frame.min(), frame.max()]))
            ahead.give_back(crate)
    rows = torch.stack(seen).tolist()
    assert [row[0] for row in rows] == list(map(float, range(60)))
    assert all(row[1] == row[2] == row[0] % 251 for row in rows)
    assert 0 < busy.report()["learner_busy"] <= 1.01


@needs_gpu
def test_on_a_gpu_parameters_are_never_mixed_between_streams():
    device = torch.device("cuda")
    parameters, mine = torch.zeros(5_000_000, device=device), torch.zeros(5_000_000, device=device)
    mailbox, found, done = ThreadMailbox(parameters, 0), [], threading.Event()
    stream = torch.cuda.Stream(priority=-1)
    stream.wait_stream(torch.cuda.current_stream())

    def actor():
        version = 0
        with torch.cuda.stream(stream):
            while not done.is_set():
                version = mailbox.collect(mine, version)
                found.append((version, torch.stack([mine.min(), mine.max()])))
                if len(found) % 20 == 0:
                    stream.synchronize()

    thread = threading.Thread(target=actor)
    thread.start()
    for version in range(1, 300):
        parameters.fill_(version)
        mailbox.publish(parameters, version)
    done.set()
    thread.join(60.0)
    torch.cuda.synchronize()
    assert len(found) > 1
    assert all(low == high == version for version, (low, high) in ((v, pair.tolist()) for v, pair in found))


@needs_gpu
def test_on_a_gpu_an_actor_does_not_wait_for_updates_that_are_under_way():
    device = torch.device("cuda")
    parameters, mine, heavy = (torch.zeros(size, device=device) for size in (8, 8, (8192, 8192)))
    mailbox, stream = ThreadMailbox(parameters, 1), own_stream(device, "acting")
    torch.cuda.synchronize()
    for _ in range(40):
        heavy = heavy @ heavy
    parameters.fill_(2.0)
    mailbox.publish(parameters, 2)
    with on(stream):
        assert mailbox.collect(mine, 0) == 1
        stream.synchronize()
        assert not torch.cuda.default_stream().query()  # the update is still under way
    torch.cuda.synchronize()
    assert mailbox.collect(mine, 1) == 2
    assert mine.tolist() == [2.0] * 8


def test_a_schedule_reaches_the_learner_in_threads():
    """Not only the rows: those compute the rate themselves."""
    ended, _ = finish(small(steps=900, runtime="local", schedule="linear", learning_rate=1e-2))
    assert 0 <= ended.member.learner._rate.item() < 3e-3


@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_a_version_names_the_parameters_that_acted(monkeypatch, runtime):
    """Ages, and what is online, go by it: an unroll's version must be that of the parameters, not of the ones before or after."""
    made, acted, update, act = {}, [], Learner.update, Actor.step

    def updating(self, batch, *, progress):
        made.setdefault(0, self.flat.value.clone())
        learned = update(self, batch, progress=progress)
        made[self.version] = self.flat.value.clone()
        return learned

    def acting(self, *arguments):
        acted.append((self.version, [own.detach().clone() for own in self.policy.network.parameters()]))
        return act(self, *arguments)

    monkeypatch.setattr(Learner, "update", updating)
    monkeypatch.setattr(Actor, "step", acting)
    finish(small(steps=900, runtime=runtime))
    assert len({version for version, _ in acted}) > 5
    for version, parameters in acted:
        assert torch.equal(torch.cat([one.flatten() for one in parameters]), made[version]), version


def test_a_checkpoint_has_every_unroll_that_the_actor_has_handed_over(monkeypatch, tmp_path):
    """The actor's saved state begins after them: what is on its way would be a hole in its streams."""
    made, offered, act, offer, save = [], [], Actor.step, Mixer.offer, RunDirectory.save
    seen = []

    def acting(self, *arguments):
        taken = act(self, *arguments)
        made.append(0 if taken.unrolls is None else len(taken.unrolls.member))
        return taken

    def offering(self, unrolls):
        offered.append(len(unrolls.member))
        return offer(self, unrolls)

    def saving(self, trainer):
        seen.append((sum(made), sum(offered)))
        return save(self, trainer)

    monkeypatch.setattr(Actor, "step", acting)
    monkeypatch.setattr(Mixer, "offer", offering)
    monkeypatch.setattr(RunDirectory, "save", saving)
    finish(small(steps=900, runtime="local", checkpoint_every_steps=50), tmp_path / "run")
    assert len(seen) > 5
    assert all(acted == mixed for acted, mixed in seen)
