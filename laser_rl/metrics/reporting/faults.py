"""What a reader must not overlook: skipped updates, parameters that were rolled back, environments that failed, void rows."""

from laser_rl.metrics.reporting.document import Notice
from laser_rl.metrics.reporting.subject import Subject

_COUNTERS = {
    "skipped_updates": "{n} updates were skipped, because their gradient was not finite",
    "rollbacks": "{n} times the parameters were rolled back to the last ones that learned",
    "environment_restarts": "{n} environment workers were replaced",
    "environment_timeouts": "{n} times an environment did not answer in time",
    "environment_errors": "{n} times an environment raised an error",
    "environment_dropped_episodes": "{n} episodes were dropped, because of a bad value or a broken worker",
    "environment_lost_episodes": "{n} open episodes could not be rebuilt when the run was resumed",
}
_WINDOW = 100
_MOST_MEMBERS = 12


def notices(subject: Subject) -> list[Notice]:
    """All of them, or one that says that there is nothing."""
    found = [*_state(subject), *_counted(subject), *_resumed(subject)]
    bad = subject.condensed.not_finite
    if bad:
        which = ", ".join(f"{name} ({count:,} rows)" for name, count in sorted(bad.items()))
        found.append(Notice(f"Numbers of training that are not finite, left out of the charts: {which}."))
    warned = any(one.level == "warning" for one in found)
    calm = "No update was skipped, nothing was rolled back, no environment failed, and no number was not finite."
    return found if warned else [Notice(calm, "fine"), *found]


def _state(subject: Subject) -> list[Notice]:
    if subject.running:
        return [Notice("The run goes on; these are its numbers up to its last row.", "note")]
    if not subject.rows:
        return [Notice("There are no rows yet: nothing has been learned, or the log is missing.")]
    found = []
    if subject.state.startswith("unfinished"):
        found.append(Notice(f"This directory is {subject.state}. Nothing here is a final result."))
    episodes = {one.member: _episodes(subject, one.member) for one in subject.members}
    # Rows without such a count but with returns: of an older version, which did not say.
    told = {one.member for one in subject.members if episodes[one.member] or one.return_mean is None}
    few = {member: count for member, count in episodes.items() if count < _WINDOW and member in told}
    if few:
        whose = _whose(few) if subject.is_sweep else f"{next(iter(few.values()))}"
        found.append(
            Notice(
                f"Fewer than {_WINDOW} episodes have ended: {whose}. Returns are means over those there are.", "note"
            )
        )
    return found


def _episodes(subject: Subject, member: int) -> int:
    counted = subject.curve("episodes", member=member)[1]
    return max(len(subject.curve("return", "episode", member)[0]), int(counted.max(initial=0)))


def _counted(subject: Subject) -> list[Notice]:
    found = []
    for name, sentence in _COUNTERS.items():
        counts = {one.member: subject.total(name, one.member) for one in subject.members}
        counts = {member: count for member, count in counts.items() if count}
        if counts:
            whose = f": {_whose(counts)}" if subject.is_sweep else ""
            found.append(Notice(sentence.format(n=f"{sum(counts.values()):,}") + f"{whose}."))
    return found


def _whose(counts: dict[int, int]) -> str:
    shown = [f"member {member}: {count:,}" for member, count in list(counts.items())[:_MOST_MEMBERS]]
    more = len(counts) - len(shown)
    return ", ".join(shown) + (f" and {more} more members" if more else "")


def _resumed(subject: Subject) -> list[Notice]:
    if not subject.resumptions:
        return []
    void = sum(one.void for one in subject.resumptions)
    steps = ", ".join(f"{step:,.0f}" for step in subject.marks[:_MOST_MEMBERS])
    more = f" and {len(subject.marks) - _MOST_MEMBERS} more" if len(subject.marks) > _MOST_MEMBERS else ""
    left_out = (
        f"{void:,} rows that were written after the checkpoint are void and left out" if void else "no row was lost"
    )
    return [Notice(f"Resumed at step {steps}{more} (dotted in the charts); {left_out}.", "note")]
