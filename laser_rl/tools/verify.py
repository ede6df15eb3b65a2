"""`laser verify`: is every file of a run or sweep what was written? Reads only, and repairs nothing."""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import tyro

from laser_rl import checkpoint
from laser_rl.checkpoint import CHECKPOINTS, REPLAY, SegmentEntry, manifest
from laser_rl.checkpoint.guarded import Damaged, Unreadable, names_in, open_plain, reading
from laser_rl.checkpoint.segments import SEGMENT, salvaged, verify_segment
from laser_rl.checkpoint.snapshot import unfinished
from laser_rl.errors import ConfigError, DamagedRun, UserError
from laser_rl.metrics import machine
from laser_rl.metrics.log import FILE, pieces
from laser_rl.metrics.rows import rows_in
from laser_rl.training.files import CONFIG, SWEEP, changes, is_sweep, read_sweep

ROW_BEGINS = b'{"kind": "'  # so does what is left of one that was cut off


@dataclass(frozen=True)
class FileFinding:
    """The condition of one file of a run directory."""

    file: str  # in the run directory
    state: Literal["whole", "damaged", "changed", "unreadable", "left over"]
    detail: str


@dataclass(frozen=True)
class Verify:
    """Check every file of runs and sweeps: settings, metrics, checkpoints, replay. A line a file.

    Exit status 3 if one is damaged or was changed, 6 if one cannot be read.
    """

    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of runs or sweeps."""
    json: bool = False
    """Everything as JSON, a list with one object a directory."""

    def __call__(self) -> int:
        found = {run_dir: list(findings(run_dir)) for run_dir in self.run_dirs}
        if self.json:
            listed = [{"run_dir": str(path), "files": [asdict(one) for one in files]} for path, files in found.items()]
            print(json.dumps(listed, indent=2))
        else:
            print("\n\n".join(_text(path, files) for path, files in found.items()))
        states = {one.state for files in found.values() for one in files}
        if states & {"damaged", "changed"}:
            return DamagedRun.exit_status
        return Unreadable.exit_status if "unreadable" in states else 0


def findings(run_dir: Path) -> Iterator[FileFinding]:
    """Every file that a run would need to go on, and what a dead writer left; ConfigError if it is no run directory.

    Of a run that goes on, files that it removes meanwhile are left out.
    """
    settings = SWEEP if is_sweep(run_dir) else CONFIG
    if not (run_dir / settings).exists():
        raise ConfigError(f"{run_dir} is no run directory: it has neither {CONFIG} nor {SWEEP}")
    yield _compared(run_dir, _checked(settings, partial(_settings, run_dir)))
    for name, check in ((FILE, _metrics), (machine.FILE, _machine)):
        if (run_dir / name).exists():
            yield _checked(name, partial(check, run_dir))
    segments: dict[str, SegmentEntry] = {}
    goes_on = checkpoint.owner(run_dir) is not None
    for name in (name for name in names_in(run_dir / CHECKPOINTS) if name.startswith("step-")):
        folder, shown = run_dir / CHECKPOINTS / name, f"{CHECKPOINTS}/{name}"
        found = _checked(shown, partial(_checkpoint, folder, segments))
        if not name.removeprefix("step-").isdecimal():
            yield FileFinding(shown, "left over", "is not used any more")
        elif found.state == "whole" or folder.exists():
            yield found
    for entry in sorted(segments.values(), key=lambda entry: entry.first_id):
        found = _checked(f"{REPLAY}/{entry.name}", partial(_segment, run_dir / REPLAY, entry))
        if found.state == "whole" or not goes_on or (run_dir / REPLAY / entry.name).exists():
            yield found
    if not goes_on:  # what a living writer has not finished yet looks the same
        yield from _left_over(run_dir, segments)


def _left_over(run_dir: Path, named: Collection[str]) -> Iterator[FileFinding]:
    for path in unfinished(run_dir):
        shown = path.relative_to(run_dir).as_posix()
        yield FileFinding(shown, "left over", "was not finished; the next start removes it")
    for name in names_in(run_dir / REPLAY):
        if SEGMENT.fullmatch(name) and name not in named:
            yield FileFinding(f"{REPLAY}/{name}", "left over", "no checkpoint that can be read names it")


def _checked(name: str, check: Callable[[], str]) -> FileFinding:
    try:
        return FileFinding(name, "whole", check())
    except Unreadable as problem:
        return FileFinding(name, "unreadable", problem.why)
    except (UserError, OSError) as problem:
        return FileFinding(name, "damaged", problem.why if isinstance(problem, Damaged) else str(problem))


def _compared(run_dir: Path, found: FileFinding) -> FileFinding:
    """Settings beside those in the newest checkpoint, which its manifest covers."""
    try:
        differing = changes(run_dir) if found.state == "whole" else []
    except (UserError, OSError) as problem:  # of a checkpoint, which is named by itself
        return replace(found, detail=f"{found.detail}; not compared with a checkpoint: {problem}")
    if differing is None:
        return replace(found, detail=f"{found.detail}; no checkpoint says what it has to be")
    said = "; ".join(map(str, differing))
    if any(not one.allowed for one in differing):
        return replace(found, state="changed", detail=f"{said}; 'laser resume' asks for --accept-changes")
    return replace(found, detail=f"{found.detail}; {said}") if differing else found


def _settings(run_dir: Path) -> str:
    sweep = read_sweep(run_dir)
    members = f"{len(sweep.settings)} members on " if is_sweep(run_dir) else ""
    return f"{members}{sweep.base.environment.id}"


def _metrics(run_dir: Path) -> str:
    """Half a line is what a kill or a full disk leaves; anything else that is no row is damage."""
    path, rows, torn, foreign = run_dir / FILE, 0, 0, 0
    with reading(path), open_plain(path) as file:
        for piece in pieces(file):
            lines = [line for line in piece.split(b"\n") if line]
            broken = [line for line in lines if not piece.endswith(b"\n") or not rows_in(line)]
            rows += len(lines) - len(broken)
            torn += len(broken)
            foreign += sum(not (line.startswith(ROW_BEGINS) or ROW_BEGINS.startswith(line)) for line in broken)
    if foreign:
        raise Damaged(path, f"has {foreign:,} lines that are no rows, beside {rows:,} rows")
    return f"{rows:,} rows" + (f", {torn:,} cut off" if torn else "")


def _machine(run_dir: Path) -> str:
    sessions = machine.sessions(run_dir)
    if not sessions:
        raise Damaged(run_dir / machine.FILE, "says of no session on which machine it was")
    return f"{len(sessions):,} sessions"


def _checkpoint(folder: Path, named: dict[str, SegmentEntry]) -> str:
    """All but its segments, which several share."""
    loaded = checkpoint.load_snapshot(folder, replay="unread")
    named |= {entry.name: entry for entry in loaded.segments}
    size = sum(entry.bytes for entry in manifest.read(folder).files.values())
    return f"{len(loaded.tensors) + 1} files, {size / 1e6:,.1f} MB, {len(loaded.segments)} segments"


def _segment(folder: Path, entry: SegmentEntry) -> str:
    try:
        verify_segment(folder, entry)
    except Damaged as problem:
        readable = sum(1 for _ in salvaged(folder, entry))
        why = f"{problem.why}; {readable:,} of {entry.count:,} unrolls can be read, and a resume takes those"
        raise Damaged(problem.path, why) from problem
    return f"{entry.count:,} unrolls, {entry.bytes / 1e6:,.1f} MB"


def _text(run_dir: Path, files: Sequence[FileFinding]) -> str:
    width = max(len(one.file) for one in files)
    bad = sum(one.state not in {"whole", "left over"} for one in files)
    lines = [f"{one.state:<10}  {one.file:<{width}}  {one.detail}" for one in files]
    verdict = f"{bad} of {len(files)} files are damaged, changed or unreadable"
    return "\n".join([f"{run_dir}:", *lines, verdict if bad else f"all {len(files)} files are in order"])
