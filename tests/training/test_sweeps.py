"""Sweeps in one process: identical speed, exact resume, PBT, divergence, separate and no replay."""

import json
import math

import numpy as np
import pytest
import torch

from laser_rl import Sweep, checkpoint
from laser_rl.errors import ConfigError
from laser_rl.metrics.log import read
from laser_rl.training.build_group import build_group
from laser_rl.training.directory import RunDirectory
from laser_rl.training.files import read_sweep
from laser_rl.training.launch import prepare, train
from laser_rl.training.member_group import MemberGroup
from laser_rl.training.pbt import PbtConfig
from laser_rl.training.settings import SweepConfig
from laser_rl.training.trainer import TURNS_AHEAD, Trainer, run_in_turns
from laser_rl.training.vectorized import VectorizedGroup
from tests.training.small import fingerprint, small

RATES = {"learning_rate": [5e-4, 1e-3, 4e-3]}
PBT = PbtConfig(burn_in_steps=100, every_episodes=5, margin=0.01)


def small_sweep(environment="CartPole-v1", *, grid=RATES, share="shared", stack="auto", pbt=None, **settings):
    return SweepConfig(base=small(environment, **settings), grid=grid, share=share, stack=stack, pbt=pbt)


def prepared(config, **more):
    crew = build_group(config)
    training = Trainer(config, crew, **more)
    crew.begin()
    return training


def to_the_end(training):
    """Run members in turn until their steps are done, and close their environments."""
    run_in_turns(training)
    training.group.close()
    return training


def in_directory(config, path, **more):
    directory = RunDirectory(path, config)
    try:
        return train(config, directory, sinks=[directory.log], **more)
    finally:
        directory.close()


@pytest.mark.parametrize("stack", ["on", "off"])
@pytest.mark.parametrize("slots", [3, 8])  # fewer and more than an unroll has steps
def test_members_are_never_further_apart_than_an_unroll(stack, slots):
    training = prepared(small_sweep(stack=stack, slots=slots))
    furthest, rows = 0, 0
    while training.goes_on():
        assert training.turn()
        training.between()
        steps = steps_of(training)
        furthest, rows = max(furthest, max(steps) - min(steps)), rows + 1
    training.group.close()
    assert 0 < furthest <= max(5, slots)
    assert all(600 <= member.steps < 600 + slots for member in training.trainings)
    # Resets are no steps: members with short episodes need more rows for as many steps.
    assert rows * slots > 600 + 10


def test_a_resumed_sweep_knows_at_once_how_far_each_member_was():
    training = prepared(small_sweep())
    for _ in range(12):
        training.turn()
    again = prepared(small_sweep())
    for one, other in zip(again.trainings, training.trainings, strict=True):
        one.load_state_dict(other.state_dict())
    again.load_state_dict(training.state_dict())
    assert again.pace.steps.tolist() == steps_of(again) == steps_of(training)
    assert min(steps_of(training)) > 0
    for one in (training, again):
        one.group.close()


def steps_of(training):
    return [member.steps for member in training.trainings]


@pytest.mark.parametrize("stack", ["on", "off"])
def test_everybody_writes_into_one_replay_and_learns_from_everybody(stack, tmp_path):
    config = small_sweep(stack=stack)
    end = in_directory(config, tmp_path)
    rows = [row for row in read(tmp_path, ("train",)) if row["member"] == 1]
    assert {f"acceptance_from_{j}" for j in range(3)} <= rows[-2].keys()  # the last row may be of an update or two
    last = read(tmp_path, ("sweep",))[-1]
    assert [last[f"share_of_{j}"] for j in range(3)] == pytest.approx([1 / 3] * 3, abs=0.1)
    assert {f"divergence_{i}_{j}" for i in range(3) for j in range(3) if i != j} <= last.keys()
    assert end.best().evaluation.mean == max(member.evaluation.mean for member in end.members)


