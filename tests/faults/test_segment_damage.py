"""Replay segments are torn, zeroed, flipped, cut out and exchanged: what can be read is kept, and no gap is ever glued together."""

import itertools
import random
from unittest import mock

import numpy as np
import pytest

from laser_rl.checkpoint import REPLAY, segments
from laser_rl.checkpoint.guarded import Damaged
from laser_rl.checkpoint.salvage import salvage
from laser_rl.replay.lanes import EpisodeIndex, Lanes
from laser_rl.replay.memory_layout import allocate
from laser_rl.replay.store import Replay
from laser_rl.training import saving
from laser_rl.types import Unrolls
from tests.checkpoint.inputs import LAYOUT, unrolls, write_segment
from tests.replay.inputs import CONTEXT, RECURRENT, Stream, assert_same

CAPACITY = 48  # unrolls


class Recorded:
    """Streams that were written to disk as a run does it, and what they were: the rows of every unroll by its number."""

    def __init__(self, folder, layout, dice, unrolls=70):
        self.folder, self.layout, self.dice = folder, layout, dice
        lengths = [itertools.cycle([dice.randint(1, 30) for _ in range(5)]) for _ in range(5)]
        self.streams = [Stream(layout, name, own) for name, own in zip((0, 1, 2, 10, 11), lengths, strict=True)]
        self.store, self.files = Replay(layout, CAPACITY * layout.steps), saving.Segments(folder, layout)
        self.rows, self.unrolls = {}, {}
        with mock.patch.object(saving, "SEGMENT_UNROLLS", 8):
            for _ in range(unrolls):
                self.cut(self.store)
                if dice.random() < 0.1:
                    self.written()
            self.ids = self.written()

    def written(self):
        self.files.begin(self.store)
        return self.files.write(self.store)

    def cut(self, store):
        """One more unroll of any stream; now and then its worker dies before."""
        stream = self.dice.choice(self.streams)
        if self.dice.random() < 0.05:
            stream.restart(self.dice.randint(0, 3))
        unrolls, rows = stream.cut()
        store.insert(unrolls)
        self.rows[rows[0], rows[-1]], self.unrolls[rows[0], rows[-1]] = rows, unrolls

    def damage(self):
        """Some of the segments, in any way; returns the names of those that no longer verify."""
        chosen = self.dice.sample(self.files.entries, self.dice.randint(1, min(3, len(self.files.entries))))
        for entry in chosen:
            hurt(self.folder / REPLAY / entry.name, self.dice)
        return {entry.name for entry in self.files.entries if not verifies(self.folder / REPLAY, entry)}

    def mended(self, damaged):
        """A store filled with the rest, and what was said of it."""
        store, files = Replay(self.layout, CAPACITY * self.layout.steps), saving.Segments(self.folder, self.layout)
        return store, files, files.fill(store, tuple(self.files.entries), self.ids, damaged)

    def rows_in(self, store):
        """Of every unroll held; fails if one is not just what was written, but for the number of its slot."""
        kept = {}
        for number in range(store.first_id, store.next_id):
            one = store.export(np.array([number]))
            seen = one.observation[0, self.layout.context :]
            name = tuple(map(int, seen[0])), tuple(map(int, seen[-1]))
            written = self.unrolls[name]
            assert one.slot[0] in {written.slot[0], *range(-20, 0)}
            assert_same(one._replace(slot=written.slot), written)
            kept[number] = self.rows[name]
        return kept


def hurt(path, dice):
    data = bytearray(path.read_bytes())
    at, size = dice.randrange(len(data)), dice.choice([1, 30, 400, 4096])
    match dice.randrange(6):
        case 0:
            del data[at:]  # torn
        case 1:
            data[at : at + size] = bytes(len(data[at : at + size]))  # zeroed
        case 2:
            data[at] ^= 1 << dice.randrange(8)
        case 3:
            del data[at : at + size]  # cut out
        case 4:
            data[at:at] = dice.randbytes(size)
        case _:
            path.unlink()
            return
    path.write_bytes(data)


def verifies(folder, entry):
    try:
        segments.verify_segment(folder, entry)
    except Damaged:
        return False
    return True


