"""Compression of the frames of many unrolls at once, one zstd block each, without the interpreter lock.

All blocks of a batch are worked through in one call. A call for each would take the lock back after each: beside a thread that computes
in Python that is a wait of 5 ms for every unroll, fifty times slower. To compress, zstandard has such a call. Its counterpart
decompresses into memory of its own, in pieces that would be copied one by one; numcodecs decompresses zstd frames that lie
one behind the other straight into the batch (which zstd allows: they are one stream).
"""

import numcodecs.zstd  # type: ignore[import-untyped]
import numpy as np
import zstandard
from numpy.typing import NDArray

from laser_rl.replay.records import Bytes


def compress_bound(size: int) -> int:
    """The most bytes that a block of `size` bytes can become (ZSTD_COMPRESSBOUND).

    >>> compress_bound(100_000)
    100405
    """
    small = 1 << 17
    return size + (size >> 8) + (((small - size) >> 11) if size < small else 0)


def compress(frames: Bytes, level: int) -> list[memoryview]:
    """Each row of [n, bytes] as a block.

    >>> blocks = compress(np.zeros((2, 10_000), np.uint8), level=1)
    >>> len(blocks), blocks[0].nbytes < 100
    (2, True)
    """
    count, size = frames.shape
    segments = _segments(np.arange(count, dtype=np.uint64) * np.uint64(size), np.full(count, size, np.uint64))
    source = zstandard.BufferWithSegments(np.ascontiguousarray(frames).data, segments)
    blocks = zstandard.ZstdCompressor(level=level).multi_compress_to_buffer(source, threads=1)
    return [memoryview(blocks[i]) for i in range(count)]  # type: ignore[arg-type]


def decompress(blocks: bytes | memoryview, out: Bytes) -> None:
    """Blocks, one behind the other, into [n, bytes]; together they must give exactly as many bytes as it has.

    >>> blocks = compress(np.arange(6, dtype=np.uint8).reshape(2, 3), level=1)
    >>> out = np.zeros((2, 3), np.uint8)
    >>> decompress(b"".join(blocks), out)
    >>> out
    array([[0, 1, 2], [3, 4, 5]], dtype=uint8)
    """
    if out.size:
        numcodecs.zstd.decompress(blocks, out)


def _segments(offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]) -> bytes:
    return np.stack([offsets, lengths], axis=1).tobytes()