def test_a_batch_has_the_members_own_newest_and_anybodys_old(tmp_path):
    config = small_sweep(stack="off", capacity_steps=1_500)
    training, seen = prepared(config), []
    for place, member in enumerate(training.group.members):
        update = member.learner.update

        def spy(batch, *, progress, place=place, update=update):
            seen.append((place, batch.member.tolist(), batch.online.tolist()))
            return update(batch, progress=progress)

        member.learner.update = spy
    to_the_end(training)
    assert all(
        source == place for place, sources, online in seen for source, new in zip(sources, online, strict=True) if new
    )
    replayed = [source for _, sources, online in seen for source, new in zip(sources, online, strict=True) if not new]
    shares = np.bincount(replayed, minlength=3) / len(replayed)
    assert shares == pytest.approx([1 / 3] * 3, abs=0.05)
    assert {sum(online) for _, _, online in seen} == {1}


@pytest.mark.parametrize("share", ["separate", "none"])
def test_members_that_do_not_share_see_nobody_elses_data(share):
    training = to_the_end(prepared(small_sweep(share=share)))
    stores = training.stores
    assert len(stores) == (3 if share == "separate" else 0)
    for number, store in enumerate(stores):
        assert set(store.composition()) == {number}
    columns = training.group.members[0].config.loss.batch_unrolls
    assert columns == (8 if share == "separate" else 1)
    shared = to_the_end(prepared(small_sweep()))
    assert abs(training.updates - shared.updates) <= 3  # the same number of updates with and without replay


@pytest.mark.fault(20)
@pytest.mark.parametrize(
    ("share", "stack"),
    [
        ("shared", "on"),
        ("shared", "off"),
        pytest.param("separate", "on", marks=pytest.mark.slow),
        pytest.param("none", "on", marks=pytest.mark.slow),
    ],
)
def test_a_stopped_sweep_goes_on_to_the_same_end(share, stack, tmp_path, figure):
    config = small_sweep("laser/Catch", share=share, stack=stack, pbt=PBT, checkpoint_every_steps=150)
    whole = in_directory(config, tmp_path / "whole")

    def pulled(progress):
        if progress.step >= 400:
            raise ConnectionResetError  # nothing is saved any more

    with pytest.raises(ConnectionResetError):
        in_directory(config, tmp_path / "parts", callbacks=[pulled])
    assert 150 <= checkpoint.latest(tmp_path / "parts").step < 400
    rest = in_directory(config, tmp_path / "parts")
    assert len(whole.exploits) > 1
    assert rest.exploits == whole.exploits
    figure(f"resumed: the same history of {len(rest.exploits)} copies as uninterrupted (replay {share})")
    # Parameters, optimisers, random numbers, replay, PBT, actors, counters; and every row of metrics.
    assert fingerprint(tmp_path / "parts") == fingerprint(tmp_path / "whole")
    for one, other in zip(whole.members, rest.members, strict=True):
        assert torch.equal(one.network.policy_head.weight, other.network.policy_head.weight)
        assert one.evaluation == other.evaluation


@pytest.mark.fault(21)
def test_a_member_that_diverges_is_rolled_back_and_the_others_learn_on(tmp_path, figure):
    grid = {"learning_rate": [1e-3, 1e33, 1e-3]}
    config = small_sweep("laser/Catch", grid=grid, stack="on", steps=1_000, **{"optimiser.kind": "rmsprop"})
    training = to_the_end(prepared(config))
    learners = [member.learner for member in training.group.members]
    assert learners[1].recovery.counts.skipped > 0
    assert learners[1].recovery.counts.rollbacks > 0
    assert [learners[0].recovery.counts.skipped, learners[2].recovery.counts.skipped] == [0, 0]
    store = training.stores[0]
    kept = store.export(np.arange(store.first_id, store.next_id))
    assert np.isfinite(kept.behaviour).all()
    assert set(kept.member.tolist()) == {0, 1, 2}
    assert all(torch.isfinite(learner.flat.value).all() for learner in learners)
    skipped, others = (
        learners[1].recovery.counts.skipped,
        learners[0].recovery.counts.skipped + learners[2].recovery.counts.skipped,
    )
    figure(
        f"{skipped} updates skipped and {learners[1].recovery.counts.rollbacks} ways back of the one, {others} skipped of the two others"
    )


