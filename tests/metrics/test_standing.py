"""How members stand, as `laser status` and `laser report` tell it: the newest numbers count, and half-written files do not matter."""

import json
import subprocess
import sys

import pytest

from laser_rl import cli, recipes
from laser_rl.metrics.log import read
from tests.metrics.test_sweep_rows import a_sweep, settings_of, trust
from tests.view.reading import read_report


def with_settings(run_dir, settings):
    """A run directory whose `sweep.json` is a whole one."""
    base = recipes.cartpole("laser/Catch").model_dump(mode="json")
    content = {"format": 1, "base": base, "members": settings, "settings": settings}
    (run_dir / "sweep.json").write_text(json.dumps(content))
    return run_dir


def add(run_dir, *rows):
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def row(step, member, kind="train", **values):
    return {"kind": kind, "step": step, "update": step, "member": member, **values}


@pytest.fixture
def members(capsys):
    def status(run_dir):
        assert cli.main(["status", str(run_dir), "--json"]) == 0
        return json.loads(capsys.readouterr().out)[0]["members"]

    return status


def test_status_says_what_the_rows_say(tmp_path, members):
    with_settings(a_sweep(tmp_path, 3), settings_of(3))
    with (tmp_path / "metrics.jsonl").open("ab") as file:  # while a row is being written
        file.write(b'{"kind": "train", "step": 99000, "update": 990, "member": 1, "retu')
    for member, one in enumerate(members(tmp_path)):
        assert (one["member"], one["steps"], one["updates"], one["exploits"]) == (member, 60_000, 600, 0)
        assert (one["evaluation"], one["evaluation_interval"]) == (100 + member, [90 + member, 110 + member])
        assert one["acceptance_own"] == pytest.approx(trust(member, member), abs=0.02)
        others = [trust(member, j) for j in range(3) if j != member]
        assert one["acceptance_others"] == pytest.approx(sum(others) / 2, abs=0.05)
        assert one["settings"] == settings_of(3)[member]


def test_a_member_that_went_back_has_the_steps_it_went_back_to(tmp_path, members):
    with_settings(a_sweep(tmp_path, 3), settings_of(3))
    add(tmp_path, row(30_000, 1, "event", event="resumed") | {"update": 300})
    found = members(tmp_path)
    assert [one["steps"] for one in found] == [60_000, 30_000, 60_000]
    assert [one["evaluation"] for one in found] == [100, None, 102]


def test_the_newest_numbers_count(tmp_path, members):
    with_settings(tmp_path, [{}, {}])
    assert {(one["steps"], one["return_mean"], one["silent_seconds"]) for one in members(tmp_path)} == {(0, None, None)}
    early = [row(n, 0, acceptance_from_1=0.0, acceptance_from_0=0.9, return_mean=1.0) for n in range(5)]
    late = [row(10 + n, 0, acceptance_from_1=0.4) for n in range(8)]
    last = row(40, 0, acceptance_from_1="nan", return_mean=2.0)
    played = [row(step, 0, "evaluation", mean=mean) for step, mean in ((10, 5.0), (20, 4.0))]
    add(tmp_path, *early, *late, row(30, 0), last, *played, row(50, 1, acceptance_from_1=0.1))
    first, second = members(tmp_path)
    assert (first["return_mean"], first["evaluation"], first["evaluation_interval"]) == (2.0, 4.0, None)
    assert first["acceptance_others"] == pytest.approx(0.4)  # of the last ten rows, those that have it
    assert first["acceptance_own"] is None
    assert (second["acceptance_own"], second["acceptance_others"]) == (0.1, None)


def test_settings_are_those_after_the_last_exploit(tmp_path, members):
    start = [{"optimiser.learning_rate": 1.0, "entropy_cost": 1.0, "trust": "behaviour"} for _ in range(3)]
    with_settings(a_sweep(tmp_path, 3, pbt=True), start)
    for one in members(tmp_path):
        last = [r for r in read(tmp_path) if r.get("event") == "exploit" and r["member"] == one["member"]]
        assert one["exploits"] == len(last) > 1
        assert one["settings"] == {
            "optimiser.learning_rate": last[-1]["after_learning_rate"],
            "entropy_cost": last[-1]["after_entropy_cost"],
            "trust": "behaviour",
        }


@pytest.mark.parametrize("content", [None, "{", "[]", '{"settings": 3}', '{"settings": [1, null]}', "[" * 100_000])
def test_a_report_does_without_settings(tmp_path, content, capsys):
    add(tmp_path, *(row(10, member, entropy=0.5) for member in range(3)))
    if content is not None:
        (tmp_path / "sweep.json").write_text(content)
    assert cli.main(["report", str(tmp_path)]) == 0
    assert [one["member"] for one in read_report(tmp_path / "report.html").run()["members"]] == [0, 1, 2]


def test_standing_imports_nothing_heavy():
    heavy = "('torch', 'numpy', 'pydantic', 'gymnasium', 'logging', 'dataclasses')"
    code = f"import laser_rl.metrics.standing, sys; sys.exit(any(n in sys.modules for n in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_a_report_shows_what_a_member_has_of_a_setting_that_only_others_moved(tmp_path):
    with_settings(tmp_path, [{"learning_rate": 1e-3}, {"learning_rate": 2e-3}])
    moved = {"before_entropy_cost": 0.01, "after_entropy_cost": 0.012}
    add(tmp_path, row(10, 0), row(10, 1), row(20, 1, "event", event="exploit", donor=0, **moved))
    assert cli.main(["report", str(tmp_path)]) == 0
    first, second = (one["settings"] for one in read_report(tmp_path / "report.html").run()["members"])
    began = json.loads((tmp_path / "sweep.json").read_text())["base"]["loss"]["entropy_cost"]
    assert first == {"learning_rate": "0.001", "entropy_cost": f"{began:.6g}"}
    assert second == {"learning_rate": "0.002", "entropy_cost": "0.012"}
