"""Members with memories and one replay: lanes over everybody's episodes, exact resume, copies, processes."""

import itertools

import numpy as np
import pytest
import torch

from laser_rl import checkpoint
from laser_rl.config import override
from laser_rl.errors import ConfigError
from laser_rl.metrics.log import read
from laser_rl.replay.lanes import Lanes
from laser_rl.training.build_group import build_group
from laser_rl.training.directory import RunDirectory
from laser_rl.training.launch import train
from laser_rl.training.member_group import MemberGroup
from laser_rl.training.member_process import ProcessTrainer, SharedStateStore
from laser_rl.training.pbt import PbtConfig
from laser_rl.training.settings import SweepConfig
from tests.training.small import fingerprint
from tests.training.test_recurrent import Killed, carried_columns, recurrent, unrolled  # noqa: F401 - a fixture
from tests.training.test_sweeps import in_directory, prepared, to_the_end

ALIKE = [{"learning_rate": 2e-3}] * 3  # but for their seeds
PBT = PbtConfig(burn_in_steps=60, every_episodes=4, margin=0.01)


def members(*, stack="auto", pbt=None, processes=1, settings=ALIKE, **base):
    return SweepConfig(base=recurrent(**base), members=settings, stack=stack, pbt=pbt, processes=processes)


def by_member(training, seen):
    """What each member's learner went over, in its order."""
    return [[one for one in seen if one.learner == id(t.member.learner.recurrent)] for t in training.trainings]


def test_members_of_different_seeds_replay_each_others_episodes(unrolled):  # noqa: F811
    training = prepared(members(steps=300, capacity_steps=800))
    start = [member.learner.flat.value.clone() for member in training.group.members]
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(start, 2))
    to_the_end(training)
    assert len(training.stores) == 1
    for place, seen in enumerate(by_member(training, unrolled)):
        assert carried_columns(seen) > len(seen) > 20
        sources = torch.cat([one.batch.member[~one.batch.online] for one in seen])
        assert torch.bincount(sources, minlength=3).min() > 0.15 * len(sources)
        assert all((one.batch.member[one.batch.online] == place).all() for one in seen)


@pytest.mark.parametrize(
    "kind",
    [pytest.param({}, marks=pytest.mark.slow), {"memory": "preco"}],
    ids=["lstm", "preco"],
)
def test_a_stopped_sweep_goes_on_to_the_same_end(kind, tmp_path):
    config = members(pbt=PBT, steps=300, checkpoint_every_steps=70, **kind)
    whole = in_directory(config, tmp_path / "whole")

    def pulled(progress):
        if progress.step >= 220:
            raise Killed

    with pytest.raises(Killed):
        in_directory(config, tmp_path / "parts", callbacks=[pulled])
    kept = checkpoint.latest(tmp_path / "parts")
    assert 70 <= kept.step < 220
    lanes = [tensor for name, tensor in kept.tensors["member-00"].items() if name.endswith(".next")]
    assert (lanes[0] >= 0).any()
    rest = in_directory(config, tmp_path / "parts")
    assert rest.exploits == whole.exploits
    assert len(whole.exploits) > 0
    assert fingerprint(tmp_path / "parts") == fingerprint(tmp_path / "whole")


def test_a_copy_learns_nothing_from_lanes_that_the_old_parameters_began(unrolled):  # noqa: F811
    training = prepared(members(environment="laser/TMaze-8", pbt=PBT, steps=5_000, capacity_steps=2_000))
    made = []
    while not made:
        training.turn()
        made = training.exploit()
    copied = made[0].member
    unrolled.clear()
    for _ in range(60):
        training.turn()
    training.group.close()
    seen = by_member(training, unrolled)[copied]
    begun, muted = seen[0].batch.online.clone(), 0
    for one in seen:
        begun |= ~one.batch.carried
        assert not one.is_transition[:, ~begun].any()
        assert torch.equal(one.is_transition[:, begun], one.batch.is_transition[:, begun])
        muted += int((~begun).sum())
    assert muted > 0
    assert begun.all()  # and goes on with all of them
    for other in {0, 1, 2} - {exploit.member for exploit in made}:
        assert all(
            torch.equal(one.is_transition, one.batch.is_transition) for one in by_member(training, unrolled)[other]
        )


def test_memories_are_not_computed_side_by_side():
    crew = build_group(members(settings=[{"learning_rate": 1e-3}, {"learning_rate": 2e-3}]))
    crew.close()
    assert type(crew) is MemberGroup
    with pytest.raises(ConfigError, match="feed-forward"):
        build_group(members(settings=[{"learning_rate": 1e-3}, {"learning_rate": 2e-3}], stack="on"))


@pytest.mark.parametrize(
    "kind",
    [{}, pytest.param({"memory": "preco"}, marks=pytest.mark.slow)],
    ids=["lstm", "preco"],
)
def test_processes_share_episodes_and_one_process_goes_on_with_what_they_left(kind, tmp_path, unrolled):  # noqa: F811
    config = members(processes=2, pbt=PBT, steps=800, capacity_steps=3_000, log_every_updates=20, **kind)
    end = in_directory(config, tmp_path)
    assert all(member.steps >= 800 for member in end.members)
    rows = [row for row in read(tmp_path, ("train",)) if row["member"] == 2]
    named = {name for row in rows for name in row}
    assert {f"acceptance_from_{source}" for source in range(3)} <= named
    base = override(config.base, {"run.steps": 1_000})
    longer = config.model_copy(update={"processes": 1, "base": base})
    again = RunDirectory(tmp_path, None)
    try:
        rest = train(longer, again, sinks=[again.log])
    finally:
        again.close()
    assert all(1_000 <= member.steps < 1_010 for member in rest.members)
    for learner in {one.learner for one in unrolled}:
        seen = [one for one in unrolled if one.learner == learner]
        assert not seen[0].batch.carried.any()  # the lanes of the processes are gone
        assert carried_columns(seen) > 0
    assert len({one.learner for one in unrolled}) == 3
    assert np.isfinite([member.evaluation.mean for member in rest.members]).all()


def test_a_process_that_died_in_an_episode_leaves_no_false_one_behind():
    """Its successor begins all episodes anew. None of its rows may pass for the rest of an episode that was cut off."""
    config = members(environment="laser/TMaze-20", steps=5_000, capacity_steps=3_000)
    orders = SharedStateStore(3, 100)
    first = ProcessTrainer(config, build_group(config), board=SharedStateStore(3, 1 << 20), orders=orders)
    first.go_on()
    for _ in range(10):  # into the second unroll of everybody's first episode
        first.turn()
    first.group.close()
    store = first.group.members[0].replay
    before, cut = store.next_id, Lanes(store, 1).episodes
    cut.refresh()
    assert before >= 12
    assert not len(cut)
    second = ProcessTrainer(
        config, build_group(config, stores=[store] * 3), board=SharedStateStore(3, 1 << 20), orders=orders
    )
    second.go_on()
    while store.next_id < before + 240:
        second.turn()
    second.group.close()
    cut.refresh()
    assert len(cut) > 3
    assert cut.table["first"].min() >= before
    assert (cut.successors(np.arange(before)) < before).all()
