"""One page over a folder of experiments: every claim with what became of it, and what was not reproduced."""

from collections.abc import Sequence
from pathlib import Path

from laser_rl.checkpoint.atomic import write_bytes
from laser_rl.research.experiments import EXPERIMENTS
from laser_rl.research.report import ABOUT, PAGE, VERDICTS, read_about
from laser_rl.research.runner import read_table
from laser_rl.research.verdicts import ALL

REFUTED = {"not reproduced", "no"}
HELD = {"reproduced", "yes"}
Line = dict[str, str]  # of `verdicts.csv`, with the experiment's name


def write_index(folder: Path) -> Path:
    """`README.md` of a folder of experiments; one that has not ended is left out."""
    lines = [
        {"experiment": name, **line}
        for name in EXPERIMENTS
        if (folder / name / VERDICTS).is_file() and (folder / name / ABOUT).is_file()
        for line in read_table(folder / name / VERDICTS)
    ]
    write_bytes(folder / PAGE, ("\n".join(_page(folder, lines)) + "\n").encode())
    return folder / PAGE


def _page(folder: Path, lines: Sequence[Line]) -> list[str]:
    overall = [line for line in lines if line["task"] == ALL]
    names = list(dict.fromkeys(line["experiment"] for line in lines))
    refuted = [line for line in lines if line["verdict"] in REFUTED and line["source"]]
    return [
        "# Experiments: what became of each claim",
        "",
        *(f"- [{name}]({name}/{PAGE}): {EXPERIMENTS[name].question} {_made(folder / name)}" for name in names),
        "",
        "Differences are in scores (0 random play, 1 the best) over all tasks together, with 95 % intervals over seeds. Each verdict",
        "stands for itself: of twenty claims about equal agents one is expected to be decided.",
        "",
        "## The paper's claims",
        "",
        *_table([line for line in overall if line["source"]], lines),
        "",
        "## Questions that it leaves open",
        "",
        *_table([line for line in overall if not line["source"]], lines),
        "",
        "## Not reproduced",
        "",
        *(f"- {one['experiment']}, {one['task']}: {one['claim']} ({one['source']}): {_said(one)}" for one in refuted),
        *([] if refuted else ["Nothing."]),
    ]


def _made(folder: Path) -> str:
    about = read_about(folder)
    smoke = " Made with `--smoke`: nothing was learned." if about.smoke else ""
    return f"Suite `{about.suite}`, {len(about.tasks)} tasks, {len(about.seeds)} seeds.{smoke}"


def _table(overall: Sequence[Line], lines: Sequence[Line]) -> list[str]:
    if not overall:
        return ["None of these experiments has any."]
    table = ["| experiment | claim | of | all tasks | difference | held by task |", "|---|---|---|---|---|---|"]
    for line in overall:
        name, claim = line["experiment"], line["claim"]
        tasks = [one for one in lines if (one["experiment"], one["claim"]) == (name, claim) and one["task"] != ALL]
        held, against = (sum(one["verdict"] in words for one in tasks) for words in (HELD, REFUTED))
        share = f"{held} of {len(tasks)}, {against} against"
        table.append(
            f"| {name} | {claim} | {line['source'] or '–'} | **{line['verdict']}** | {_said(line)} | {share} |"
        )
    return table


def _said(line: Line) -> str:
    numbers = [line[name] for name in ("difference", "low", "high")]
    return "{:+.2f} [{:+.2f}, {:+.2f}]".format(*map(float, numbers)) if all(numbers) else ""