@pytest.mark.slow
@pytest.mark.fault(21)
@pytest.mark.parametrize("stack", ["on", "off"])
def test_the_diverged_member_changes_nothing_where_nothing_is_shared(stack, figure):
    """With a replay of its own, a member's neighbours are the same numbers whatever it does."""
    ends = []
    for rate in (1e-3, 1e33):
        training = prepared(
            small_sweep("laser/Catch", grid={"learning_rate": [1e-3, rate]}, share="separate", stack=stack, steps=500)
        )
        to_the_end(training)
        ends.append(training.group.members[0].learner.flat.value.clone())
    if stack == "off":  # side by side, sums may be taken in another order
        assert torch.equal(*ends)
    torch.testing.assert_close(*ends, rtol=1e-3, atol=1e-4)
    how = "side by side" if stack == "on" else "in turn"
    figure(
        f"replays of their own, {how}: its neighbour's parameters differ by {(ends[0] - ends[1]).abs().max():.1e} at most"
    )


def test_small_alike_members_are_computed_side_by_side_and_others_in_turn():
    crews = {
        VectorizedGroup: small_sweep(),
        MemberGroup: small_sweep(grid={"clip_rho": [1.0, 2.0]}),
    }
    for kind, config in crews.items():
        crew = build_group(config)
        crew.close()
        assert type(crew) is kind
    with pytest.raises(ConfigError, match="side by side"):
        build_group(small_sweep(grid={"clip_rho": [1.0, 2.0]}, stack="on"))
    moving = PbtConfig(
        burn_in_steps=0, every_episodes=9, margin=0, tuned=("clip_rho",), limits={"clip_rho": (1.0, 4.0)}
    )
    crew = build_group(small_sweep(pbt=moving))
    crew.close()
    assert type(crew) is MemberGroup


def test_members_may_differ_in_their_networks():
    training = to_the_end(prepared(small_sweep(grid={"hidden": [(16,), (24, 8)]}, steps=200)))
    sizes = [member.learner.flat.value.numel() for member in training.group.members]
    assert sizes[0] != sizes[1]
    assert all(member.learner.version > 0 for member in training.group.members)


