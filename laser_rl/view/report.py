"""`report.html`: the dashboard's page frozen into one file, with the answers that its server would give and without any request."""

import base64
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np

from laser_rl.disk import write_bytes
from laser_rl.errors import ConfigError
from laser_rl.metrics import display
from laser_rl.metrics.history import Array, CurveLine
from laser_rl.metrics.standing import MemberStanding
from laser_rl.metrics.videos import Film, best, films, open_film
from laser_rl.view.facts import details, interval, summary
from laser_rl.view.panels import PANELS, Asked, Data, Named, cell, chart, table
from laser_rl.view.runs import Subject, distinct, subject_of

REPORT = "report.html"
LARGEST_BYTES = 4_000_000  # of a film that goes into the page
SIDE_BY_SIDE = "Side by side"
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
_POINTS = 400
_MOST_LEARNERS = 12  # of more, who trusts whom over time is told as the mean of all only
_MOST_FILMS = 40
_SCRIPTS = ("dom.js", "charts.js", "panels.js", "app.js")  # each uses those before it
_MODULE = re.compile(r"^import .*;\n|^export (?=const|function|class)", re.MULTILINE)

_SEED = "run.seed"
_NO_CONDITION = {_SEED, "run.steps", "run.device", "run.runtime", "run.threads", "run.log_every_s"}
_SEEDS = (
    "Runs that differ in nothing but the seed are one condition. Intervals (95 %, bootstrap) are over seeds; of fewer than five seeds they "
    "are too narrow. Of a sweep, its best member is taken, which is optimistic."
)
_BANDS = "Lines: means over runs. Bands: lowest to highest run, where all have numbers. Of a sweep: its best member at each time."
_SAME = "All other settings are the same in all directories. – where a directory does not say."


class _Condition(NamedTuple):
    name: str
    subjects: tuple[Subject, ...]


