"""A new agent learns from an old sweep's replay."""

import numpy as np
import pytest

from laser_rl.errors import ConfigError
from laser_rl.metrics.log import read
from laser_rl.training.launch import prepare
from laser_rl.training.saving import warm_start
from tests.training.small import fingerprint, finish, small
from tests.training.test_sweeps import in_directory, prepared, small_sweep


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    path = tmp_path_factory.mktemp("old")
    in_directory(small_sweep("laser/Catch", capacity_steps=1_000), path)
    return path


def test_the_replay_begins_with_what_the_sweep_left(old):
    [member] = prepare(small("laser/Catch", capacity_steps=2_000, start_from=str(old))).group.members
    member.actor.environments.close()
    assert len(member.replay) == 200  # all of it: 1,000 steps in unrolls of 5
    kept = member.replay.export(np.arange(200))
    assert set(kept.member.tolist()) == {1, 2, 3}  # the new agent is 0
    assert kept.version.max() <= 0


def test_strangers_are_trusted_further_unless_the_user_says_how_far(old):
    def bound(**settings):
        return small("laser/Catch", **settings).loss.bound

    assert bound() == 0.03
    assert bound(start_from=str(old)) == 1.0
    assert bound(start_from=str(old), trust_bound=0.05) == 0.05
    assert bound(start_from=str(old), trust="off") == float("inf")
    assert bound(start_from=str(old), trust="behaviour") == 0.03


def test_the_newest_are_kept_where_not_all_fit(old):
    [member] = prepare(small("laser/Catch", capacity_steps=300, start_from=str(old))).group.members
    member.actor.environments.close()
    [all_of_it] = prepare(small("laser/Catch", capacity_steps=2_000, start_from=str(old))).group.members
    all_of_it.actor.environments.close()
    newest = all_of_it.replay.export(np.arange(140, 200))
    kept = member.replay.export(np.arange(member.replay.first_id, member.replay.next_id))
    np.testing.assert_array_equal(kept.observation, newest.observation)


def test_acceptance_is_reported_for_the_old_members_and_the_run_resumes(old, tmp_path):
    config = small("laser/Catch", capacity_steps=2_000, start_from=str(old))
    finish(config, tmp_path / "whole")
    rows = read(tmp_path / "whole", ("train",))
    assert {f"acceptance_from_{j}" for j in range(4)} <= rows[-2].keys()  # the last row may be of an update or two
    assert min(row["replay_age_updates"] for row in rows) > 0

    def pulled(progress):
        if progress.step >= 450:
            raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        finish(config, tmp_path / "parts", callbacks=[pulled])
    finish(config, tmp_path / "parts")
    assert fingerprint(tmp_path / "parts") == fingerprint(tmp_path / "whole")


def test_a_sweep_can_begin_with_it_too(old):
    config = small_sweep("laser/Catch", capacity_steps=2_000, start_from=str(old), steps=50)
    training = prepared(config)
    warm_start(training.stores[0], config.base, members=3)
    training.group.close()
    assert set(training.stores[0].composition()) == {3, 4, 5}
    assert training.group.members[0].learner.sources == 6


def test_what_does_not_fit_is_refused(old, tmp_path):
    with pytest.raises(ConfigError, match="another shape"):
        prepare(small("laser/Catch", unroll_steps=7, start_from=str(old)))
    with pytest.raises(ConfigError, match="no run directory"):
        prepare(small("laser/Catch", start_from=str(tmp_path)))


def test_a_replay_of_other_tasks_is_refused(tmp_path):
    """Unrolls know their task by its number only."""
    finish(small("laser/TMaze-2,laser/TMaze-3", slots=4), tmp_path)
    for environment in ("laser/TMaze-3,laser/TMaze-2", "laser/TMaze-2", "laser/TMaze-2,laser/TMaze-4"):
        with pytest.raises(ConfigError, match="of the tasks laser/TMaze-2, laser/TMaze-3, this agent learns"):
            prepare(small(environment, slots=4, start_from=str(tmp_path)))
    [member] = prepare(small("laser/TMaze-2,laser/TMaze-3", slots=4, start_from=str(tmp_path))).group.members
    member.actor.environments.close()
    assert set(member.replay.export(np.arange(len(member.replay))).task.tolist()) == {0, 1}
