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
    assert cli.main(["docter"]) == 2
    assert capsys.readouterr().err == "laser: there is no command 'docter'; did you mean 'doctor'?\n"
    assert cli.main(["xyz"]) == 2
    assert capsys.readouterr().err == "laser: there is no command 'xyz'; 'laser --help' lists the commands\n"


def test_a_mistyped_flag_suggests_the_right_one(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["evaluate", "run", "--seeds", "3"])
    assert stop.value.code == 2
    assert "--seed" in capsys.readouterr().err


def test_the_command_is_a_module_entry_point():
    command = "import sys; from laser_rl.cli import main; sys.exit(main(['nothing']))"
    assert subprocess.run([sys.executable, "-c", command], capture_output=True, timeout=60, check=False).returncode == 2
