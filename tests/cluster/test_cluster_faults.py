"""Everything of a run on a cluster is killed, again and again; the run goes on, and what was acknowledged is there once."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from laser_rl import checkpoint
from laser_rl.cluster.supervisor import ClusterSupervisor
from laser_rl.metrics.log import read
from laser_rl.replay.encoded_unrolls import unseal
from laser_rl.replay.memory_layout import unpack
from laser_rl.training.directory import RunDirectory
from laser_rl.training.settings import ClusterSettings
from tests.agent.unroll_witness import Row, UnrollWitness
from tests.cluster.raylets import needs_ray, three_raylets
from tests.cluster.sweeps import kill, pid_of, small_sweep, wait_until

pytestmark = [needs_ray, pytest.mark.slow]
CLUSTER_SWEEP = [
    sys.executable, "-m", "laser_rl", "sweep", "--recipe", "cartpole", "--env", "laser/Catch", "--grid", "learning_rate=1e-3,4e-3",
    "--steps", "1M", "--environment.slots", "3", "--run.checkpoint-every-steps", "300", "--replay.capacity-steps", "2000",
    "--run.evaluate-episodes", "2", "--plain", "--cluster", "local",
]  # fmt: skip
LISTEN = "0A"  # the state of a socket, in /proc/net
# 127.0.0.1, ::1 and ::ffff:127.0.0.1, each word in the order of this machine's bytes
LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
KINDS = ["runner"] * 7 + ["learner"] * 7 + ["shard"] * 4 + ["node"] * 2


@pytest.fixture
def raylets():
    return three_raylets()


class Killer:
    """Kills one thing after the other, each at a random moment after everybody has come back."""

    def __init__(self, supervisor, raylets, kinds, seed):
        self.supervisor, self.raylets, self.dice = supervisor, raylets, random.Random(seed)  # noqa: S311
        self.left, self.killed = list(kinds), []
        self.dice.shuffle(self.left)
        self.look, self.since, self.moment = supervisor._look, 0, 0
        supervisor._look = self.watched

    def everybody_lives(self):
        actors = [actor for place in self.supervisor.placements for actor in place.actors]
        return (
            all(actor.ended() is None and actor.actor is not None and pid_of(actor.actor) for actor in actors)
            and self.shards()
        )

    def shards(self):
        """Those that have reported: not all, since new ones take long on a busy machine, and the run goes on."""
        supervised = self.supervisor.replays.supervisors[0]._by_node.values()
        return [one.shard for one in supervised if one.newest is not None]

    def watched(self):
        steps = int(self.supervisor.known.steps.min())
        if not self.moment and self.everybody_lives():
            self.moment = steps + self.dice.randrange(20, 200)
        if self.left and self.moment and steps >= self.moment and self.everybody_lives():
            kind, self.moment = self.left.pop(), 0
            getattr(self, kind)()
            self.killed.append(kind)
        return self.look()

    def runner(self):
        kill(pid_of(self.dice.choice([one for place in self.supervisor.placements for one in place.runners]).actor))

    def learner(self):
        kill(pid_of(self.dice.choice(self.supervisor.placements).learner.actor))

    def shard(self):
        kill(pid_of(self.dice.choice(self.shards()).actor))

    def node(self):
        self.raylets.lose(self.dice.choice([node for node in self.raylets.nodes() if node != self.raylets.head]))
        self.raylets.add()


def held_by(shards, layout):
    for shard in shards:
        first, end = shard.report().result(60.0).span
        gathered = shard.gather(np.arange(first, end)).result(60.0)
        yield unpack(layout, unseal(layout, gathered.encoded))


def examine(unrolls):
    """Every row of every unroll is what has to be there; unrolls of a slot join, or a runner has begun anew. How many, and their names."""
    witness, names, last, anew = UnrollWitness(), [], {}, 0
    witness.hear(unrolls, contiguous=False)
    for n in range(len(unrolls.member)):
        slot, first = (int(unrolls.member[n]), int(unrolls.slot[n])), Row(unrolls.observation[n][0])
        names.append((*slot, first.seed, first.t))
        if slot in last and not np.array_equal(unrolls.observation[n][0], last[slot]):
            assert int(unrolls.episode[n]) <= 1, f"a gap in the stream of slot {slot}: episode {unrolls.episode[n]}"
            anew += 1
        last[slot] = unrolls.observation[n][-1].copy()
    return names, anew


@pytest.mark.fault(22)
def test_twenty_kills_of_every_kind_in_one_run(raylets, tmp_path, figure):
    config = small_sweep(
        "tests.envs.samples:Telltale",
        rates=(1e-3, 2e-3),
        **{
            "run.steps": 12_000,
            "capacity_steps": 200_000,
            "slots": 4,
            "checkpoint_every_steps": 2_000,
            "evaluate_episodes": 2,
        },
    )
    directory, found = RunDirectory(tmp_path, config), []
    begun = time.monotonic()
    try:
        supervisor = ClusterSupervisor(config, directory, ClusterSettings(runners=1))
        killer, close = Killer(supervisor, raylets, KINDS, seed=5), supervisor.replays.close
        supervisor.replays.close = lambda: (
            found.extend(held_by(supervisor.replays.supervisors[0].shards, supervisor.members[0].layout)),
            close(),
        )
        end = supervisor.run()
    finally:
        directory.close()
    assert killer.left == []
    assert all(member.steps >= 12_000 and member.evaluation is not None for member in end.members)
    examined = [examine(unrolls) for unrolls in found]
    names = [name for own, _ in examined for name in own]
    assert len(names) == len(set(names)), "an unroll is there twice"
    lost = [row for row in read(tmp_path, ("event",)) if row["event"] == "lost"]
    of_shards = sum(int(row["unrolls"]) for row in lost if "unrolls of shard" in str(row["what"]))
    assert sum("of shard" in str(row["what"]) for row in lost) >= KINDS.count("shard") + KINDS.count("node")
    assert checkpoint.latest(tmp_path).step >= 12_000
    counts = {kind: killer.killed.count(kind) for kind in sorted(set(KINDS))}
    said = (
        f"Ray: 20 kills in one run of 2 members ({counts}): 12,000 steps each reached in {time.monotonic() - begun:.0f} s, "
        f"{len(names):,} unrolls held, 0 twice, 0 gaps; {of_shards:,} unrolls lost with shards and said, {len(lost)} losses reported"
    )
    print(said)
    figure(said)


def test_a_lost_head_ends_the_run_with_what_to_do_and_it_goes_on(tmp_path):
    """In a process of its own: Ray would end this one."""
    run = tmp_path / "run"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*CLUSTER_SWEEP, "--out", str(run)], stdout=file, stderr=subprocess.STDOUT, env=environment
        )
    try:
        wait_until(lambda: process.poll() is not None or list(run.glob("checkpoints/step-*")), 300, log.read_text())
        os.kill(head_of(process.pid), signal.SIGKILL)
        status = process.wait(120)
    finally:
        process.kill()
    said = log.read_text()
    print(said[-1500:])
    assert status == 4
    assert f"laser resume {run}" in said
    assert "Traceback" not in said
    newest = checkpoint.newest_step(run)
    resumed = subprocess.run(
        [sys.executable, "-m", "laser_rl", "resume", str(run), "--steps", str(newest + 300), "--plain"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=300,
    )
    assert resumed.returncode == 0, resumed.stderr
    assert "done: 2 members" in resumed.stdout


@pytest.mark.fault(32)
def test_a_cluster_of_this_machine_listens_on_loopback_alone_and_dies_with_its_driver(tmp_path, figure):
    run, log = tmp_path / "run", tmp_path / "log"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*CLUSTER_SWEEP, "--out", str(run)], stdout=file, stderr=subprocess.STDOUT, env=environment
        )
    try:
        wait_until(lambda: process.poll() is not None or list(run.glob("checkpoints/step-*")), 300, log.read_text())
        family = descendants(process.pid)
        listening = {(pid, address) for pid in [process.pid, *family] for address in listens(pid)}
    finally:
        begin = time.monotonic()
        process.kill()
        process.wait(10)
    assert len(listening) > 5, log.read_text()  # head, node and actors
    assert {address for _, address in listening} <= LOOPBACK
    wait_until(lambda: not alive(family), 10, [name for _, name in alive(family).values()])
    took_s = time.monotonic() - begin
    figure(
        f"--cluster local: {len(listening)} sockets of {len({pid for pid, _ in listening})} processes listen, all on loopback; "
        f"kill -9 of the driver: the last of {len(family)} processes gone after {took_s:.1f} s"
    )


def descendants(parent):
    """By process number: when it began and its command line."""
    table, found = {}, [parent]
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            _, above, *rest = (folder / "stat").read_text().rpartition(")")[2].split()
            table[int(folder.name)] = int(above), rest[17], (folder / "cmdline").read_bytes()[:80]
    for pid in found:  # grows meanwhile
        found += [child for child, (above, *_) in table.items() if above == pid]
    return {pid: table[pid][1:] for pid in found[1:]}


def alive(family):
    """Those of them that still are; not zombies."""
    left = {}
    for pid, (began, name) in family.items():
        with contextlib.suppress(OSError):
            state, _, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if state != "Z" and rest[17] == began:
                left[pid] = began, name
    return left


def listens(pid):
    """Addresses of the TCP sockets on which a process listens, as the kernel writes them."""
    sockets = set()
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                sockets.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [row[1].partition(":")[0] for row in rows if row[3] == LISTEN and row[9] in sockets]


def head_of(parent):
    """The process that a cluster's head is: Ray's server of all that is known."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, status = (folder / "cmdline").read_bytes(), (folder / "stat").read_text()
        except OSError:
            continue
        if b"gcs_server" in words and int(status.rpartition(")")[2].split()[1]) == parent:
            return int(folder.name)
    raise AssertionError("the cluster has no head")
