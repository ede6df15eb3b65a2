"""A notebook's code cells, run in one process: no kernel and no Jupyter is needed to see that they run.

python -m tests.docs.notebook examples/quickstart.ipynb     # runs it in a kernel and stores its outputs; needs nbclient and ipykernel
"""

import contextlib
import io
import json
import re
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
    """Run the notebook in a kernel and write it again with its outputs, as a browser shows them."""
    import nbformat  # noqa: PLC0415 - by hand only: pip install nbclient ipykernel
    from nbclient import NotebookClient  # noqa: PLC0415

    content = nbformat.read(path, as_version=4)
    NotebookClient(content, record_timing=False, coalesce_streams=True).execute()
    for cell in content.cells:
        for output in cell.get("outputs", []):
            output.get("metadata", {}).clear()
            if "text/plain" in output.get("data", {}):  # without the codes for a terminal's colours
                output.data["text/plain"] = re.sub(r"\x1b\[[\d;]*m", "", output.data["text/plain"])
    content.metadata.language_info = {"name": "python"}  # without the version that happens to be here
    path.write_text(nbformat.writes(content, indent=1, ensure_ascii=False).rstrip() + "\n")


if __name__ == "__main__":
    store(Path(sys.argv[1]))
