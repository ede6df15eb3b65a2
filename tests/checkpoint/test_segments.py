"""Replay segments: every bit comes back, every damaged bit is noticed, memory is bounded by blocks."""

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.checkpoint import read_segment, segments
from laser_rl.errors import ConfigError, DamagedRun
from laser_rl.types import UnrollLayout, Unrolls
from tests.checkpoint.inputs import LAYOUT, unrolls, write_segment


def joined(blocks):
    return Unrolls(*(np.concatenate(fields) for fields in zip(*(block for _, block in blocks), strict=True)))


def assert_equal(found, expected):
    for name, a, b in zip(Unrolls._fields, found, expected, strict=True):
        assert a.dtype == b.dtype, name
        np.testing.assert_array_equal(a, b, err_msg=name)


@given(
    count=st.integers(1, 9), first=st.integers(0, 10**13), block=st.integers(1, 4), skip=st.integers(-3, 12),
    layout=st.builds(UnrollLayout, st.integers(1, 4), st.integers(0, 3), st.sampled_from([(), (3,), (1, 4, 4)]),
                     st.sampled_from(["uint8", "float32"]), st.sampled_from([(), (2,)]), st.sampled_from(["int64", "float32"]),
                     st.integers(1, 5)),
)  # fmt: skip
def test_unrolls_come_back_bit_by_bit_from_any_number_on(tmp_path_factory, count, first, block, skip, layout):
    folder, written = tmp_path_factory.mktemp("replay"), unrolls(count, first, layout)
    entry = write_segment(folder, layout, first, written)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "_BLOCK_UNROLLS", block)
        start = first + skip
        blocks = list(read_segment(folder, entry, layout, start))
    expected = Unrolls(*(field[max(skip, 0) :] for field in written))
    if not len(expected.member):
        assert blocks == []
        return
    assert [len(part.member) for _, part in blocks[:-1]] == [block] * (len(blocks) - 1)
    assert [number for number, _ in blocks] == [max(start, first) + block * i for i in range(len(blocks))]
    assert_equal(joined(blocks), expected)


def test_entry_describes_the_file(tmp_path):
    entry = write_segment(tmp_path, LAYOUT, 40, unrolls(3))
    assert (entry.first_id, entry.count, entry.last_id) == (40, 3, 42)
    assert entry.bytes == (tmp_path / entry.name).stat().st_size
    segments.verify_segment(tmp_path, entry)
    assert [path.name for path in tmp_path.iterdir()] == [entry.name]


def test_a_segment_is_a_valid_zstd_file(tmp_path):
    written = unrolls(5)
    entry = write_segment(tmp_path, LAYOUT, 0, written)
    with (tmp_path / entry.name).open("rb") as file:
        plain = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
    assert plain == segments._joined(LAYOUT, written).tobytes()


def test_every_flipped_bit_is_noticed_by_the_reader_too(tmp_path):
    written = unrolls(2)
    entry = write_segment(tmp_path, LAYOUT, 0, written)
    path = tmp_path / entry.name
    original = path.read_bytes()
    header = original.index(b"}}") + 2
    for position in range(header, len(original)):
        flipped = bytearray(original)
        flipped[position] ^= 1 << (position % 8)
        path.write_bytes(flipped)
        with pytest.raises(DamagedRun, match="segment-"):
            list(read_segment(tmp_path, entry, LAYOUT))


def test_a_segment_of_another_layout_is_refused(tmp_path):
    entry = write_segment(tmp_path, LAYOUT, 0, unrolls(2))
    other = UnrollLayout(3, 1, (5, 2), "uint8", (2,), "float32", 4)
    with pytest.raises(ConfigError, match=r"layout.*--fresh"):
        next(read_segment(tmp_path, entry, other))


def test_a_giant_hidden_in_a_small_block_is_not_allocated(tmp_path, monkeypatch):
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 28))
    original = segments._encoded

    def with_bomb(layout, first, block, previous):
        yield next(original(layout, first, block, previous))
        prefix = segments._SKIPPABLE.pack(segments._RECORD_MAGIC, segments._RECORD.size)
        yield prefix + segments._RECORD.pack(first, len(bomb), segments._checksum(first, bomb, -1), -1) + bomb

    monkeypatch.setattr(segments, "_encoded", with_bomb)
    entry = write_segment(tmp_path, LAYOUT, 0, unrolls(1))
    with pytest.raises(DamagedRun, match="268,435,456 bytes"):
        list(read_segment(tmp_path, entry, LAYOUT))


def test_a_copy_of_streams_does_not_follow_the_original():
    streams, block = segments.Streams(), unrolls(3)
    segments.follow(streams, 0, block)
    before = streams.copy()
    segments.follow(streams, 100, block)
    expected = segments.follow(before_first(block), 200, block)
    np.testing.assert_array_equal(segments.follow(before, 200, block), expected)


def test_an_unroll_follows_the_oldest_that_is_held_and_none_that_is_gone():
    block = unrolls(1)
    streams = before_first(block)  # its newest unroll has the number 0
    for oldest, expected in ((0, 0), (1, -1)):
        assert segments.follow(streams.copy(), 5, block, oldest=oldest).tolist() == [expected]


def before_first(block):
    """The newest unroll of each stream after `block` was numbered from 0 on."""
    return {stream: row for row, stream in enumerate(zip(block.member.tolist(), block.slot.tolist(), strict=True))}