def episodes_in(store, rows):
    """Rows of every episode that lanes may draw; fails if one of them is not an episode from its first row to its last."""
    index, found = EpisodeIndex(store), {}
    index.refresh()
    for first, row, last, end in index.table.tolist():
        walked, at = [*rows[first][row:]], first
        while at != last:
            at = int(index.successors(np.array([at]))[0])
            assert rows[at][0] == walked[-1], "two unrolls that do not follow each other were linked"
            walked += rows[at][1:]
        walked = walked[: len(walked) - (len(rows[last]) - 2 - end)]
        stream, life, episode, _ = walked[0]
        assert walked == [(stream, life, episode, t) for t in range(len(walked))]
        found[stream, life, episode] = len(walked) - 1
    return found


def replayed(store, rows, dice, batches=60):
    """Draw with lanes; every column that goes on goes on at the row where it stood. Returns how many unrolls were drawn."""
    lanes, random_numbers = Lanes(store, count=3), np.random.default_rng(dice.randrange(1 << 30))
    if not lanes.ready():
        return 0
    batch, before = allocate(store.layout, columns=3), [None] * 3
    for _ in range(batches):
        lanes.fill(3, random_numbers, batch, first_column=0)
        for column, number in enumerate(batch.id.tolist()):
            assert not batch.carried[column] or rows[number][0] == before[column]
            before[column] = rows[number][-1]
    return 3 * batches


def damage_and_mend(folder, seed, layout):
    """One replay; returns (unrolls lost, unrolls drawn, episodes that lanes may draw)."""
    dice = random.Random(seed)  # noqa: S311
    recorded = Recorded(folder, layout, dice)
    before = recorded.rows_in(recorded.store)
    whole = episodes_in(recorded.store, before)
    damaged = recorded.damage()
    if not damaged:
        return 0, 0, len(whole)
    store, files, said = recorded.mended(damaged)
    kept = recorded.rows_in(store)
    lost = {tuple(rows) for rows in before.values()} - {tuple(rows) for rows in kept.values()}
    assert (said.kept, said.lost) == (len(kept), len(lost))
    # Just the episodes of which no row is lost can be drawn, and all of them. The row where two unrolls meet is in both.
    gone = set(itertools.chain(*lost)) - set(itertools.chain(*kept.values()))
    untouched = set(whole) - {row[:3] for rows in lost for row in (rows[:-1] if rows[-1][3] == 0 else rows)}
    found = episodes_in(store, kept)
    assert untouched <= set(found) <= set(whole) - {row[:3] for row in gone}
    drawn = replayed(store, kept, dice)
    # The slots go on, and nothing of theirs passes for the rest of what is gone.
    for _ in range(20):
        recorded.cut(store)
    kept = recorded.rows_in(store)
    episodes_in(store, kept)
    drawn += replayed(store, kept, dice)
    files.begin(store)
    written = files.write(store)  # all of it anew, beside what older checkpoints name
    again, _, nothing = Recorded.mended(_Files(recorded, files, written), set())
    assert nothing is None
    assert recorded.rows_in(again) == kept
    return len(lost), drawn, len(found)


class _Files:
    """What a second load needs of a recording."""

    def __init__(self, recorded, files, ids):
        self.folder, self.layout, self.files, self.ids = recorded.folder, recorded.layout, files, ids


@pytest.mark.fault(11)
def test_only_damaged_episodes_are_dropped(tmp_path, figure):
    lost = drawn = whole = 0
    for seed in range(12):
        counts = damage_and_mend(tmp_path / str(seed), seed, (RECURRENT, CONTEXT)[seed % 2])
        lost, drawn, whole = lost + counts[0], drawn + counts[1], whole + counts[2]
    assert lost > 40
    assert drawn > 1_500
    figure(
        f"12 replays damaged: {lost:,} unrolls lost, {whole:,} whole episodes kept, 0 gaps in {drawn:,} replayed unrolls"
    )


