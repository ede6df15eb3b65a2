"""`config.json` and `sweep.json` are for people to read. What a run goes on with is compared with its checkpoint."""

import json
import shutil

import pytest

from laser_rl import checkpoint, cli
from tests.faults.test_checkpoint_faults import flipped
from tests.faults.test_unreadable import tree
from tests.training.small import finish, small
from tests.training.test_sweeps import in_directory, small_sweep


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("changed")
    finish(small(steps=100), folder / "run")
    in_directory(small_sweep(steps=60), folder / "sweep")
    return folder


@pytest.fixture(params=["run", "sweep"])
def run_dir(request, originals, tmp_path):
    return shutil.copytree(originals / request.param, tmp_path / "copy")


def edit(run_dir, change):
    """As with an editor: whatever `change` does to the base's sections."""
    path = next(run_dir / name for name in ("config.json", "sweep.json") if (run_dir / name).exists())
    values = json.loads(path.read_text())
    change(values.get("base", values))
    path.write_text(json.dumps(values, indent=4))
    return path.name


def verified(run_dir, capsys):
    capsys.readouterr()
    status = cli.main(["verify", str(run_dir), "--json"])
    [found] = json.loads(capsys.readouterr().out)
    return status, {one["file"]: one for one in found["files"]}


@pytest.mark.fault(34)
@pytest.mark.parametrize(("section", "name", "before", "after"), [
    ("loss", "discount", 0.99, 0.19),
    ("optimiser", "learning_rate", None, 0.5),
    ("environment", "slots", 3, 4),
    ("run", "seed", None, 12345),
])  # fmt: skip
def test_a_setting_changed_by_hand_is_named_and_refused(run_dir, capsys, section, name, before, after, figure):
    def change(sections):
        assert before is None or sections[section][name] == before
        sections[section][name] = after

    file = edit(run_dir, change)
    kept = tree(run_dir)
    status, found = verified(run_dir, capsys)
    assert (status, found[file]["state"]) == (3, "changed")
    assert f"{section}.{name} is {after}" in found[file]["detail"]
    assert cli.main(["resume", str(run_dir), "--steps", "200"]) == 2
    said = capsys.readouterr().err
    assert f"started with {section}.{name} = " in said
    assert f", not {after};" in said
    assert "--accept-changes" in said
    assert tree(run_dir) == kept
    figure(f"{file}, {section}.{name}: named by verify, refused by resume")


@pytest.mark.fault(34)
def test_with_the_flag_it_goes_on_and_the_next_checkpoint_holds_the_change(run_dir, capsys):
    edit(run_dir, lambda sections: sections["loss"].update(discount=0.19))
    assert cli.main(["resume", str(run_dir), "--steps", "120", "--accept-changes", "--plain"]) == 0
    sweep = run_dir / "sweep.json"
    values = json.loads((sweep if sweep.exists() else run_dir / "config.json").read_text())
    assert values.get("base", values)["loss"]["discount"] == 0.19
    assert verified(run_dir, capsys)[0] == 0


def test_what_may_change_is_named_but_no_damage(run_dir, capsys):
    file = edit(run_dir, lambda sections: sections["run"].update(steps=120))
    status, found = verified(run_dir, capsys)
    assert (status, found[file]["state"]) == (0, "whole")
    assert "run.steps is 120" in found[file]["detail"]
    assert cli.main(["resume", str(run_dir), "--plain"]) == 0


@pytest.mark.fault(34)
def test_the_members_of_a_sweep_are_covered(originals, tmp_path, capsys):
    run_dir = shutil.copytree(originals / "sweep", tmp_path / "copy")
    values = json.loads((run_dir / "sweep.json").read_text())
    values["grid"]["learning_rate"][1] = 0.5
    (run_dir / "sweep.json").write_text(json.dumps(values))
    status, found = verified(run_dir, capsys)
    assert (status, found["sweep.json"]["state"]) == (3, "changed")
    assert "grid.learning_rate" in found["sweep.json"]["detail"]
    assert cli.main(["resume", str(run_dir)]) == 2


def test_the_values_are_under_the_manifests_checksum(run_dir, capsys):
    state = checkpoint.latest(run_dir).path / "state.json"
    assert "settings" in json.loads(state.read_text())
    flipped(state)
    assert verified(run_dir, capsys)[0] == 3