def report(*run_dirs: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of one or several run directories; `out` is `report.html` in the directory or, of several, in the current one."""
    paths = [Path(one) for one in run_dirs]
    if not paths:
        raise ConfigError("a report of what? name one or more run directories: laser report runs/*")
    named = dict(zip(paths, distinct(paths), strict=True))
    page = Path(out) if out is not None else (paths[0] if len(named) == 1 else Path()) / REPORT
    text = frozen(recorded([subject_of(path, name) for path, name in named.items()], page.parent.resolve()))
    page.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(page, text.encode())
    return page


def recorded(subjects: Sequence[Subject], beside: Path) -> Data:
    """What the dashboard's server would answer, by address; links to larger films lead from the folder `beside`."""
    first = 1 if len(subjects) > 1 else 0
    listed = [{"run": n, "name": one.name, "state": one.state} for n, one in enumerate(subjects, start=first)]
    answers: Data = {}
    if first:
        listed.insert(0, {"run": 0, "name": SIDE_BY_SIDE, "state": f"{len(subjects)} directories"})
        panels = list(_comparison(subjects))
        told = [about for about, _ in panels]
        answers["/api/runs/0"] = {"run": 0, "name": SIDE_BY_SIDE, "version": 1, "panels": told}
        answers |= {f"/api/runs/0/panels/{about['id']}": data for about, data in panels}
    for number, one in enumerate(subjects, start=first):
        answers |= _answers(one, number, beside, alone=len(subjects) == 1)
    return {"written": round(time.time()), "/api/runs": listed, **answers}


def frozen(answers: Data) -> str:
    """The page with everything in it: style, scripts, uPlot and the answers; its policy allows no other script and no request."""
    static = static_files()
    page, style = static["index.html"].decode(), (static["vendor/uPlot.min.css"] + static["style.css"]).decode()
    own = "".join(_MODULE.sub("", static[name].decode()) for name in _SCRIPTS)
    scripts = [static["vendor/uPlot.iife.min.js"].decode(), f'"use strict";(() => {{\n{own}\n}})();']
    allowed = " ".join(f"'sha256-{_digest(text)}'" for text in scripts)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'sha256-{_digest(style)}'; img-src data:; media-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    # In a script element only "<" can end the text or begin a comment.
    data = json.dumps(answers, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    head = f'''<meta http-equiv="Content-Security-Policy" content="{escape(policy, quote=False)}">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<style>{style}</style>
</head>'''
    recorded_answers = f'<script type="application/json" id="recorded">{data}</script>'
    end = "\n".join([recorded_answers, *(f"<script>{one}</script>" for one in scripts), "</body>"])
    page = re.sub(r"\n.*/static/.*", "", page)
    return page.replace("</head>", head, 1).replace("</body>", end, 1)


def static_files() -> dict[str, bytes]:
    folder = files("laser_rl.view") / "static"
    every = [(one.name, one) for one in folder.iterdir() if one.is_file()]
    every += [(f"vendor/{one.name}", one) for one in (folder / "vendor").iterdir()]
    return {name: one.read_bytes() for name, one in every if Path(name).suffix in TYPES}


def _answers(subject: Subject, number: int, beside: Path, *, alone: bool) -> Data:
    address, found = f"/api/runs/{number}", films(subject.run_dir)
    leader = best(found)
    first = list(dict.fromkeys(one for one in (*found[:1], leader) if one is not None))
    found = [*first, *(one for one in found if one not in first)][:_MOST_FILMS]
    answers: Data = {address: {"run": number, "version": 1, **summary(subject)}}
    answers[f"{address}/details"] = details(subject, found)
    for film, one in zip(found, answers[f"{address}/details"]["videos"], strict=True):
        one["src"] = _source(film, beside, embed=alone and film in first)
    members = len(subject.members)
    for name, make in PANELS.items():
        learners = range(members) if name == "trust" and 1 < members <= _MOST_LEARNERS else ()
        for axis in ("step", "time"):
            for learner in (-1, *learners):
                which = "all" if learner < 0 else learner
                data = make(subject, Asked(axis, learner, _POINTS))
                answers[f"{address}/panels/{name}?x={axis}&learner={which}"] = data
    return answers


def _source(film: Film, beside: Path, *, embed: bool) -> str:
    if embed and film.size <= LARGEST_BYTES:
        try:
            with open_film(film) as file:
                data = file.read(LARGEST_BYTES)
            return f"data:{film.media};base64,{base64.b64encode(data).decode()}"
        except OSError:  # it was removed meanwhile, or has become a link
            pass
    link = quote(Path(os.path.relpath(film.path.resolve(), beside)).as_posix())
    return link if link.startswith(".") else f"./{link}"


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _comparison(subjects: Sequence[Subject]) -> Iterator[tuple[Data, Data]]:
    conditions, wide = _conditions_of(subjects), {"kind": "table", "wide": True}
    yield {"id": "conditions", "title": "By condition", "why": _SEEDS, **wide}, _conditions_table(conditions)
    why = "Of a sweep, the numbers of its best member."
    yield {"id": "directories", "title": "By directory", "why": why, **wide}, _directories_table(subjects)
    environments = dict.fromkeys(subject.environment for subject in subjects)
    for number, environment in enumerate(environments):
        own = [one for one in conditions if one.subjects[0].environment == environment]
        title = own[0].subjects[0].score_label + (f", {environment}" if len(environments) > 1 else "")
        about = {"id": f"compared-{number}", "title": title, "why": _BANDS, "kind": "chart", "each": True, "wide": True}
        yield about, _compared(own)
    alone = [subject for subject in subjects if not subject.is_sweep]
    speeds = [(one.name, n, one.history.line("train", 0, "steps_per_second")) for n, one in enumerate(alone)]
    about = {"id": "compared-speed", "title": "Steps per second", "why": "Of runs of one agent.", "kind": "chart"}
    yield {**about, "optional": True}, chart(None, [one for one in speeds if len(one[2].x)], Asked(points=_POINTS))
    names = _differing(subjects)
    lines = [[name, *(_told(one, name) for one in subjects)] for name in names]
    data = table(["setting", *(one.name for one in subjects)], lines)
    yield {"id": "differences", "title": "Settings that differ", "why": _SAME, **wide}, data


def _conditions_of(subjects: Sequence[Subject]) -> list[_Condition]:
    """Directories by their settings without the seed, named by what differs; one without settings is a condition of its own."""
    groups: dict[str, list[Subject]] = {}
    for one in subjects:
        own = {name: value for name, value in one.settings.items() if name not in _NO_CONDITION}
        key = json.dumps([one.is_sweep, own, one.files.sweep.get("settings")], sort_keys=True, default=str)
        groups.setdefault(key if one.settings else f"{key} {one.run_dir}", []).append(one)
    names = [name for name in _differing([group[0] for group in groups.values()]) if name not in _NO_CONDITION]
    found = []
    for group in groups.values():
        own = {display.last_name(name): group[0].settings.get(name) for name in names}
        label = display.label(own) if 0 < len(own) < 4 else group[0].name  # noqa: PLR2004 - more would be no name
        found.append(_Condition(label, tuple(group)))
    if len({one.name for one in found}) < len(found):
        return [_Condition(one.subjects[0].name, one.subjects) for one in found]
    return found


def _differing(subjects: Sequence[Subject]) -> list[str]:
    """The settings that are not the same in all directories; one that a directory does not have counts as different."""
    names = dict.fromkeys(name for one in subjects for name in one.settings)
    return [name for name in names if len({repr(one.settings.get(name, ...)) for one in subjects}) > 1]


def _conditions_table(conditions: Sequence[_Condition]) -> Data:
    lines = []
    for one in conditions:
        leaders = [subject.best for subject in one.subjects]
        scores = [lead.return_mean if lead.evaluation is None else lead.evaluation for lead in leaders if lead]
        known = [score for score in scores if score is not None]
        seeds = ", ".join(str(subject.settings.get(_SEED, "?")) for subject in one.subjects)
        mean, low, high = (cell(float(of(known))) if known else None for of in (np.mean, min, max))
        environment = one.subjects[0].environment
        lines.append([one.name, environment, len(one.subjects), seeds, mean, _between(interval(known)), low, high])
    columns = ["condition", "environment", "runs", "seeds", "mean score", "interval over seeds", "lowest", "highest"]
    return table(columns, lines)


def _directories_table(subjects: Sequence[Subject]) -> Data:
    lines = []
    for one in subjects:
        steps = min((member.steps for member in one.members), default=0)
        lead = one.best or MemberStanding(0, {})
        numbers = [cell(lead.return_mean), cell(lead.evaluation), _between(lead.evaluation_interval)]
        kind = f"sweep of {len(one.members)}" if one.is_sweep else "run"
        lines.append([one.name, one.environment, _told(one, _SEED), kind, one.state, steps, *numbers])
    columns = ["directory", "environment", "seed", "kind", "state", "steps", "training", "evaluation", "interval"]
    return table(columns, lines)


def _compared(conditions: Sequence[_Condition]) -> Data:
    drawn: list[Named] = []
    for colour, one in enumerate(conditions):
        curves = [curve for subject in one.subjects if len((curve := _curve(subject))[0])]
        steps, values = _band(curves) if len(curves) > 1 else (np.empty(0), np.empty((0, 0)))
        if len(steps):
            line = CurveLine(steps, values.mean(0), values.min(0), values.max(0))
            drawn.append((f"{one.name} ({len(curves)} runs)", colour, line))
        else:
            drawn += [(one.name, colour, CurveLine(x, y, y, y)) for x, y in curves]
    return chart(None, drawn, Asked(points=_POINTS), bands=True)


def _curve(subject: Subject) -> tuple[Array, Array]:
    """Returns over steps; of a sweep the best at each time: a maximum of noisy means, and thus optimistic."""
    lines = [subject.history.line("train", one.member, "return_mean") for one in subject.members]
    curves = [(line.x, line.mean) for line in lines if len(line.x)]
    if len(curves) < 2:  # noqa: PLR2004
        return curves[0] if curves else (np.empty(0), np.empty(0))
    steps, values = _band(curves)
    return steps, values.max(0, initial=-np.inf)


def _band(curves: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Curves on common steps, where all of them have numbers: steps [n] and values [runs, n]."""
    start, stop = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    if stop < start:
        return np.empty(0), np.empty((len(curves), 0))
    grid = np.linspace(start, stop, _POINTS)
    return grid, np.stack([np.interp(grid, steps, values) for steps, values in curves])


def _between(ends: tuple[float, float] | None) -> str:
    return "–" if ends is None else " to ".join(display.short(end) for end in ends)


def _told(subject: Subject, name: str) -> str:
    return display.setting(subject.settings[name])[:500] if name in subject.settings else "–"
