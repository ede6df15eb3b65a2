"""A notebook's code cells, run in one process: no kernel and no Jupyter is needed for cells that only print.

python -m tests.docs.notebook examples/quickstart.ipynb     # runs it and stores what it printed
"""

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def play(path: Path) -> list[str]:
    """Run a notebook from top to bottom; what each of its code cells printed."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for number, cell in enumerate(cells(path)):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile("".join(cell["source"]), f"{path.name}[{number}]", "exec"), names)  # noqa: S102
        printed.append(out.getvalue())
    return printed


def cells(path: Path) -> list[dict[str, Any]]:
    """The code cells."""
    return [cell for cell in json.loads(path.read_bytes())["cells"] if cell["cell_type"] == "code"]


def store(path: Path) -> None:
    """Write the notebook again with what its cells print now."""
    content = json.loads(path.read_bytes())
    printed = iter(play(path))
    for number, cell in enumerate(one for one in content["cells"] if one["cell_type"] == "code"):
        text = next(printed).splitlines(keepends=True)
        cell["execution_count"] = number + 1
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": text}] if text else []
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    store(Path(sys.argv[1]))