def test_a_sweep_is_kept_as_it_was_and_another_is_refused(tmp_path):
    config = small_sweep(steps=60)
    in_directory(config, tmp_path)
    assert read_sweep(tmp_path).settings == config.settings
    assert json.loads((tmp_path / "sweep.json").read_text())["settings"] == [
        {"learning_rate": r} for r in (5e-4, 1e-3, 4e-3)
    ]
    with pytest.raises(ConfigError, match="started with 3 members"):
        RunDirectory(tmp_path, small_sweep(steps=60, grid={"learning_rate": [1e-3]}))
    with pytest.raises(ConfigError, match="share"):
        RunDirectory(tmp_path, small_sweep(steps=60, share="separate"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "one of grid, random and members"),
        ({"grid": {"learning_rate": [1e-3]}, "members": [{}]}, "grid and members"),
        ({"random": {"learning_rate": {"kind": "uniform", "low": 0.1, "high": 0.2}}}, "draws"),
        ({"grid": {"learning_rat": [1e-3]}}, "did you mean 'optimiser.learning_rate'"),
        ({"grid": {"unroll_steps": [5, 6]}}, "cannot differ between members"),
        ({"grid": {"learning_rate": [-1.0]}}, "learning_rate"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_at_once(values, message):
    with pytest.raises(ConfigError, match=message):
        Sweep("laser/Catch", **values)


@pytest.mark.fault(20)
def test_nan_scores_copy_but_are_not_copied(tmp_path, figure):
    config = small_sweep("laser/Catch", pbt=PBT, steps=400)
    training = prepared(config)
    while training.goes_on():
        training.turn()
        training.trainings[2].window.forget()  # never a score
        training.trainings[2].window.add(math.nan)
        training.between()
    training.group.close()
    history = training.population.history
    assert history
    assert 2 not in {exploit.donor for exploit in history}
    assert 2 in {exploit.member for exploit in history}
    figure(f"a member without a score: donor in 0 of {len(history)} copies")


@pytest.mark.fault(20)
def test_a_member_whose_parameters_broke_is_not_copied():
    training = prepared(small_sweep("laser/Catch", pbt=PBT))
    while not training.population.history:
        training.turn()
        training.exploit()
    donor = training.population.history[-1].donor
    training.trainings[donor].member.learner.flat.value[0] = math.nan
    assert math.isnan(training.trainings[donor].standing().score)
    training.group.close()


def tuned(training):
    names = training.settings.pbt.tuned
    return [{name: one.member.learner.setting(name) for name in names} for one in training.trainings]


@pytest.mark.parametrize("stack", ["on", "off"])
def test_a_copy_has_the_donors_parameters_its_own_settings_and_an_empty_window(stack, tmp_path):
    training = prepared(small_sweep("laser/Catch", pbt=PBT, stack=stack))
    made = []
    while not made:
        training.turn()
        before = tuned(training)
        made = training.exploit()
    training.group.close()
    copied, donor = made[0], training.trainings[made[0].donor]
    recipient = training.trainings[copied.member]
    assert copied.before == before[copied.member]
    assert tuned(training)[copied.member] == copied.after != copied.before
    if donor not in [training.trainings[other.member] for other in made]:  # else it has changed itself since
        assert torch.equal(recipient.member.learner.flat.value, donor.member.learner.flat.value)
    assert "return_mean" not in recipient.window.numbers()
    assert recipient.window.episodes > 0  # the count goes on


def parameters(path):
    return checkpoint.latest(path).tensors["member-00"]


@pytest.mark.parametrize("settings", [{}, {"memory": "lstm", "memory_size": 4}], ids=["mlp", "lstm"])
def test_a_run_is_a_sweep_of_one_member(settings, tmp_path):
    """All random streams are the same. Only where they begin differs: a member's seed is derived from the sweep's."""
    one = SweepConfig(base=small("laser/Catch", seed=3, **settings), members=({},))
    alone = small("laser/Catch", seed=one.configs[0].run.seed, **settings)
    in_directory(alone, tmp_path / "run")
    in_directory(one, tmp_path / "sweep")
    run, sweep = parameters(tmp_path / "run"), parameters(tmp_path / "sweep")
    assert run.keys() == sweep.keys()
    assert all(torch.equal(tensor, sweep[name]) for name, tensor in run.items())
    kinds = ("train", "evaluation", "episode")
    clock = {"member", "time", "steps_per_second", "updates_per_second", "learned_steps_per_second", "memory_bytes"}
    kept = [
        [{name: value for name, value in row.items() if name not in clock} for row in read(path, kinds)]
        for path in (tmp_path / "run", tmp_path / "sweep")
    ]
    own = [
        [{name: v for name, v in row.items() if not name.startswith("acceptance_")} for row in rows] for rows in kept
    ]
    assert own[0] == own[1]


def test_side_by_side_each_member_acts_with_its_version_and_learns_from_its_columns():
    """Episodes of different lengths: members come to have different versions, and some updates are of a part of them."""
    training = prepared(small_sweep("CartPole-v1", share="separate", stack="on", steps=1_500))
    group, sizes, apart = training.group, set(), 0
    act, update = group.act, group._stack.update

    def acts(among):
        nonlocal apart
        versions = np.array([member.learner.version for member in group.members])
        taken = list(act(among))
        assert (group.actor.versions.reshape(len(versions), -1) == versions[:, None]).all()
        apart += len(set(versions.tolist())) > 1
        return taken

    def updates(places, batch, **more):
        sizes.add(len(places))
        numbers = [group.members[place].number for place in places]
        assert batch.member.reshape(len(places), -1).tolist() == [
            [n] * (batch.member.numel() // len(places)) for n in numbers
        ]
        return update(places, batch, **more)

    group.act, group._stack.update = acts, updates
    to_the_end(training)
    assert apart
    assert len(sizes) > 1  # all together, and some alone


@pytest.mark.slow
def test_one_agent_in_a_process_of_its_own_learns_the_same(tmp_path):
    config = small("laser/Catch", steps=300)
    in_directory(config, tmp_path / "here")
    in_directory(SweepConfig(base=config, processes=2), tmp_path / "there")
    here, there = parameters(tmp_path / "here"), parameters(tmp_path / "there")
    assert all(torch.equal(here[name], there[name]) for name in here if name.startswith(("network/", "optimiser/")))
    assert not any("member" in row for row in read(tmp_path / "there"))
    result = in_directory(small("laser/Catch", steps=400), tmp_path / "there")  # goes on here
    assert result.steps >= 400


@pytest.mark.slow
def test_members_act_while_they_learn(tmp_path):
    """Each in three threads of its own process, and at the same speed."""
    config = small_sweep("laser/Catch", runtime="local", steps=2_000, log_every_s=0.05)
    end = in_directory(config.model_copy(update={"processes": 3}), tmp_path)
    assert end.interrupted is None
    rows = read(tmp_path, ("train",))
    threaded = [row for row in rows if {"queue_inbox", "queue_batches", "learner_busy"} <= row.keys()]
    assert {row["member"] for row in threaded} == {0, 1, 2}
    steps = [member.steps for member in end.members]
    assert max(steps) - min(steps) <= 3 * (TURNS_AHEAD + 1)
    # The last steps are counted, too: a resume would otherwise make the rows of the end void.
    assert [max(row["step"] for row in rows if row["member"] == member) for member in range(3)] == steps
    assert set(composition_of(tmp_path)) == {0, 1, 2}


@pytest.mark.slow
def test_processes_do_not_repeat_the_copies_that_were_made_in_one(tmp_path):
    pbt = PbtConfig(burn_in_steps=100, every_episodes=5, margin=0.01)
    first = in_directory(small_sweep("laser/Catch", steps=600, pbt=pbt), tmp_path)
    assert first.exploits
    made = [row for row in read(tmp_path, ("event",)) if row["event"] == "exploit"]
    later = small_sweep("laser/Catch", steps=3_000, pbt=pbt)
    end = in_directory(later.model_copy(update={"processes": 3}), tmp_path)
    rows = [row for row in read(tmp_path, ("event",)) if row["event"] == "exploit"]
    new = end.exploits[len(first.exploits) :]
    assert end.exploits[: len(first.exploits)] == first.exploits
    assert len(rows) <= len(made) + len(new)


def test_separate_replays_come_back_under_their_own_ids(tmp_path):
    config = small_sweep("laser/Catch", share="separate", steps=200)
    in_directory(config, tmp_path)
    spans = []
    for more in (3, 0):  # unrolls that only the second store gets before it is saved again
        directory = RunDirectory(tmp_path, config)
        trainer = prepare(config, directory)
        spans.append([store.span() for store in trainer.stores])
        store = trainer.stores[1]
        if more:
            store.insert(store.export(np.arange(store.first_id, store.first_id + more)))
            directory.save(trainer).result()
        trainer.group.close()
        directory.close()
    before, after = spans
    assert after[0] == before[0]
    assert after[1][1] == before[1][1] + 3


def composition_of(path):
    [row] = read(path, ("sweep",))[-1:]
    return [int(name.removeprefix("share_of_")) for name in row if name.startswith("share_of_")]
