"""What has to hold of a sweep of telltales, whatever was done to it."""

import contextlib
from collections import Counter
from pathlib import Path

import numpy as np

from laser_rl import checkpoint
from laser_rl.checkpoint.snapshot import grouped
from laser_rl.metrics.log import FILE, read, read_from
from laser_rl.training.build_group import build_members
from laser_rl.training.directory import RunDirectory
from laser_rl.trust import Trust
from tests.agent.unroll_witness import UnrollWitness

MOST_SLOPE = 0.10  # of the memory, over the whole time; or so many bytes, where that is more
MOST_GROWTH = 64e6
FEWEST_SAMPLES = 20


class Found:
    """Problems, worst cases and plain facts."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.facts: list[str] = []
        self.most: Counter[str] = Counter()

    def expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.problems.append(otherwise)

    def worst(self, name: str, value: float) -> None:
        self.most[name] = max(self.most[name], value)


class Memory:
    """Of all processes together, shared pages counted once."""

    def __init__(self) -> None:
        self._samples: list[int] = []

    def sample(self, pids: list[int]) -> None:
        total = 0
        for pid in pids:
            with contextlib.suppress(OSError):  # it ends while we look
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        self._samples.append(1024 * total)

    def judge(self, found: Found) -> None:
        if len(self._samples) < FEWEST_SAMPLES:
            found.facts.append(f"memory: {len(self._samples)} samples only, too few for a slope")
            return
        bytes_ = np.array(self._samples, float)
        growth = float(np.polyfit(np.linspace(0.0, 1.0, len(bytes_)), bytes_, 1)[0])
        middle = float(np.median(bytes_))
        found.facts.append(
            f"memory of all processes: median {middle / 1e6:.0f} MB, {growth / 1e6:+.0f} MB from begin to end by {len(bytes_)} samples"
        )
        found.expect(growth < max(MOST_SLOPE * middle, MOST_GROWTH), f"memory grew by {growth / 1e6:.0f} MB")


def final_state(path: Path, found: Found) -> None:
    """Counts, checksums of every row in the replay, parameters, copies, rows of metrics."""
    loaded = checkpoint.latest(path)
    if loaded is None:
        found.problems.append("there is no checkpoint")
        return
    _replay(path, loaded, found)
    _members(loaded, found)
    _copies(path, loaded, found)
    _rows(path, found)


def _replay(path: Path, loaded: checkpoint.Loaded, found: Found) -> None:
    directory = RunDirectory(path, None)
    try:
        with Trust(code=True).applied():  # the environment of the soak, which its settings name
            member = build_members(directory.settings)[0]
        store = member.replay
        assert store is not None
        directory.fill([store], loaded)
    finally:
        directory.close()
    unrolls, witness = store.export(np.arange(store.first_id, store.next_id)), UnrollWitness()
    try:
        witness.hear(unrolls, contiguous=False)
    except AssertionError as error:
        found.problems.append(f"a row of the replay is not what it was: {error}")
    finite = all(np.isfinite(field).all() for field in (unrolls.observation, unrolls.reward, unrolls.behaviour))
    found.expect(finite, "the replay holds numbers that are none")
    found.expect(
        len(store) * member.layout.steps <= directory.settings.base.replay.capacity_steps, "more than its capacity"
    )
    members = set(unrolls.member.tolist())
    found.expect(
        members == set(range(len(directory.settings.configs))), f"the replay has unrolls of {sorted(members)} only"
    )
    found.facts.append(
        f"replay: {witness.unrolls} unrolls of {len(members)} members, every row checked; {store.next_id} ever"
    )


def _members(loaded: checkpoint.Loaded, found: Found) -> None:
    members = loaded.state["members"]
    steps = [member["training"]["steps"] for member in members]
    updates = [member["learner"]["version"] for member in members]
    found.expect(max(steps) - min(steps) <= 200, f"members are apart: steps {steps}")  # a second's, if they were killed
    for number in range(len(members)):
        network = grouped(loaded.tensors[f"member-{number:02d}"])["network"]
        found.expect(all(bool(t.isfinite().all()) for t in network.values()), f"member {number} has broken parameters")
    found.facts.append(f"steps {steps}, updates {updates}")


def _copies(path: Path, loaded: checkpoint.Loaded, found: Found) -> None:
    history = loaded.state["trainer"]["pbt"]["history"]
    numbers = [record["number"] for record in history]
    found.expect(numbers == list(range(len(numbers))), f"copies are numbered {numbers}")
    found.facts.append(f"{len(numbers)} copies decided")


def _rows(path: Path, found: Found) -> None:
    data = (path / FILE).read_bytes()
    rows, _ = read_from(path / FILE)
    torn = len(data.splitlines()) - len(rows)
    last = {row["member"]: row for row in read(path, ("train",)) if "member" in row}
    dropped = sum(int(row.get("environment_dropped_episodes", 0)) for row in rows if row["kind"] == "train")
    found.expect(dropped > 0, "no episode was ever dropped for a number that was none")
    skipped = {number: int(row.get("skipped_updates", 0)) for number, row in sorted(last.items())}
    found.facts.append(f"{len(rows)} rows, {torn} torn lines; updates skipped by member {skipped}")
