"""What the terminal and TensorBoard show of a sweep."""

import re
import warnings
from io import StringIO

import pytest
from rich.console import Console as Terminal

from laser_rl.metrics.console import Console
from laser_rl.metrics.log import read
from laser_rl.metrics.tensorboard import TensorBoardLog
from tests.metrics.test_sinks import Clock
from tests.metrics.test_sweep_rows import a_sweep, settings_of


def plain(members=3, **options):
    output, clock = StringIO(), Clock()
    terminal = Terminal(file=output, width=80)
    return (
        Console("a [sweep]", 1000, settings_of(members), terminal=terminal, clock=clock, **options),
        output,
        clock,
    )


def live(members=3, width=80, settings=None, **options):
    output, clock = StringIO(), Clock()
    terminal = Terminal(
        file=output, width=width, height=60, force_terminal=True, color_system=None, legacy_windows=False
    )
    settings = settings or settings_of(members)
    return Console("a [sweep]", 1000, settings, terminal=terminal, clock=clock, **options), output, clock


def last_table(output):
    """The cells of each line of the table that was drawn last."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.getvalue().rpartition("a [sweep]")[2])
    return text, [re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if re.match(r"\s+\d", line)]


def write_train(console, member, step=100, **values):
    console.write("train", step, step // 10, {"member": member, **values})


def test_a_sign_of_life_before_any_number():
    assert plain()[1].getvalue() == "a [sweep]\n"
    console, output, _ = live()
    text, lines = last_table(output)
    assert "starting" in text
    assert len(lines) == 3
    console.close()


def test_one_plain_line_for_all_members_every_few_seconds_and_at_the_end():
    console, output, clock = plain()
    for tick in range(36):
        clock.now = tick / 3
        write_train(console, tick % 3, 10 * (tick // 3), return_mean=1.0)
        console.write("episode", 10 * (tick // 3), tick, {"member": tick % 3, "return": 1.0})
    assert output.getvalue().count("\n") == 1 + 3
    console.close()
    console.close()
    lines = output.getvalue().splitlines()[1:]
    assert [re.match(r"step (\d+) of 3,000", line)[1] for line in lines] == ["0", "130", "280", "330"]
    assert "\x1b" not in output.getvalue()


def test_the_line_names_the_best_and_the_worst_and_adds_up_the_rest():
    console, output, clock = plain()
    speeds = {"steps_per_second": 100.0, "updates_per_second": 2.0}
    for member, value in enumerate((20.0, 90.0, 40.0)):
        trusted = {f"acceptance_from_{j}": 0.9 if j == member else 0.1 * (1 + member) for j in range(3)}
        write_train(console, member, 100, return_mean=value, **trusted, **speeds)
    console.write("sweep", 300, 30, {"replay_fill": 0.25})
    clock.now = 9.0
    console.flush()
    assert output.getvalue().splitlines()[-1] == (
        "step 300 of 3,000 (10 %) | update 30 | return mean 50, best 90 (member 1), worst 20 (member 0) "
        "| left 0:00:09 | steps/s 300 | updates/s 6 | replay 25.0 % full"
    )


def test_who_is_done_has_no_speed():
    console, output, _ = plain()
    write_train(console, 0, 1000, steps_per_second=1e6)
    write_train(console, 1, 500, steps_per_second=100.0)
    console.close()
    last = output.getvalue().splitlines()[-1]
    assert "steps/s 100" in last
    assert "left 0:00:15" in last  # (3000 - 1500) / 100


def test_exploits_evaluations_and_one_resume_are_lines_of_their_own():
    console, output, _ = plain()
    write_train(console, 2, 500)
    console.write("event", 40, 4, {"event": "resumed"})
    for member in range(3):
        console.write("event", 40, 4, {"event": "resumed", "member": member})
    console.write("evaluation", 50, 5, {"member": 1, "mean": 498.2, "note": "[bold]x"})
    values = {"before_learning_rate": 3e-4, "after_learning_rate": 3.6e-4}
    console.write("event", 60, 6, {"event": "exploit", "member": 2, "donor": 0, "score": 1.5, "donor_score": 7.0, **values})  # fmt: skip
    console.write("event", 60, 6, {"event": "rolled back", "member": 0, "because": "nan"})
    assert output.getvalue().splitlines()[2:] == [
        "resumed at step 40",
        "member 1: evaluation at step 50: mean 498, note [bold]x",
        "member 2: exploit at step 60: donor 0, score 1.5, donor_score 7, before_learning_rate 0.0003, after_learning_rate 0.00036",
        "member 0: rolled back at step 60: because nan",
    ]
    write_train(console, 2, 45)
    console.close()
    assert "step 170 of 3,000" in output.getvalue().splitlines()[-1]  # 60 + 50 + 60: who went back counts from there


@pytest.mark.parametrize(("members", "width"), [(3, 80), (9, 80), (9, 120)])
def test_the_table_has_a_line_a_member_and_marks_the_best(members, width):
    console, output, _ = live(members, width)
    for k in range(members):
        trusted = {f"acceptance_from_{j}": 0.9 if j == k else 0.5 for j in range(members)}
        write_train(console, k, 100 + k, return_mean=50.0 - abs(k - 1), learning_rate=9.0, **trusted)
    console.close()
    text, lines = last_table(output)
    assert len(lines) == members
    for k, line in enumerate(lines):
        rate, cost = settings_of(members)[k].values()
        mark = "1 best" if k == 1 else str(k)
        value = f"{50 - abs(k - 1)}"
        assert line == [mark, f"{rate:g}, {cost:g}", str(100 + k), str((100 + k) // 10), value, "90.0 %", "50.0 %"]
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width


def test_under_pbt_the_newest_settings_are_shown():
    settings = [{"loss.entropy_cost": 0.01}, {"loss.entropy_cost": 0.02}]
    console, output, _ = live(settings=settings, pbt=True)
    write_train(console, 1, entropy_cost=0.024, learning_rate=7e-4)
    console.close()
    _, lines = last_table(output)
    assert [line[1] for line in lines] == ["0.01", "0.024"]


def test_what_is_not_a_number_is_neither_best_nor_worst():
    console, output, _ = plain()
    for member, value in enumerate((float("nan"), 3.0, 5.0)):
        write_train(console, member, return_mean=value)
    console.close()
    assert "mean 4, best 5 (member 2), worst 3 (member 1)" in output.getvalue()


@pytest.mark.parametrize("make", [plain, live])
def test_a_whole_sweep_goes_through(tmp_path, make):
    console, output, clock = make(9, pbt=True)
    for fields in read(a_sweep(tmp_path, 9, pbt=True)):
        values = {name: value for name, value in fields.items() if name not in {"kind", "step", "update", "time"}}
        console.write(fields["kind"], fields["step"], fields["update"], values)
        clock.now += 0.05
    console.close()
    assert output.getvalue().count("exploit at step") == sum(row.get("event") == "exploit" for row in read(tmp_path))


def test_boards_keep_members_apart(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reader's, not ours
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415

    boards = TensorBoardLog(tmp_path)
    for step in (10, 20, 30):
        for member in (0, 11):
            boards.write("train", step, step, {"member": member, "kl": step / 100 + member})
        boards.write("sweep", step, step, {"replay_fill": step / 100})
    boards.write("event", 20, 20, {"event": "resumed", "member": 0})
    boards.flush()
    boards.close()
    boards.close()

    def scalars(folder, tag):
        reader = EventAccumulator(str(folder))
        reader.Reload()
        assert reader.Tags()["scalars"] == [tag]
        return [(event.step, round(event.value, 6)) for event in reader.Scalars(tag)]

    assert scalars(tmp_path / "members" / "00", "train/kl") == [(10, 0.1), (20, 0.2)]  # only this one went back
    assert scalars(tmp_path / "members" / "11", "train/kl") == [(10, 11.1), (20, 11.2), (30, 11.3)]
    found = tmp_path.rglob("events.*")
    assert sorted(path.parent.relative_to(tmp_path).as_posix() for path in found) == [".", "members/00", "members/11"]
    for old in (tmp_path / "members").rglob("events.*"):
        old.unlink()
    assert scalars(tmp_path, "sweep/replay_fill") == [(10, 0.1), (20, 0.2), (30, 0.3)]
