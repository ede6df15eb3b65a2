"""Returns of a run in buckets."""

import pytest

from laser_rl.errors import ConfigError
from laser_rl.research.experiment import EXPERIMENTS, planned, shrunk, suite_of
from laser_rl.research.protocol import curve_lines
from laser_rl.research.run_experiments import executed, read_part
from laser_rl.training.trainer import Trainer


def episode(step, value, member=0, update=0, **more):
    return {"kind": "episode", "member": member, "step": step, "update": update, "return": value, **more}


def test_an_episode_counts_where_it_ended():
    rows = [episode(10, 1.0, update=1), episode(11, 2.0, update=2), episode(20, 4.0, update=3), episode(33, 8.0)]
    rows += [{"kind": "train", "member": 0, "step": 12, "update": 2, "acceptance": share} for share in (0.5, 1.0)]
    rows += [episode(5, 100.0, member=1)]
    found = curve_lines(rows, members=2, steps=30, bucket_steps=10)
    assert [line["step"] for line in found] == [10, 20, 30]
    assert [line["worst"] for line in found] == ["1", "3", "8"]  # a last turn may end after the last step
    assert [line["best"] for line in found] == ["100"] * 3  # the last known return of the other member
    assert [line["episodes"] for line in found] == [2, 2, 1]
    assert [line["update"] for line in found] == [1, 3, 0]
    assert [line["acceptance"] for line in found] == ["", "0.75", ""]


def test_of_a_mixture_the_value_is_the_median_score():
    tasks = ("laser/Catch", "laser/TMaze-5", "laser/TMaze-9")  # random play: -0.6, 0, 0; best: 1
    rows = [episode(1, 0.2, task=tasks[0]), episode(2, 0.9, task=tasks[1]), episode(3, -1.0, task=tasks[2])]
    rows += [episode(11, 1.0, task=tasks[2])]
    found = curve_lines(rows, members=1, steps=20, bucket_steps=10, tasks=tasks)
    assert [line["mean"] for line in found] == [
        "0.5",
        "0.9",
    ]  # of (0.5, 0.9, -1), then of (0.5, 0.9, 1): what is unknown is carried


@pytest.mark.parametrize(
    "text", ["{", '{"seconds": 1.0, "made_with": ""}', '{"seconds": 1.0, "made_with": "", "lines": [1]}']
)
def test_a_damaged_part_is_refused(text, tmp_path):
    path = tmp_path / "part.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="remove it"):
        read_part(path)


def test_a_sweep_is_one_line_a_bucket():
    rows = [episode(5, 1.0, update=2), episode(15, 3.0, update=4), episode(12, 7.0, member=1, update=9)]
    first, second, third = curve_lines(rows, members=2, steps=30, bucket_steps=10)
    assert (first["mean"], first["update"], first["episodes"]) == ("1", 2, 1)
    assert (second["mean"], second["best"], second["worst"], second["update"]) == ("5", "7", "3", 13)
    assert (third["mean"], third["episodes"]) == ("5", 0)


def test_ratio_has_the_updates_that_it_says():
    task = shrunk(suite_of("small").task("catch"))
    runs = {run.condition: run for run in planned(EXPERIMENTS["ratio"], [task], [0])}
    updates = {}
    for name in ("0", "7/8", "pure replay", "0, same batch", "1/2, same batch"):
        updates[name] = executed(runs[name].sweep, task.bucket_steps)[-1]["update"]
    assert updates["0"] == updates["7/8"] == updates["pure replay"]
    assert updates["0, same batch"] == pytest.approx(updates["7/8"] / 8, abs=3)  # of three members, each rounded down
    assert updates["1/2, same batch"] == pytest.approx(updates["7/8"] / 4, abs=3)


def test_a_run_with_a_directory_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    task = shrunk(suite_of("small").task("catch"))
    sweep = planned(EXPERIMENTS["pbt"], [task], [0])[0].sweep
    run = sweep.base.run.model_copy(update={"checkpoint_every_steps": 100, "evaluate_episodes": 1})
    sweep = sweep.model_copy(update={"base": sweep.base.model_copy(update={"run": run})})

    def stop_at(training):
        training.between_before()
        if training.steps >= 200:
            training.stop.request("SIGTERM")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "between_before", Trainer.between, raising=False)
        patch.setattr(Trainer, "between", stop_at)
        with pytest.raises(KeyboardInterrupt):
            executed(sweep, task.bucket_steps, tmp_path / "run")
    resumed = executed(sweep, task.bucket_steps, tmp_path / "run")
    whole = executed(sweep, task.bucket_steps)
    assert resumed == whole
