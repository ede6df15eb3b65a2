"""The newest film of a run, and the best one."""

from laser_rl.metrics import display
from laser_rl.metrics.reporting.document import Cell, Movie, Section, Table, number, section, words
from laser_rl.metrics.reporting.subject import Subject
from laser_rl.metrics.videos import FOLDER, TRUSTED, Film, best, films

_MOST_LISTED = 40
_BESIDE = "Beside the picture: value, the return that is expected from here on; entropy, how undecided the policy is; trusted, see below."


def videos(subject: Subject, *, alone: bool = True) -> Section | None:
    """Films in the page, where it is the report of one directory, and a table of all; of several directories the table alone."""
    found = films(subject.run_dir)
    if not found:
        return None
    newest, leader = found[0], best(found)
    shown = [_movie("Newest", newest, alone=alone)]
    if leader is not None and leader.path != newest.path:
        shown.append(_movie("Best", leader, alone=alone))
    lines = tuple(_line(one) for one in found[:_MOST_LISTED])
    columns = ("file", "step", "member", "return", "steps", "trusted")
    return section("Videos", [*shown, Table("Episodes that were filmed", columns, lines, TRUSTED)])


def _movie(which: str, one: Film, *, alone: bool) -> Movie:
    return Movie(f"{which}: {one.told()}", one.path, one.media, one.size, _BESIDE, embed=alone)


def _line(one: Film) -> tuple[Cell, ...]:
    return (
        words(f"{FOLDER}/{one.name}"),
        number(one.step, display.count),
        number(one.member, display.count),
        number(one.total),
        number(one.length, display.count),
        number(one.trusted, display.share),
    )
