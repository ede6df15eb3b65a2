"""The faults we survive, and what has to be shown for each: rows of `docs/reliability.md`."""

from typing import NamedTuple


class Row(NamedTuple):
    """One kind of fault."""

    fault: str
    promise: str
    shown: str = ""
    """The page shows the first figure that contains this; all figures are in `docs/reliability.csv`."""


ROWS: dict[int, Row] = {
    1: Row(
        "an environment worker is killed, 100 times, also within episodes",
        "the updates that were asked for; no partial or mixed episode; back within 2 s; no zombie",
    ),
    2: Row(
        "an environment hangs: stopped, or asleep for ever in step or reset",
        "replaced within its time-out + 1 s; the others never idle for more than 1 s; its unroll discarded",
    ),
    3: Row(
        "an environment raises in 1 % of its steps; a constructor that always raises",
        "the first completes, each error logged once; the second ends within 10 s with the error, after at most 5 restarts",
    ),
    4: Row(
        "NaN or infinity in an observation or reward",
        "none in the replay; `fail` names environment, step and key; `drop` discards the episode and counts it",
    ),
    5: Row(
        "wrong type, shape or range of an observation, no reward, four values, a changed action space, objects in info",
        "one error with expected and got, before the first update",
        "serial, process",
    ),
    6: Row(
        "the whole run is killed at 20 random moments and resumed",
        "newest whole checkpoint; no more lost than an interval; the end is reached",
        "20 kills",
    ),
    7: Row(
        "killed at each point of the checkpoint writer, and 50 times at random",
        "always loadable, never older than the last complete one, leftovers removed",
    ),
    8: Row(
        "every file of the newest checkpoint truncated, flipped, deleted, emptied, of a newer version",
        "the previous one is used and the file is named; all damaged: status 3 and what to do",
        "single agent",
    ),
    9: Row(
        "half a run, killed, resumed",
        "the same SHA-256 of parameters, optimiser, random numbers, replay, PBT and metrics; MLP and LSTM, 1 and 3 members",
        "MLP, 3 members",
    ),
    10: Row(
        "the disk is full at a checkpoint, a replay segment, metrics, a video",
        "a clear message, the previous checkpoint whole, it goes on when there is space",
    ),
    11: Row(
        "a torn or zeroed replay segment",
        "only damaged episodes are dropped, and counted; none is ever sampled",
        "300 replays",
    ),
    12: Row(
        "4 writers and 4 readers on one replay",
        "never more than its capacity; exact order; no mixed row; uniform (chi-square p > 0.001); exact counts",
    ),
    13: Row(
        "learner stopped 10 s, actors stopped 10 s, 200 random pauses",
        "flat memory, no deadlock, the waiting side names the blocking side within 5 s, exact counts in every batch",
        "learner stopped",
    ),
    14: Row(
        "pickles under every name we load, giant headers and JSON, `../`, YAML tags, links, NaN weights",
        "never executed, refused within 1 s; no way to execute data in our sources",
        "pickles under",
    ),
    15: Row(
        "dashboard: every route without a token, foreign Host and Origin, traversal, scripts in names",
        "401, 400, 403, 404, escaped; loopback only",
        "wrong credentials",
    ),
    16: Row(
        "dashboard: 10 members with 100,000 points, 20 clients of which 5 never read",
        "p95 below 200 ms; training slows by less than 3 %; slow clients dropped; killing it leaves training alone",
        "never read",
    ),
    17: Row("30,000 updates with a full replay", "memory, files, threads and shared memory stay flat", "local, "),
    18: Row(
        "the process group is killed, 20 times",
        "no child after 3 s; no shared memory is left behind",
        "20 kills",
    ),
    19: Row(
        "SIGTERM, Ctrl-C, Ctrl-C twice, a closed terminal",
        "a checkpoint, the end within 10 s with status 143 or 130, and the command that resumes",
        "serial, training: SIGTERM",
    ),
    20: Row(
        "PBT: NaN scores, a donor killed in the copy, a resume between decision and copy",
        "NaN is never a donor; a copy is all or nothing; the history of the uninterrupted run",
        "donors killed",
    ),
    21: Row(
        "one member diverges",
        "its updates are skipped and counted, it is rolled back, the others are unaffected",
    ),
    22: Row(
        "20,000 unrolls with 50 kills of their writers",
        "none twice in the replay, no gap among those that were acknowledged",
    ),
    23: Row(
        "two runs in one directory; status and report while it trains",
        "the second is refused with the owner's pid; a stale lock is taken over; readers never fail",
        "local: second",
    ),
    24: Row(
        "checkpoints of each released format",
        "load and give the stored logits; an unknown key: the nearest name; a newer format: please upgrade",
    ),
    25: Row("no network at all", "everything works, no connection is tried"),
    26: Row(
        "a run directory, `.laser` file, sweep file or hub folder whose environment, network or relevance names code",
        "no command or method imports or calls it unless the caller passes it or says `--trust-code`",
    ),
    27: Row(
        "a file of a run cannot be read for a moment: EACCES, EIO, ESTALE at start, at resume, while pruning",
        "nothing is deleted because it could not be read; the run stops with a message and every byte stays",
    ),
    28: Row(
        "`--out` on a directory that is not ours, with and without `--fresh`; links inside a run directory",
        "refused without `--fresh`; with it only names that we write are removed, and links stay links",
    ),
    29: Row(
        "two runs in one directory from two PID namespaces, or over two mounts of it",
        "the second is refused: the kernel's lock decides",
    ),
    30: Row(
        "a sweep process is stopped while it holds the replay's lock, also with PBT orders pending",
        "the others go on or name the process that blocks them; after the limit it is replaced; SIGTERM ends all within 10 s",
    ),
    31: Row(
        "an environment calls `sys.exit(0)` or `os._exit(0)`, or raises SystemExit or KeyboardInterrupt",
        "never reported as finished: status 4 and the steps that are missing",
    ),
    32: Row(
        "`--cluster local`, and its driver killed",
        "nothing listens on another address than loopback; no process of ours or Ray's lives after 10 s",
    ),
    33: Row(
        "logs of a week: 60 GB of rows",
        "episode rows are thinned, in TensorBoard too; status, report and verify stay below 300 MB",
        "status:",
    ),
    34: Row(
        "config.json or sweep.json is changed by hand after the start",
        "`verify` names the setting; `resume` refuses without the flag that means it",
    ),
    35: Row(
        "the last evaluation fails: environment, disk, signal",
        "the run was saved before it; the status says that only the evaluation is missing",
    ),
    36: Row(
        "finite observations outside their Box",
        "one warning with the value and the bound; never an end of training or evaluation",
    ),
    37: Row(
        "a read-only folder, a file as `--out`, a name too long, no UTF-8, a missing parent, a full disk at the report",
        "one line and a proper status; no traceback and no left-over temporary file",
    ),
    38: Row(
        "wrong arguments of `learn`, `predict`, `evaluate`, `save`; Ctrl-C in Python",
        "one sentence; Ctrl-C saves what there is and raises KeyboardInterrupt",
    ),
}
