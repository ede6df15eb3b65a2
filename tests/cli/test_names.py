"""Flags by short names, names of other libraries, help, and output that nobody reads: all as a user types it."""

import json
import os
import re
import subprocess
import sys
import zlib

import pytest

from laser_rl import LASER, Sweep, cli, recipes
from laser_rl.config import Config, override, setting_fields
from laser_rl.errors import THEIRS, ConfigError, called_here
from laser_rl.recipes import RECIPES
from laser_rl.training.directory import RunDirectory
from laser_rl.training.settings import SweepConfig

LASER_COMMAND = [sys.executable, "-m", "laser_rl"]


def refusal(capsys, *arguments):
    assert cli.main(list(arguments)) == 2
    error = capsys.readouterr().err
    assert error.startswith("laser: ")
    return error


def test_every_name_of_another_library_leads_to_a_setting_that_exists():
    settings = setting_fields()
    for name, (ours, note) in THEIRS.items():
        assert ours in settings if ours else note
        assert name not in settings
        assert name not in {full.rpartition(".")[2] for full in settings}, f"{name} is one of our own"
        for mentioned in re.findall(r"\b(?:loss|replay|run|network|optimiser|environment)\.\w+", note):
            assert mentioned in settings


@pytest.mark.parametrize("name", THEIRS)
def test_a_name_of_another_library_is_answered_alike_everywhere(name, capsys, tmp_path):
    hint = called_here(name)
    with pytest.raises(ConfigError, match=re.escape(hint)):
        LASER("laser/Catch", recipe="cartpole", **{name: 1})
    assert hint in refusal(capsys, "train", f"--{name.replace('_', '-')}", "1")
    assert hint in refusal(capsys, "sweep", "--recipe", "demo", "--grid", f"{name}=1,2")
    file = tmp_path / "settings.json"
    for values in ({name: 1}, {"loss": {name: 1}}):
        file.write_text(json.dumps(values))
        assert hint in refusal(capsys, "train", "--recipe", "cartpole", "--config", str(file))
    members = {"grid": {"seed": [1]}}
    for values in ({name: 1}, {"grid": {name: [1, 2]}}, {"base": {"loss": {name: 1}}, **members}):
        file.write_text(json.dumps({"recipe": "cartpole", **values}))
        assert hint in refusal(capsys, "sweep", str(file))


def test_a_name_of_another_library_in_a_sweep_of_python():
    with pytest.raises(ConfigError, match=re.escape("gamma is 'loss.discount' here")):
        Sweep("laser/Catch", recipe="cartpole", grid={"gamma": [0.9, 0.99]})


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("--learing-rate", "there is no flag --learing-rate; did you mean --learning-rate?"),
        ("--loss.discont", "did you mean --loss.discount?"),
        ("--dashbord", "did you mean --dashboard?"),
        ("--vidoe-every", "did you mean --video-every?"),
        ("--gama", "gamma is 'loss.discount' here"),
        ("--no-steps", "there is no flag --no-steps"),
        ("--threads", "'threads' can be environment.atari.threads or run.threads; use the full name"),
    ],
)
@pytest.mark.parametrize("command", [["train"], ["sweep"], ["config", "show"]])
def test_a_mistyped_flag_gets_a_hint(command, flag, hint, capsys):
    if flag == "--dashbord" and command[0] == "config":
        pytest.skip("shows nothing in a browser")
    assert hint in refusal(capsys, *command, flag, "1")


def as_flags(config):
    """Every setting of a configuration as a flag, by its last name where only one setting has it."""
    names = list(setting_fields())
    lasts = [name.rpartition(".")[2] for name in names]
    for name, last in zip(names, lasts, strict=True):
        value = config.model_dump()
        for part in name.split("."):
            value = value[part]
        flag = (last if lasts.count(last) == 1 else name).replace("_", "-")
        if isinstance(value, bool):
            section, dot, last_part = flag.rpartition(".")
            yield f"--{section}{dot}{'' if value else 'no-'}{last_part}"
        else:
            words = value if isinstance(value, tuple) else [json.dumps(value) if isinstance(value, dict) else value]
            yield from (f"--{flag}", *map(str, words))


