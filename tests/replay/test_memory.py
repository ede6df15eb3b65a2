"""The estimate bounds what a full store really holds, and what does not fit is refused with a figure that does."""

import re

import numpy as np
import pytest

from laser_rl.errors import ConfigError
from laser_rl.replay.memory_estimate import available_bytes, estimate, require_fits, resolve_codec
from laser_rl.replay.store import Replay
from laser_rl.types import UnrollLayout, empty_unrolls
from tests.replay.inputs import LAYOUTS, PICTURE, compressed_bytes

ATARI = UnrollLayout(20, 3, (1, 84, 84), "uint8", (), "int64", 18)


def test_pictures_of_many_bytes_are_compressed_and_all_else_is_not():
    floats, vector = (UnrollLayout(20, 0, shape, "float32", (), "int64", 18) for shape in ((3, 40, 40), (4,)))
    assert [resolve_codec(layout, "auto") for layout in (ATARI, floats, vector)] == ["zstd", "zstd", "raw"]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.observation_shape}x{layout.stack}")
def test_a_raw_store_holds_what_was_estimated(layout):
    needed = estimate(layout, 1000 * layout.steps, "raw")
    held = Replay(layout, 1000 * layout.steps, codec="raw").nbytes
    assert 0 <= needed.total - held <= 16 * 1000  # addresses and lengths, which a raw store has not
    assert needed.bytes_observations == needed.bytes_uncompressed


@pytest.mark.parametrize("compressible", [True, False])
@pytest.mark.parametrize("budget", [None, 5_000, 50_000, 400_000])
def test_a_compressed_store_never_holds_more_than_estimated(compressible, budget):
    store = Replay(PICTURE, 200 * PICTURE.steps, codec="zstd", budget_bytes=budget)
    needed = estimate(PICTURE, 200 * PICTURE.steps, "zstd", budget)
    random = np.random.default_rng(0)
    for _ in range(60):
        unrolls = empty_unrolls(PICTURE, 10)
        if not compressible:
            unrolls.observation[...] = random.integers(0, 256, unrolls.observation.shape)
        store.insert(unrolls)
    assert store.nbytes <= needed.total
    assert compressed_bytes(store) <= store.budget_bytes
    assert len(store) == 200 if compressible else len(store) < 200 or budget == 400_000


def test_the_text_says_what_is_assumed():
    assert "2.12" not in str(estimate(ATARI, 10**6, "raw"))
    assert re.search(
        r"10,000,000 steps: 9\.\d+ GB = 8\.\d+ GB .*assuming 10x, 84\.7 GB raw", str(estimate(ATARI, 10**7))
    )
    assert "as budgeted" in str(estimate(ATARI, 10**7, budget_bytes=2 * 10**9))


@pytest.mark.parametrize("codec", ["raw", "zstd"])
@pytest.mark.parametrize("free", [10**9, 5 * 10**9])
def test_the_advice_of_a_refusal_fits(codec, free):
    with pytest.raises(ConfigError, match=r"needs \d+\.\d GB, \d\.\d GB are free") as refused:
        require_fits(estimate(ATARI, 10**7, codec), available=free)
    advised = int(re.search(r"capacity-steps to ([\d,]+)", str(refused.value))[1].replace(",", ""))
    require_fits(estimate(ATARI, advised, codec), available=free)
    with pytest.raises(ConfigError):
        require_fits(estimate(ATARI, 2 * advised, codec), available=free)


def test_a_budget_that_alone_is_too_large_is_named():
    with pytest.raises(ConfigError, match=r"or --replay\.budget-gb"):
        require_fits(estimate(ATARI, 10**6, budget_bytes=10**10), available=10**9)
    require_fits(estimate(ATARI, 10**5))  # this machine


def files(root, **contents):
    for name, text in contents.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_free_memory_is_what_kernel_and_control_group_leave(tmp_path):
    assert available_bytes(tmp_path) > 10**15  # nothing known: nothing refused
    files(tmp_path, proc__meminfo="MemTotal: 16000 kB\nMemAvailable:    8000 kB\nBuffers: 1 kB\n")
    assert available_bytes(tmp_path) == 8_192_000
    version_2 = "sys__fs__cgroup__memory_DOT_"
    files(tmp_path, **{version_2 + "max": "max\n", version_2 + "current": "700\n"})
    assert available_bytes(tmp_path) == 8_192_000
    files(tmp_path, **{version_2 + "max": "5000000\n"})
    assert available_bytes(tmp_path) == 4_999_300
    version_1 = "sys__fs__cgroup__memory__memory_DOT_"
    files(tmp_path, **{version_1 + "limit_in_bytes": "3000\n", version_1 + "usage_in_bytes": "4000\n"})
    assert available_bytes(tmp_path) == 0
