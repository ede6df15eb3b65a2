"""Whole episodes are found where they are whole, to the byte, and nowhere else."""

import shutil

import numpy as np
import pytest

from laser_rl import checkpoint
from laser_rl.checkpoint import REPLAY, Snapshot, read_segment
from laser_rl.tools.whole_episodes import NO_SEED, EpisodeReader
from laser_rl.types import UnrollLayout, empty_unrolls
from tests.checkpoint.inputs import write_segment
from tests.faults.test_checkpoint_faults import flipped
from tests.tools import naive
from tests.training.test_sweeps import in_directory, small_sweep

LAYOUT = UnrollLayout(4, 0, (2,), "float32", (), "int64", 2)


def found_in(run_dir, layout, member=None, replay="salvage"):
    reader = EpisodeReader(run_dir, checkpoint.latest(run_dir, replay=replay), layout, member)
    return [episode._asdict() for episode in reader]


def the_same(found, expected):
    assert len(expected) > 0
    assert sorted(map(naive.key, found)) == sorted(map(naive.key, expected))


def test_every_whole_episode_of_a_run_and_nothing_else(run):
    path, layout = run
    found = found_in(path, layout)
    the_same(found, naive.episodes(path, layout))
    assert all(len(one["observation"]) == len(one["reward"]) + 1 for one in found)


@pytest.mark.parametrize("share", ["shared", pytest.param("separate", marks=pytest.mark.slow)])
def test_of_a_sweep_everybodys_or_one_members(share, run, tmp_path):
    in_directory(small_sweep(steps=200, share=share), tmp_path)
    layout = run[1]  # members do not differ in it
    expected = naive.episodes(tmp_path, layout)
    assert {one["member"] for one in expected} == {0, 1, 2}
    the_same(found_in(tmp_path, layout), expected)
    the_same(found_in(tmp_path, layout, member=1), [one for one in expected if one["member"] == 1])


def test_episodes_that_lost_an_unroll_to_damage_are_left_out_and_all_others_kept(run, tmp_path):
    path, layout = shutil.copytree(run[0], tmp_path / "copy"), run[1]
    segment = max((path / REPLAY).iterdir(), key=lambda file: file.stat().st_size)
    before = naive.episodes(path, layout)
    loaded = checkpoint.latest(path, replay="unread")
    [entry] = [entry for entry in loaded.segments if entry.name == segment.name]
    flipped(segment)
    readable = {record.number for record in checkpoint.segments.salvaged(path / REPLAY, entry)}
    gone = set(range(entry.first_id, entry.last_id + 1)) - readable
    assert len(gone) == 1
    flipped(segment)  # back, for the reference
    expected = naive.episodes(path, layout, gone)
    flipped(segment)
    the_same(found_in(path, layout), expected)
    assert len(expected) < len(before)


def stream_of(count, *, begins=(0,), ends=(), episode=3):
    """`count` unrolls of one slot, each row its own number; episodes begin and end where it is said, counted in rows."""
    unrolls, steps = empty_unrolls(LAYOUT, count), LAYOUT.steps
    for unroll in range(count):
        for t in range(steps + 1):
            row = unroll * steps + t
            unrolls.observation[unroll, t] = row, -row
            unrolls.is_first[unroll, t] = row in begins
            unrolls.last_reward[unroll, t] = 0.5 * row
            if t < steps:
                unrolls.reward[unroll, t] = row
                unrolls.terminated[unroll, t] = row in ends
        unrolls.episode[unroll] = episode + sum(0 < begin <= unroll * steps for begin in begins)
        unrolls.seed[unroll] = 100 + unrolls.episode[unroll]
    return unrolls


def written(run_dir, unrolls, first_id=0):
    entry = write_segment(run_dir / REPLAY, LAYOUT, 0, unrolls)
    state = {"replays": [{"first_id": first_id, "next_id": len(unrolls.member)}]}
    checkpoint.write(run_dir, Snapshot(8, {}, state, [entry]))
    assert list(read_segment(run_dir / REPLAY, entry, LAYOUT))
    return found_in(run_dir, LAYOUT)


def test_an_episode_over_three_unrolls_and_one_of_a_single_step(tmp_path):
    unrolls = stream_of(3, begins=(0, 8, 10), ends=(6, 8))
    long, short = written(tmp_path, unrolls)
    assert long["reward"].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert long["observation"][:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert (long["episode"], long["seed"]) == (3, 103)
    assert short["observation"][:, 0].tolist() == [8, 9]
    assert (short["episode"], short["seed"]) == (4, 104)


def test_the_seed_of_an_episode_inside_one_unroll_is_not_known(tmp_path):
    [one] = written(tmp_path, stream_of(1, begins=(1,), ends=(2,)))
    assert (one["episode"], one["seed"]) == (4, NO_SEED)


def test_what_has_no_beginning_or_no_end_is_left_out(tmp_path):
    assert written(tmp_path, stream_of(3, begins=(5,), ends=(2,))) == []


def test_a_stream_that_was_broken_off_is_not_joined_whatever_the_numbers_say(tmp_path):
    """A run that was resumed without its environments: the slot, the episode's number and its seed are the same, the rows are not."""
    unrolls = stream_of(2, ends=(6,))
    unrolls.observation[1, 0] += 1
    assert written(tmp_path, unrolls) == []


def test_what_had_left_the_replay_is_not_part_of_it(tmp_path):
    unrolls = stream_of(3, begins=(0, 3, 5), ends=(1, 6))
    assert len(written(tmp_path / "all", unrolls)) == 2
    [second] = written(tmp_path / "some", unrolls, first_id=1)
    assert second["observation"][0, 0] == 5


def test_rows_that_all_look_alike_are_not_joined_over_an_unroll_that_is_gone(tmp_path):
    """Of three unrolls with an episode over all of them, the one in the middle is in no file."""
    unrolls = empty_unrolls(LAYOUT, 3)
    unrolls.is_first[0, 0] = unrolls.terminated[2, 3] = True
    first, last = (type(unrolls)(*(field[at : at + 1] for field in unrolls)) for at in (0, 2))
    for gone in (True, False):
        run_dir = tmp_path / str(gone)
        entries = [write_segment(run_dir / REPLAY, LAYOUT, 0, first)]
        entries += [write_segment(run_dir / REPLAY, LAYOUT, 2, last, np.array([1 if gone else 0]))]
        checkpoint.write(run_dir, Snapshot(8, {}, {"replays": [{"first_id": 0, "next_id": 3}]}, entries))
        assert len(found_in(run_dir, LAYOUT)) == (not gone)


def test_two_slots_do_not_mix(tmp_path):
    both = [stream_of(2, ends=(6,)), stream_of(2, ends=(5,))]
    both[1].observation[:] += 1000
    unrolls = type(both[0])(*(np.stack(pair, 1).reshape(4, *pair[0].shape[1:]) for pair in zip(*both, strict=True)))
    unrolls.slot[:] = 0, 1, 0, 1
    second, first = sorted(written(tmp_path, unrolls), key=lambda one: -one["observation"][0, 0])
    assert first["observation"][:, 0].tolist() == list(range(8))
    assert second["observation"][:, 0].tolist() == [1000.0 + row for row in range(7)]
