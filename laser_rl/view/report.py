"""`report.html`: the dashboard's page frozen into one file, with the answers that its server would give and without any request."""

import base64
import hashlib
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

import tyro

from laser_rl.disk import open_in_folder, write_bytes
from laser_rl.errors import ConfigError
from laser_rl.metrics.videos import Film, best, films
from laser_rl.view.comparison import SIDE_BY_SIDE, comparison, overview
from laser_rl.view.facts import details, summary
from laser_rl.view.panels import PANELS, Asked, Data
from laser_rl.view.runs import Subject, distinct, subject_of

REPORT = "report.html"
LARGEST_BYTES = 4_000_000  # of a film that goes into the page
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


@dataclass(frozen=True)
class Report:
    """Write a report, one HTML file: of a run, of a sweep, or of several of them side by side. Reads only, also while they go on."""

    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of runs or sweeps."""
    out: Path | None = None
    """The HTML file; by default report.html in the directory or, of several, where you are."""

    def __call__(self) -> int:
        if self.out is not None and (self.out.is_dir() or self.out.suffix not in {".html", ".htm"}):
            raise ConfigError(f"--out names the HTML file, expected something like report.html, got {self.out}")
        print(report(*self.run_dirs, out=self.out))
        return 0


def report(*run_dirs: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of one or several run directories; `out` is `report.html` in the directory or, of several, in the current one."""
    paths = [Path(one) for one in run_dirs]
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
        answers["/api/runs/0"] = {"run": 0, "version": 1, **overview(subjects)}
        for name, (_, make) in comparison(subjects).items():
            for axis in ("step", "time"):
                answers[f"/api/runs/0/panels/{name}?x={axis}&learner=all"] = make(Asked(axis, points=_POINTS))
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
            with open_in_folder(film.path) as file:
                data = file.read(LARGEST_BYTES)
            return f"data:{film.media};base64,{base64.b64encode(data).decode()}"
        except OSError:  # it was removed meanwhile, or has become a link
            pass
    link = quote(Path(os.path.relpath(film.path.resolve(), beside)).as_posix())
    return link if link.startswith(".") else f"./{link}"


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
