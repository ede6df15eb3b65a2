"""Hostile files under every name that we load: never executed, refused at once, and nothing of them is waited for or kept in memory."""

import io
import math
import os
import pickle
import shutil
import struct
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
import safetensors.torch
import torch

from laser_rl import LASER, checkpoint, cli
from laser_rl.checkpoint import manifest
from laser_rl.checkpoint.snapshot import grouped, member_name
from laser_rl.cli.flags import begin
from laser_rl.cli.status import status_of
from laser_rl.errors import DamagedRun, UserError
from laser_rl.training.build_group import build_group
from laser_rl.training.directory import RunDirectory
from laser_rl.training.files import read_sweep
from laser_rl.training.member_training import MemberTraining
from laser_rl.training.saving import load_member
from laser_rl.training.trainer import Trainer
from laser_rl.view.report import report
from tests.fuzz.checkpoints import signed
from tests.fuzz.run import limited
from tests.golden import folders
from tests.training.small import build_member

LIMIT_S = 1.0
TENSORS = ["actor-00", "environments-00", "member-00"]
CHECKPOINT = ["manifest.json", "state.json", *(f"{name}.safetensors" for name in TENSORS)]
SETTINGS = ["config.json", "sweep.json", "settings.yaml", "settings.json", "sweep.yaml"]
RECORDS = [
    "metrics.jsonl",
    "machine.json",
    "run.lock",
    "segment",
]  # what is bad in them is left out; so there may be no error
NAMES = [*SETTINGS, *CHECKPOINT, *RECORDS, "agent.safetensors"]


class Place:
    """A run directory with one file in it that somebody else has written."""

    def __init__(self, folder):
        golden = folders()[-1]
        self.run_dir = Path(shutil.copytree(golden / "mlp", folder / "run"))  # makes `folder`, too
        shutil.copy(golden / "sweep" / "sweep.json", self.run_dir)
        shutil.copy(golden / "agent.safetensors", self.run_dir)
        [self.newest] = (self.run_dir / checkpoint.CHECKPOINTS).iterdir()
        [self.segment] = (self.run_dir / checkpoint.REPLAY).iterdir()
        self.manifest = manifest.read(self.newest)
        self.canary = folder / "executed"

    def path(self, name):
        if name == "segment":
            return self.segment
        return (self.newest if name in CHECKPOINT else self.run_dir) / name

    def put(self, name, data):
        """Exchange a file; the manifest is made to say that it belongs there."""
        old = self.manifest
        self.path(name).write_bytes(signed(data) if name == "manifest.json" else data)
        if name == "segment" or (name in CHECKPOINT and name != "manifest.json"):
            files, segments, exact = old.files, old.segments, manifest.entry_of(data)
            if name == "segment":
                first = segments[0]
                segments = (type(first)(first.name, first.first_id, first.count, exact.bytes, exact.sha256),)
            else:
                files = {**files, name: exact}
            (self.newest / "manifest.json").write_bytes(manifest.encode(manifest.Manifest(old.step, files, segments)))

    def read(self, name):
        """As the command does that reads such a file."""
        run_dir, path = self.run_dir, self.path(name)
        readers = {
            "config.json": self.read_config,
            "sweep.json": lambda: read_sweep(run_dir),
            "settings.yaml": lambda: begin(path, "cartpole", None),
            "settings.json": lambda: begin(path, "cartpole", None),
            "sweep.yaml": lambda: begin(path, "cartpole", None, sweep=True),
            "metrics.jsonl": lambda: status_of(run_dir),
            "machine.json": lambda: report(run_dir),
            "run.lock": lambda: (checkpoint.owner(run_dir), checkpoint.RunLock(run_dir).release()),
            "agent.safetensors": lambda: LASER.load(path).member,
        }
        return readers.get(name, self.restore)()

    def read_config(self):
        (self.run_dir / "sweep.json").unlink(missing_ok=True)  # otherwise it is the one that counts
        return read_sweep(self.run_dir)

    def restore(self):
        (self.run_dir / "sweep.json").unlink(missing_ok=True)  # it has served its test
        with closing(RunDirectory(self.run_dir)) as directory, closing(build_group(directory.settings)) as group:
            directory.restore(Trainer(directory.settings, group))


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def refused_within(place, name, seconds=LIMIT_S):
    """How long it took to refuse a file; fails if it was read, or anything in it ran."""
    # Of the processor: other tests run beside this one. That nothing is waited for is seen by the other clock.
    begin_s, worked_s = time.perf_counter(), time.process_time()
    with limited(10 * seconds), suppress(UserError) if name in RECORDS else pytest.raises(UserError):
        place.read(name)
    took, worked = time.perf_counter() - begin_s, time.process_time() - worked_s
    assert not place.canary.exists(), "what was loaded has been executed"
    assert worked < seconds, f"{name} was refused after {worked:.2f} s"
    return took