@pytest.mark.parametrize("recipe", ["atari", "continuous", "minatar"])
def test_flags_by_last_names_make_any_configuration_of_any_other(recipe, capsys):
    changed = {"loss.popart": True, "optimiser.epsilon": None, "network.hidden": (7,), "replay.start_from": "12"}
    wanted = override(RECIPES[recipe](), changed)
    assert cli.main(["config", "show", "--json", *as_flags(wanted)]) == 0
    assert Config.model_validate(json.loads(capsys.readouterr().out)) == wanted


def shown(capsys, *arguments):
    assert cli.main(["config", "show", "--json", *arguments]) == 0
    return Config.model_validate_json(capsys.readouterr().out)


def test_the_environment_may_stand_alone_at_any_place(capsys, tmp_path):
    expected = shown(capsys, "--env", "laser/Catch", "--learning-rate", "1e-3")
    assert expected.optimiser.learning_rate == 1e-3
    assert shown(capsys, "laser/Catch", "--learning_rate=1e-3") == expected
    assert shown(capsys, "--optimiser.learning-rate", "1e-3", "laser/Catch") == expected
    file = tmp_path / "settings.yaml"
    file.write_text("optimiser: {learning_rate: 1e-3}")
    assert shown(capsys, str(file), "laser/Catch") == expected
    assert "given twice, laser/Catch and CartPole-v1" in refusal(capsys, "train", "CartPole-v1", "--env", "laser/Catch")
    assert "given twice, laser/Catch and CartPole-v1" in refusal(capsys, "train", "laser/Catch", "CartPole-v1")


def test_a_yes_or_no_takes_a_word_too_and_a_number_must_have_one(capsys):
    for words in (["--popart"], ["--popart", "True"], ["--loss.popart=True"]):
        assert shown(capsys, *words, "laser/Catch").loss.popart is True
    for words in (["--no-graphs"], ["--graphs", "False"], ["--run.no-graphs"]):
        assert shown(capsys, *words).run.graphs is False
    assert "--seed needs a value" in refusal(capsys, "train", "--seed")
    assert "run.seed is -1: input should be" in refusal(capsys, "train", "--recipe", "cartpole", "--seed", "-1")


def test_resume_takes_its_flags_by_any_name_and_no_other_setting(capsys, tmp_path):
    assert "learning_rate stays as it was" in refusal(capsys, "resume", str(tmp_path), "--learning-rate", "1e-3")
    assert "gamma is 'loss.discount' here" in refusal(capsys, "resume", str(tmp_path), "--gamma", "1")
    path = tmp_path / "run"
    small = ["--steps", "100", "--slots", "2", "--unroll-steps", "5", "--evaluate-episodes", "1", "--plain"]
    assert cli.main(["train", "laser/Catch", "--out", str(path), *small]) == 0
    assert cli.main(["resume", "--run.steps", "200", "--devices", "1", str(path), "--plain"]) == 0
    assert "done: 20" in capsys.readouterr().out


def helped(capsys, *arguments):
    assert cli.main(list(arguments)) == 0
    return capsys.readouterr().out


def flags_in(text):
    """What a help says of each flag, by its name with underscores."""
    entries = re.split(r"^  --", text, flags=re.MULTILINE)[1:]
    return {entry.split()[0].replace("-", "_"): " ".join(entry.split("\n\n")[0].split()) for entry in entries}


@pytest.mark.parametrize("command", ["train", "sweep", "config"])
def test_help_shows_what_is_used_and_help_all_everything_as_the_settings_say(command, capsys):
    few = flags_in(helped(capsys, command, "--help"))
    everything = flags_in(helped(capsys, command, "--help-all"))
    assert 14 <= len(few) <= 21
    assert set(few) < set(everything)
    short = {"environment.id": "env", "replay.start_from": "replay_from", "run.video_every_steps": "video_every"}
    for full in setting_fields():
        model = Config
        *sections, last = full.split(".")
        for section in sections:
            model = model.model_fields[section].annotation
        field, text = model.model_fields[last], everything[short.get(full, full if last == "threads" else last)]
        assert " ".join((field.description or "").split()).replace(" ", "") in text.replace(" ", "")
        if field.default_factory is None and field.default not in {None, False}:
            assert text.endswith(f"(default: {field.default})")


