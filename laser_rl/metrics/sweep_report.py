"""`report.html` of a sweep: the best member, all members beside each other, who learned from whom, and what to type next."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from laser_rl.errors import ConfigError
from laser_rl.metrics import curves, display, page, pbt_pictures, sweep_pictures
from laser_rl.metrics.log import FILE, read
from laser_rl.metrics.sink import Row
from laser_rl.metrics.sweep_curves import copies
from laser_rl.metrics.sweep_standing import SWEEP, MemberStanding, best, standing, standing_of
from laser_rl.metrics.task_pictures import tasks_section

__all__ = ["MemberStanding", "best", "standing", "sweep_report"]

_NONE = "–"
_MOST_COPIES = 200
_OPTIMISTIC = "The best at each time is a maximum over members of noisy means, chosen anew at each step: optimistic, as in the paper."


def sweep_report(run_dir: str | Path) -> Path:
    """Write `report.html` into the run directory of a sweep, also while it goes on.

    >>> import tempfile
    >>> from laser_rl.metrics.log import MetricsLog
    >>> run_dir = tempfile.mkdtemp()
    >>> with MetricsLog(run_dir) as log:
    ...     log.write("train", 640, 4, {"member": 0, "return_mean": 20.0})
    >>> "Best member" in sweep_report(run_dir).read_text()
    True
    """
    run_dir = Path(run_dir)
    rows, sweep = read(run_dir), page.read_json(run_dir / SWEEP)
    members = standing_of(rows, sweep)
    if not rows or not members:
        raise ConfigError(
            f"expected {run_dir / FILE} with the numbers of a sweep, got none; is this the directory of a sweep that has begun?"
        )
    return page.write_page(run_dir / page.REPORT, run_dir.resolve().name, _parts(run_dir, rows, sweep, members))


def _parts(
    run_dir: Path, rows: Sequence[Row], sweep: Mapping[str, Any], members: Sequence[MemberStanding]
) -> list[str]:
    leader, mixed = best(members), curves.is_mixture(rows)
    label = curves.MEDIAN.lower() if mixed else "mean return of the last 100 episodes"
    about = {name: value for name, value in sweep.items() if name != "settings" and value is not None}
    return [
        page.section("Best member", page.pairs(_best(leader, label)) if leader else ""),
        page.section("Members", _members(members, leader, "score" if mixed else "return")),
        page.section(
            "Scores" if mixed else "Returns",
            page.figure("By member", sweep_pictures.returns_picture(rows, label), _OPTIMISTIC, wide=True),
        ),
        tasks_section([row for row in rows if row.get("member") == leader.member]) if leader and mixed else "",
        page.section("Who learns from whom", _trust(rows, len(members))),
        page.section("Replay", _replay(rows, len(members))),
        page.section("Population based training", _pbt(rows, len(members))),
        page.section("Next", f"<pre>{escape(_commands(run_dir))}</pre>"),
        page.section("Configuration", page.pairs(page.flat(about))),
    ]


def _best(leader: MemberStanding, label: str) -> dict[str, str]:
    scores = {
        "mean of its last evaluation": _evaluation(leader),
        label: _or_none(leader.return_mean, display.short),
    }
    settings = {name: display.setting(value) for name, value in leader.settings.items()}
    return {"member": str(leader.member)} | {n: text for n, text in scores.items() if text != _NONE} | settings


def _members(members: Sequence[MemberStanding], leader: MemberStanding | None, measure: str) -> str:
    names = list(dict.fromkeys(name for one in members for name in one.settings))
    header = [
        "member",
        *names,
        "steps",
        "updates",
        measure,
        "evaluation",
        "trusted: own",
        "others",
        "skipped",
        "rollbacks",
    ]
    lines = [
        [
            str(one.member),
            *(display.setting(one.settings[name]) if name in one.settings else _NONE for name in names),
            f"{one.steps:,}",
            f"{one.updates:,}",
            _or_none(one.return_mean, display.short),
            _evaluation(one),
            _or_none(one.acceptance_own, display.share),
            _or_none(one.acceptance_others, display.share),
            _or_none(one.skipped, display.count),
            _or_none(one.rollbacks, display.count),
        ]
        for one in members
    ]
    return page.grid(header, lines, best=None if leader is None else leader.member)


def _trust(rows: Sequence[Row], members: int) -> str:
    return "".join(
        [
            page.figure(
                "Who learns from whom",
                sweep_pictures.trust_picture(rows, members),
                "Of the steps that a learner (down) replays from a source (across), the share inside its trust region, in its last rows.",
            ),
            page.figure(
                "Divergence of policies",
                sweep_pictures.divergence_picture(rows, members),
                "The further two policies are from each other, the less one can use of the other's experience.",
            ),
            page.figure(
                "Who learns from whom over time", sweep_pictures.trust_over_time_picture(rows, members), wide=True
            ),
            page.figure("Trusted share over steps", sweep_pictures.acceptance_picture(rows, members)),
            page.figure("Trusted share by age", sweep_pictures.age_picture(rows, members)),
        ]
    )


def _replay(rows: Sequence[Row], members: int) -> str:
    picture = sweep_pictures.replay_picture(rows, members)
    return page.figure("What is in the replay", picture, "Who produced what is in the replay, and how old it is.")


def _pbt(rows: Sequence[Row], members: int) -> str:
    history = copies(rows)
    header = ["step", "member", "donor", "its score", "donor's score", "settings before", "settings after"]
    lines = [
        [
            f"{copy.step:,}",
            str(copy.member),
            str(copy.donor),
            display.short(copy.score),
            display.short(copy.donor_score),
            display.label(copy.before),
            display.label(copy.after),
        ]
        for copy in history[-_MOST_COPIES:]
    ]
    return "".join(
        [
            page.figure("Settings over steps", pbt_pictures.settings_picture(rows)),
            page.figure("Lineage", pbt_pictures.lineage_picture(rows, members)),
            page.grid(header, lines),
        ]
    )


def _evaluation(one: MemberStanding) -> str:
    if one.evaluation is None:
        return _NONE
    interval = one.evaluation_interval
    between = f" ({display.short(interval[0])} to {display.short(interval[1])})" if interval else ""
    return display.short(one.evaluation) + between


def _or_none(value: float | None, form: Callable[[float], str]) -> str:
    return _NONE if value is None else form(value)


def _commands(run_dir: Path) -> str:
    folder = shlex.quote(str(run_dir))
    return f"laser evaluate {folder} --member best\nlaser resume {folder}\nlaser status {folder}"