class Bomb:
    """Whoever unpickles it creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def pickled(canary, how):
    if how == "torch":
        held = io.BytesIO()
        torch.save({"network": Bomb(canary)}, held)
        return held.getvalue()
    return pickle.dumps(Bomb(canary), protocol=how)


@pytest.mark.fault(14)
@pytest.mark.parametrize("name", NAMES)
def test_a_pickle_under_any_name_is_never_executed(place, name, figure):
    took = []
    for how in (0, 4, "torch"):
        place.put(name, pickled(place.canary, how))
        took.append(refused_within(place, name))
    pickle.loads(pickled(place.canary, 4))  # noqa: S301 - the bomb is live: whoever had unpickled it would have been seen
    assert place.canary.exists()
    if name == NAMES[0]:
        figure(f"pickles under {len(NAMES)} names, 3 kinds each, 0 executed")


@pytest.mark.fault(14)
def test_a_hundred_megabytes_of_json_are_refused_unread(tmp_path, figure):
    names, took = [*SETTINGS, "manifest.json", "state.json", "machine.json", "run.lock"], []
    for name in names:
        place = Place(tmp_path / name)
        with place.path(name).open("wb") as file:
            file.write(b'{"a": [' + b"1," * (5 << 20))
            file.truncate(100 << 20)
        took.append(refused_within(place, name))
    figure(f"100 MB of JSON under {len(names)} names refused within {1000 * max(took):.0f} ms")


@pytest.mark.fault(14)
def test_a_giant_header_is_refused(place, figure):
    took = []
    for name in ("member-00.safetensors", "agent.safetensors"):
        for length in (1 << 63, 1 << 40, 99 << 20):
            place.put(name, struct.pack("<Q", length) + b"{" + b" " * (1 << 10))
            took.append(refused_within(place, name))
    figure(f"giant headers refused within {1000 * max(took):.0f} ms")


@pytest.mark.fault(14)
@pytest.mark.parametrize("name", ["member-00.safetensors", "agent.safetensors"])
def test_a_header_of_a_hundred_megabytes_is_refused(place, name):
    place.put(name, struct.pack("<Q", 99 << 20) + b"{" + b" " * (100 << 20))
    refused_within(place, name)


YAML = {
    "object": "!!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path [{canary}]]",
    "new": "!!python/object/new:os.system [touch {canary}]",
    "module": "!!python/module:antigravity",
    "name": "a: !!python/name:os.system",
    "own": "!ruby/object:Gem::Requirement {{}}",
    "laughs": "\n".join(
        ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
        + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 8)]
        + ["loss: {{discount: *a7}}"]  # where a message would repeat it: millions of letters
    ),
    "itself": "loss: &a {{x: *a}}",
    "nested": "[" * 20_000,
    "colons": "seed: " + "1:" * 15_000 + "1",
    "flat": "[" + "1," * 15_000 + "1]",
    "long": "[" + "1," * 150_000 + "1]",
    "bool": "loss: !!bool x",
    "timestamp": "loss: !!timestamp x",
    "int": "loss: !!int ''",
}


@pytest.mark.fault(14)
@pytest.mark.parametrize("name", ["settings.yaml", "sweep.yaml"])
@pytest.mark.parametrize("case", YAML)
def test_yaml_that_executes_explodes_or_holds_itself_is_refused(place, name, case):
    place.path(name).write_text(YAML[case].format(canary=place.canary))
    refused_within(place, name)


@pytest.mark.fault(14)
@pytest.mark.parametrize("name", ["config.json", "manifest.json", "state.json", "member-00.safetensors", "segment"])
def test_a_link_that_leads_out_of_the_run_is_refused(place, name, tmp_path):
    path = place.path(name)
    shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    refused_within(place, name)


@pytest.mark.fault(14)
@pytest.mark.parametrize("name", NAMES)
def test_a_pipe_is_not_waited_for(place, name):
    path = place.path(name)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    refused_within(place, name)


@pytest.mark.fault(14)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["member-00.safetensors", "agent.safetensors"])
def test_weights_that_are_not_finite_are_refused(place, name, value, capsys, figure):
    path = place.path(name)
    with safetensors.safe_open(path, "pt") as file:
        about = file.metadata()
    tensors = safetensors.torch.load_file(path)
    tensors["policy_head.weight" if name == "agent.safetensors" else "network/policy_head.weight"][0, 0] = value
    place.put(name, safetensors.torch.save(tensors, metadata=about))
    begin_s = time.perf_counter()
    if name == "agent.safetensors":
        with pytest.raises(DamagedRun, match=r"policy_head\.weight holds 1 numbers of 16 that are not finite"):
            LASER.load(path).evaluate(1)
    else:
        (place.run_dir / "sweep.json").unlink()
        assert cli.main(["evaluate", str(place.run_dir)]) == 3
        assert "policy_head.weight holds 1 numbers of 16 that are not finite" in capsys.readouterr().err
    took = time.perf_counter() - begin_s
    if math.isnan(value) and name == "member-00.safetensors":
        figure(f"NaN weights refused in {1000 * took:.0f} ms")


@pytest.mark.fault(14)
def test_a_state_to_go_back_to_that_is_not_finite_is_refused(place):
    tensors = safetensors.torch.load_file(place.path("member-00.safetensors"))
    tensors["good/value"][3] = torch.nan
    place.put("member-00.safetensors", safetensors.torch.save(tensors))
    with pytest.raises(DamagedRun, match="value of the last state that learned is not finite"):
        place.restore()


@pytest.mark.fault(14)
@pytest.mark.parametrize("name", ["../agent.safetensors", "/etc/hostname"])
def test_a_manifest_that_names_files_elsewhere_is_refused(place, name):
    old = manifest.read(place.newest)
    files = {
        **old.files,
        name: manifest.entry_of((place.newest / name).read_bytes() if Path(place.newest / name).exists() else b""),
    }
    place.put("manifest.json", manifest.encode(manifest.Manifest(old.step, files, old.segments)))
    with pytest.raises(DamagedRun, match="expected the name of a file in the run directory"):
        place.restore()


@pytest.mark.fault(14)
@pytest.mark.parametrize("size", [1 << 63, 1 << 50])
def test_a_size_that_a_manifest_only_claims_is_not_allocated(place, size):
    old = place.manifest
    files = {**old.files, "member-00.safetensors": manifest.FileEntry(size, "0" * 64)}
    place.put("manifest.json", manifest.encode(manifest.Manifest(old.step, files, old.segments)))
    refused_within(place, "manifest.json")


def test_what_is_whole_is_read(place):
    """Otherwise every test here would be passed by a reader that refuses everything."""
    for name in ("config.json", "sweep.json", *RECORDS, "agent.safetensors", *CHECKPOINT):
        place.read(name)


def test_a_state_that_verifies_and_does_not_fit_is_refused(place):
    member = build_member(read_sweep(place.run_dir).base)
    loaded = checkpoint.latest(place.run_dir)
    with closing(member.actor.environments), pytest.raises(KeyError):
        load_member(MemberTraining(member), grouped(loaded.tensors[member_name(0)]), {})
    place.put("state.json", b"{}")
    with pytest.raises(DamagedRun, match=r"does not hold what is needed here \(KeyError"):
        place.restore()