def test_help_names_the_words_that_a_flag_takes(capsys):
    text = helped(capsys, "sweep", "--help")
    assert "--search {optuna}" in text
    assert "{auto,on,off}" in helped(capsys, "sweep", "--help-all")


@pytest.mark.parametrize(
    "arguments", [["train", "--help"], ["train", "--help-all"], ["sweep", "--help"], ["resume", "-h"]]
)
def test_help_imports_nothing_heavy(arguments):
    heavy = "{'torch', 'numpy', 'gymnasium', 'tyro'}"
    check = f"import sys; from laser_rl.cli import main; main({arguments}); sys.exit(bool({heavy} & {{*sys.modules}}))"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, timeout=60, check=False).returncode == 0


def status_and_imports(run_dir):
    """What `laser status` prints, and which of these it imports."""
    heavy = "{'torch', 'numpy', 'pydantic', 'gymnasium', 'tyro', 'logging', 'dataclasses'}"
    check = f"import sys; from laser_rl.cli import main; main(['status', {str(run_dir)!r}]); print(*({heavy} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    *printed, imported = done.stdout.removesuffix("\n").split("\n")
    return "\n".join(printed) + done.stderr, set(imported.split())


@pytest.mark.parametrize("members", [1, 2])
def test_status_imports_nothing_heavy(tmp_path, members):
    sweep = SweepConfig(base=Config(), grid={"learning_rate": (1e-3, 2e-3)[:members]} if members > 1 else {})
    RunDirectory(tmp_path, sweep).close()
    printed, imported = status_and_imports(tmp_path)
    assert (printed.count("0 of "), "not begun" in printed) == (members, True)
    assert imported == set()


def test_settings_that_were_edited_are_validated(tmp_path):
    RunDirectory(tmp_path, Config()).close()
    file = tmp_path / "config.json"
    text = file.read_text()
    file.write_text(text.replace('"seed": 0', '"seed": 1'))
    printed, imported = status_and_imports(tmp_path)
    assert ("not begun" in printed, "torch" in imported, "pydantic" in imported) == (True, False, True)
    file.write_text(text.replace('"seed": 0', '"seed": "none"'))
    assert f"laser: {file}: " in status_and_imports(tmp_path)[0]
    RunDirectory(tmp_path, Config(), accept_changes=True).close()
    assert status_and_imports(tmp_path)[1] == set()


SLOW = [pytest.param(words, marks=pytest.mark.slow) for words in (["status", "--help"], ["config", "show"])]


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], *SLOW])
def test_a_command_ends_quietly_when_its_output_is_closed(arguments):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*LASER_COMMAND, *arguments], stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_slots_auto_is_a_number_by_the_cores_from_the_start(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})
    assert override(Config(), {"slots": "auto"}).environment.slots == 48
    assert recipes.by_name("atari").environment.slots == 48
    file = tmp_path / "settings.yaml"
    file.write_text("environment: {id: laser/Catch, slots: auto}")
    for words in (["laser/Catch", "--slots", "auto"], ["--config", str(file)]):
        out = tmp_path / f"run-{len(words)}-{words[0].strip('-').replace('/', '-')}"
        assert cli.main(["train", *words, "--steps", "200", "--out", str(out), "--plain"]) == 0
        assert (
            json.loads((out / "config.json").read_text())["environment"]["slots"] == 48
        )  # a run that goes on elsewhere keeps it
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
    assert recipes.by_name("atari").environment.slots == 256
    with pytest.raises(ConfigError, match="slots"):
        override(Config(), {"slots": "many"})


@pytest.mark.parametrize(
    "settings",
    [b"[]", b"null", b"no JSON", b"[" * 100_000, b'{"environment": {"id": {}}, "recipe": "a", "run": {"steps": "x"}}'],
    ids=["list", "null", "no JSON", "deep", "types"],
)
def test_settings_that_are_forged_with_their_checksum_are_refused_by_status(settings, tmp_path, capsys):
    (tmp_path / "config.json").write_bytes(settings)
    session = {"settings_crc32": zlib.crc32(settings)}
    (tmp_path / "machine.json").write_text(json.dumps({"sessions": [session]}))
    refusal(capsys, "status", str(tmp_path))
