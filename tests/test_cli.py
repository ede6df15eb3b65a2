import subprocess
import sys

import pytest

from laser_rl import __version__, cli


def test_version_and_usage(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"laser {__version__}\n"
    for arguments in ([], ["-h"], ["--help"]):
        assert cli.main(arguments) == 0
        out = capsys.readouterr().out
        assert all(name in out for name in cli.COMMANDS)


def test_short_numbers_are_written_out_only_where_steps_are_counted():
    words = ["--steps", "200k", "--out", "10k", "--replay.capacity-steps=1.5M"]
    assert cli.expand_numbers(words) == ["--steps", "200000", "--out", "10k", "--replay.capacity-steps=1500000"]


def test_a_mistyped_command_suggests_the_right_one(capsys):
    assert cli.main(["thoery"]) == 2
    assert capsys.readouterr().err == "laser: there is no command 'thoery'; did you mean 'theory'?\n"
    assert cli.main(["xyz"]) == 2
    assert capsys.readouterr().err == "laser: there is no command 'xyz'; 'laser --help' lists the commands\n"


def test_a_mistyped_flag_suggests_the_right_one(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["theory", "--seeds", "3"])
    assert stop.value.code == 2
    assert "--seed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bound", "-1"], "bound is -1.0, expected a number above 0"),
        (["--clip-rho", "0"], "clip_rho is 0.0, expected a number above 0"),
        (["--sharpness", "-2"], "sharpness is -2.0, expected a number above 0"),
        (["--discount", "1.5"], "discount is 1.5, expected at least 0 and below 1"),
        (["--states", "0"], "0 states and 3 actions, expected at least one of each"),
    ],
)
def test_bad_numbers_are_refused_without_a_traceback(capsys, arguments, message):
    assert cli.main(["theory", *arguments]) == 2
    assert capsys.readouterr().err == f"laser: {message}\n"


def test_theory_prints_what_the_propositions_say(capsys):
    assert cli.main(["theory", "--states", "3", "--seed", "1"]) == 0
    out = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if line.startswith("│")]
    bias, greed, contraction = rows[:3], rows[3:6], rows[6:]
    for _, own, vtrace, implied, *_ in bias:
        assert vtrace == implied != own  # Prop. 1
    for _, best, distorted, regret, _, share in greed:
        assert (best == distorted) == (float(regret) == 0) == (float(share) == 0)  # Props. 2 and 3
    for estimator, _, _, distance, bound, limit in contraction:
        assert float(distance) <= float(bound)  # Props. 4 and 5
        assert estimator == "vtrace" or float(limit) == 0
    naive, trusted = [float(row[-1]) for row in contraction if row[0] == "vtrace"]
    assert trusted < naive


def test_the_command_is_a_module_entry_point():
    command = "import sys; from laser_rl.cli import main; sys.exit(main(['nothing']))"
    assert subprocess.run([sys.executable, "-c", command], capture_output=True, timeout=60, check=False).returncode == 2