@pytest.mark.slow
@pytest.mark.fault(11)
def test_only_damaged_episodes_are_dropped_three_hundred_times(tmp_path, figure):
    lost = drawn = 0
    for seed in range(1000, 1300):
        counts = damage_and_mend(tmp_path / str(seed), seed, (RECURRENT, CONTEXT)[seed % 2])
        lost, drawn = lost + counts[0], drawn + counts[1]
    figure(f"300 replays damaged: {lost:,} unrolls lost, 0 gaps in {drawn:,} replayed unrolls")


def flip(path, whole, position):
    path.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])


@pytest.mark.fault(11)
def test_a_flipped_bit_costs_one_unroll_and_changes_none(tmp_path, figure):
    recorded = Recorded(tmp_path, RECURRENT, random.Random(8))  # noqa: S311
    entry = recorded.files.entries[-1]
    path = tmp_path / REPLAY / entry.name
    whole, header = path.read_bytes(), path.read_bytes().index(b"}}") + 2
    positions = [*range(0, header, 29), *range(header, len(whole), 11)]
    for position in positions:
        flip(path, whole, position)
        store, _, said = recorded.mended({path.name})
        assert said.lost == (position >= header)
        recorded.rows_in(store)
    figure(f"{len(positions):,} bits flipped one by one: one unroll lost each, 0 changed")


def test_whole_unrolls_of_another_file_are_not_taken(tmp_path):
    one, other = (Recorded(tmp_path / name, RECURRENT, random.Random(1)) for name in ("one", "other"))  # noqa: S311
    entry = one.files.entries[1]
    path = tmp_path / "one" / REPLAY / entry.name
    foreign = other.store.export(np.arange(8) + other.store.first_id)
    path.unlink()
    exchanged = write_segment(
        path.parent, RECURRENT, entry.first_id, Unrolls(*(field[: entry.count] for field in foreign))
    )
    named = segments.SegmentEntry(entry.name, entry.first_id, entry.count, exchanged.bytes, entry.sha256)
    first = one.ids["first_id"]
    bounds = min(first, entry.first_id), entry.last_id + 1
    assert salvage(path.parent, [named], {entry.name}, RECURRENT, *bounds)[0].kept == 0


def test_what_is_wholly_gone_leaves_an_empty_store(tmp_path):
    recorded = Recorded(tmp_path, RECURRENT, random.Random(5))  # noqa: S311
    names = {entry.name for entry in recorded.files.entries}
    for name in names:
        (tmp_path / REPLAY / name).write_bytes(b"")
    store, _, said = recorded.mended(names)
    assert (len(store), said.kept, said.lost) == (0, 0, recorded.ids["next_id"] - recorded.ids["first_id"])
    assert store.next_id == recorded.ids["next_id"]


@pytest.mark.parametrize(
    ("first_id", "episodes"), [(0, 1), (1, 0)]
)  # without number 0 the replay had begun at number 1
def test_an_episode_that_lost_its_first_unroll_is_counted(tmp_path, first_id, episodes):
    written = unrolls(3)
    for field, value in {"member": 0, "slot": 0, "episode": 7, "is_first": False}.items():
        getattr(written, field)[:] = value
    entry = write_segment(tmp_path, LAYOUT, 0, written)
    path = tmp_path / entry.name
    data = path.read_bytes()
    flip(path, data, data.index(b"}}") + 50)  # in the record of number 0
    assert salvage(tmp_path, [entry], {entry.name}, LAYOUT, first_id, 3)[0] == (2, 1 - first_id, episodes)


def test_a_record_says_which_one_was_before(tmp_path):
    recorded = Recorded(tmp_path, RECURRENT, random.Random(6))  # noqa: S311
    newest, known = {}, 0
    for entry in recorded.files.entries:
        records = list(segments.salvaged(tmp_path / REPLAY, entry))
        assert [record.number for record in records] == list(range(entry.first_id, entry.last_id + 1))
        for record in records[max(0, recorded.ids["first_id"] - entry.first_id) :]:
            one = recorded.store.export(np.array([record.number]))
            stream = int(one.member[0]), int(one.slot[0])
            if stream in newest:
                assert record.previous == newest[stream]
                known += 1
            newest[stream] = record.number
    assert known > 20
