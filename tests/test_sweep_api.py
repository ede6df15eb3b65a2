"""`Sweep` as a user calls it."""

import dataclasses
import gc
import sys

import gymnasium
import pytest
import torch
from torch import nn

from laser_rl import LASER, Sweep, recipes
from laser_rl.api import sweep as api
from laser_rl.errors import ConfigError, MissingExtra
from laser_rl.metrics.log import read
from laser_rl.training.pbt import PbtConfig
from laser_rl.training.settings import LogUniform
from tests.view.reading import read_report

SMALL = {"hidden": (16,), "unroll_steps": 5, "slots": 2, "capacity_steps": 500, "evaluate_episodes": 3}
GRID = {"learning_rate": [1e-3, 2e-3]}


@pytest.fixture(scope="module")
def result():
    return Sweep("CartPole-v1", grid=GRID, seed=3, **SMALL).run(300)


def test_every_member_is_there_with_its_settings(result):
    assert [member.number for member in result.members] == [0, 1]
    assert [member.settings["learning_rate"] for member in result.members] == GRID["learning_rate"]
    assert [member.config.optimiser.learning_rate for member in result.members] == GRID["learning_rate"]
    assert all(member.steps >= 300 and member.updates > 10 for member in result.members)
    assert result.members[0].config.run.seed != result.members[1].config.run.seed
    assert (result.exploits, result.interrupted) == ((), None)


def test_the_best_is_the_one_with_the_best_evaluation(result):
    assert result.best() is max(result.members, key=lambda member: member.evaluation.mean)


def test_a_saved_member_is_an_agent(result, tmp_path):
    for member in result.members:
        agent = LASER.load(member.save(tmp_path / f"{member.number}.laser"))
        own = member.network.state_dict()
        loaded = agent.member.learner.network.state_dict()
        assert all(torch.equal(loaded[name], tensor.cpu()) for name, tensor in own.items())
        assert agent.config.optimiser.learning_rate == member.settings["learning_rate"]
        assert agent.evaluate(2).episodes == 2
        agent.close()


def test_the_table_has_a_row_a_member(result):
    table = result.to_pandas()
    assert table["learning_rate"].tolist() == GRID["learning_rate"]
    assert table["member"].tolist() == [0, 1]
    for row, member in zip(table.to_dict("records"), result.members, strict=True):
        assert (row["steps"], row["updates"], row["return_mean"]) == (member.steps, member.updates, member.return_mean)
        assert (row["evaluation_mean"], row["evaluation_iqm"]) == (member.evaluation.mean, member.evaluation.iqm)
        assert (row["evaluation_ci95_low"], row["evaluation_ci95_high"]) == member.evaluation.ci95


def test_the_table_tells_the_mean_from_the_iqm(result):
    first = result.members[0]
    changed = dataclasses.replace(first, evaluation=dataclasses.replace(first.evaluation, mean=1.0, iqm=2.0))
    [row] = dataclasses.replace(result, members=(changed,)).to_pandas().to_dict("records")
    assert (row["evaluation_mean"], row["evaluation_iqm"]) == (1.0, 2.0)


def test_the_table_without_pandas_says_which_extra(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"pip install 'laser-rl\[pandas\]'"):
        result.to_pandas()


def test_the_report_goes_where_it_is_asked_for(result, tmp_path):
    path = result.report(tmp_path / "new" / "report.html")
    assert path == tmp_path / "new" / "report.html"
    page = read_report(path)
    assert [one["member"] for one in page.run()["members"]] == [one.number for one in result.members]
    assert page.panel("who")["members"] == len(result.members)


def test_a_temporary_directory_lives_as_long_as_its_result():
    result = Sweep("laser/Catch", grid=GRID, **SMALL).run(40)
    folder = result.run_dir
    assert read(folder, ["evaluation"])
    assert not (folder / "checkpoints").exists()  # nobody could go on from it
    del result
    gc.collect()
    assert not folder.exists()


def test_a_temporary_directory_does_not_outlive_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ZeroDivisionError):
        Sweep("laser/Catch", grid=GRID, log_every_updates=1, **SMALL).run(40, callback=lambda _: 1 / 0)
    assert not list(tmp_path.iterdir())


def test_a_run_directory_goes_on(tmp_path):
    def more(steps):
        return Sweep("laser/Catch", grid=GRID, run_dir=tmp_path / "sweep", **SMALL).run(steps)

    one, same = more(100), more(100)
    assert [member.updates for member in same.members] == [member.updates for member in one.members]
    assert [member.evaluation for member in same.members] == [member.evaluation for member in one.members]
    longer = more(200)
    assert all(member.steps >= 200 for member in longer.members)
    with pytest.raises(ConfigError, match=r"was started with loss\.discount"):
        Sweep("laser/Catch", grid=GRID, run_dir=tmp_path / "sweep", discount=0.5, **SMALL).run(100)


def test_the_directory_of_one_agent_is_refused(tmp_path):
    agent = LASER("laser/Catch", run_dir=tmp_path / "run", **SMALL).learn(20)
    agent.close()
    with pytest.raises(ConfigError, match="holds the run of one agent"):
        Sweep("laser/Catch", grid=GRID, run_dir=tmp_path / "run", **SMALL).run(40)
    assert not (tmp_path / "run" / "sweep.json").exists()


@pytest.mark.parametrize(("share", "trusted"), [(True, {0, 1}), (False, {0}), ("none", set())])
def test_what_is_shared(share, trusted):
    result = Sweep("laser/Catch", grid=GRID, share_replay=share, log_every_updates=10, **SMALL).run(200)
    rows = [row for row in read(result.run_dir, ["train"]) if row["member"] == 0]
    sources = {int(name.rsplit("_", 1)[1]) for row in rows for name in row if name.startswith("acceptance_from_")}
    assert sources == trusted


