"""Tables of what `gpu_train.py` has written, for `benchmarks/README.md`.

python benchmarks/gpu_report.py benchmarks/results/2026-11-16-gpu-*.json

The learner alone, with which runs are compared, is a median of a few updates ("burst") in files written before `--alone-seconds` was there,
and a mean over seconds in later ones: a card that has reached its limit of power is slower than in a burst.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Numbers = dict[str, Any]


def load(paths: Sequence[Path]) -> dict[str, Numbers]:
    """By the file's name without its ending, in the order in which they were measured."""
    documents = {path.stem: json.loads(path.read_text()) for path in paths}
    return dict(sorted(documents.items(), key=lambda item: str(item[1]["date"])))


def link(name: str) -> str:
    """To a file, from the folder of the benchmarks.

    >>> link("2026-11-16-gpu-members-x4")
    '[members-x4](results/2026-11-16-gpu-members-x4.json)'
    """
    return f"[{name.rpartition('-gpu-')[2]}](results/{name}.json)"


def alone_of(document: Numbers) -> str:
    """How the learner alone was measured.

    >>> alone_of({"flags": {"repeats": 5, "alone_seconds": 10.0}}), alone_of({"flags": {"repeats": 5}})
    ('10 s', 'burst of 5')
    """
    flags = document["flags"]
    return f"{flags['alone_seconds']:g} s" if "alone_seconds" in flags else f"burst of {flags['repeats']}"


def steps_table(documents: dict[str, Numbers]) -> list[str]:
    """A line for each way to make a step, of the files that have nothing else."""
    lines = [
        "| file | network | step | ms | training frames/s | TFLOP/s | of the bf16 rate in the same call | memory, GB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, document in documents.items():
        for row in () if document["runs"] else document["steps"]:
            cells = [
                link(name),
                f"×{row['width']}",
                row["step"],
                f"{row['ms']:.2f}",
                f"{row['frames_per_second']:,.0f}",
            ]
            cells += [
                f"{row['tflops']:.0f}",
                f"{100 * row['share_of_matrix_rate']:.1f} %",
                f"{row['allocated'] / 1e9:.1f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def end_to_end_table(documents: dict[str, Numbers]) -> list[str]:
    """A line a run of one agent."""
    lines = [
        (
            "| file | network, replay | slots | environment frames/s | of what the learner alone could use | training frames/s | "
            "of the learner alone | "
            "the learner alone | measured over | busy | its thread waits | MB/s uploaded | GB on the card |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, document in documents.items():
        for run in document["runs"]:
            if "learner_busy" not in run:
                continue
            cells = [
                link(name),
                f"×{document['flags']['widths'][0]}, {100 * document['flags']['fraction']:g} %",
                f"{run['slots']}",
                f"{run['environment_frames_per_second']:,.0f}",
                f"{100 * run['environment_share_of_usable']:.1f} %",
                f"{run['training_frames_per_second']:,.0f}",
                f"{100 * run['training_share_of_learner_alone']:.1f} %",
                f"{run['training_frames_per_second_learner_alone']:,.0f}",
                alone_of(document),
                f"{100 * run['learner_busy']:.1f} %",
                f"{100 * run['learner_wait']:.1f} %",
                f"{run['uploaded_mb_per_second']:,.0f}",
                f"{run['gpu_memory_gb']:.1f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def members_table(documents: dict[str, Numbers]) -> list[str]:
    """A line a sweep."""
    lines = [
        (
            "| file | network, replay | slots of each | training frames/s, all members | of one member end to end | of the learner alone | "
            "one member end to end | the learner alone | measured over | environment frames/s | GB on the card |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, document in documents.items():
        for run in document["runs"]:
            if "one_member" not in run:
                continue
            cells = [
                link(name),
                f"×{document['flags']['widths'][0]}, {100 * document['flags']['member_fraction']:g} %",
                f"{run['slots']}",
                f"{run['training_frames_per_second_all_members']:,.0f}",
                f"{100 * run['ratio_to_one_member_end_to_end']:.1f} %",
                f"{100 * run['share_of_one_learner_alone']:.1f} %",
                f"{run['training_frames_per_second_one_member_end_to_end']:,.0f}",
                f"{run['training_frames_per_second_one_learner_alone']:,.0f}",
                alone_of(document),
                f"{run['environment_frames_per_second_all_members']:,.0f}",
                f"{run['gpu_memory_gb']:.1f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def report(documents: dict[str, Numbers]) -> str:
    """All tables that have a line."""
    tables = (steps_table(documents), end_to_end_table(documents), members_table(documents))
    return "\n\n".join("\n".join(lines) for lines in tables if len(lines) > 2)


def main() -> None:
    """Tables to standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    print(report(load(parser.parse_args().files)))


if __name__ == "__main__":
    main()