def test_population_based_training():
    steps = Sweep("laser/Catch", grid=GRID, pbt=True, **SMALL).run(60)
    assert steps.exploits == ()  # burn-in and intervals are longer than that
    eager = PbtConfig(burn_in_steps=0, every_episodes=2, margin=0.0, tuned=("learning_rate",))
    result = Sweep("laser/Catch", grid=GRID, pbt=eager, seed=1, **SMALL).run(400)
    assert result.exploits
    last = {exploit.member: exploit.after["learning_rate"] for exploit in result.exploits}
    for number, rate in last.items():
        assert result.members[number].config.optimiser.learning_rate == rate
        assert result.members[number].settings == {"learning_rate": GRID["learning_rate"][number]}  # as it was started


def test_where_population_based_training_comes_from():
    sweep = Sweep("laser/Catch", grid=GRID, pbt=True, steps=5_000)
    assert sweep.config.pbt == recipes.small_pbt(5_000)
    from_recipe = Sweep("laser/Catch", recipe="dmlab-pbt")
    assert from_recipe.config.pbt == recipes.dmlab_pbt("laser/Catch").pbt
    assert Sweep("laser/Catch", recipe="dmlab-pbt", pbt=True).config.pbt == from_recipe.config.pbt
    assert Sweep("laser/Catch", recipe="dmlab-pbt", pbt=False).config.pbt is None
    assert Sweep("laser/Catch", grid=GRID).config.pbt is None


def test_what_members_differ_in():
    drawn = Sweep("laser/Catch", random={"entropy_cost": LogUniform(low=1e-3, high=1e-2)}, draws=4, seed=2).config
    assert len({settings["entropy_cost"] for settings in drawn.settings}) == 4
    listed = Sweep("laser/Catch", members=[{"trust": "off"}, {}]).config
    assert [config.loss.trust for config in listed.configs] == ["off", "implied"]
    demo = Sweep("laser/Catch", recipe="demo", discount=0.9).config
    assert demo.settings == recipes.demo().settings
    assert {config.loss.discount for config in demo.configs} == {0.9}
    instead = Sweep("laser/Catch", recipe="demo", members=[{"entropy_cost": 0.1}]).config
    assert instead.settings == ({"entropy_cost": 0.1},)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "expected one of grid, random and members"),
        ({"grid": GRID, "members": [{}]}, "got grid and members"),
        ({"grid": {"learning_rat": [1]}}, r"did you mean 'optimiser\.learning_rate'"),
        ({"grid": GRID, "discont": 0.9}, r"did you mean 'loss\.discount'"),
        ({"random": {"entropy_cost": LogUniform(low=1e-3, high=1e-2)}}, "random and draws belong together"),
        ({"grid": GRID, "share_replay": "all"}, "share is 'all': input should be 'shared', 'separate' or 'none'"),
        ({"grid": GRID, "recipe": "nothing"}, "there is no recipe 'nothing'"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Sweep("laser/Catch", **arguments)


def test_an_environment_that_exists_already_is_refused():
    with pytest.raises(ConfigError, match="hand in its id or constructor"):
        Sweep(gymnasium.make("CartPole-v1"), grid=GRID)


def test_replays_that_fit_one_by_one_but_not_together_are_refused(monkeypatch):
    def ask(share):
        Sweep("laser/Catch", grid=GRID, share_replay=share, capacity_steps=20_000).run(5)

    monkeypatch.setattr(api, "available_bytes", lambda: 8_000_000)
    ask(True)
    with pytest.raises(ConfigError, match=r"2 members with a replay each .* or share one replay"):
        ask(False)


class Torso(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.linear = nn.Linear(*shape, 12)

    def forward(self, observation):
        return torch.tanh(self.linear(observation))


def test_an_environment_and_a_network_of_ones_own():
    result = Sweep(lambda: gymnasium.make("CartPole-v1"), net=Torso, grid=GRID, **SMALL).run(100)
    weights = [member.network.torso.linear.weight for member in result.members]
    assert weights[0].shape == (12, 4)
    assert not torch.equal(*weights)


def test_members_in_processes_of_their_own_end_as_others_do(tmp_path):
    result = Sweep("laser/Catch", grid=GRID, processes=2, **SMALL).run(200)
    assert [member.settings["learning_rate"] for member in result.members] == GRID["learning_rate"]
    assert all(member.steps >= 200 and member.evaluation.episodes == 3 for member in result.members)
    agent = LASER.load(result.best().save(tmp_path / "best.laser"))
    own, loaded = result.best().network.state_dict(), agent.member.learner.network.state_dict()
    assert all(torch.equal(loaded[name], tensor.cpu()) for name, tensor in own.items())
    agent.close()


def test_callbacks_and_sinks_see_numbers_and_a_callback_may_end_it():
    class Kept(list):
        def write(self, kind, step, update, values):
            self.append((kind, values))

        def flush(self):
            pass

        def close(self):
            pass

    kept = Kept()
    sweep = Sweep("laser/Catch", grid=GRID, sinks=[kept], log_every_updates=5, **SMALL)
    result = sweep.run(50_000, callback=lambda progress: progress.update < 10)
    assert result.interrupted == "a callback"
    assert result.members[0].steps < 1_000
    assert {values["member"] for kind, values in kept if kind == "train"} == {0, 1}
