"""A hook of mkdocs: parts of pages that are made from the package itself, where a page has the line `<!-- made: NAME -->`.

`settings` and `sweep-settings` are tables of the pydantic models, `commands` is what every command says of itself, `names` is what other
libraries call our settings, and `notebook PATH` is a notebook with the outputs that it was stored with.
"""

import contextlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

ROOT = Path(__file__).parents[2]
MARK = re.compile(r"^<!-- made: ([a-z-]+) ?(\S*) -->$", re.MULTILINE)
WIDTH = "86"  # of the column of text


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Exchange every mark for what it names."""
    return MARK.sub(lambda match: "\n".join(MAKERS[match[1]](match[2])), markdown)


def settings(_: str = "") -> Iterator[str]:
    """A table for each section of a configuration."""
    from laser_rl.config import Config  # noqa: PLC0415 - slow to import, and only needed here

    yield from _tables(Config, "")


def sweep_settings(_: str = "") -> Iterator[str]:
    """What only sweeps have."""
    from laser_rl.training.settings import SweepConfig  # noqa: PLC0415

    yield from _tables(SweepConfig, "", without=("base",), level="###")


def _tables(model: Any, prefix: str, without: tuple[str, ...] = (), level: str = "##") -> Iterator[str]:
    inner: list[tuple[str, Any]] = []
    rows = []
    for name, field in model.model_fields.items():
        section = _section(field.annotation)
        if name in without:
            continue
        if section is not None:
            inner.append((f"{prefix}{name}", section))
        else:
            cells = [
                f"`{prefix}{name}`",
                _kind(field.annotation, field.metadata),
                _default(field),
                field.description or "",
            ]
            rows.append(f"| {' | '.join(map(_cell, cells))} |")
    if rows:
        yield from (
            f"{level} {prefix.rstrip('.') or 'At the top'}",
            "",
            _cell((model.__doc__ or "").split(">>>")[0]),
            "",
        )
        yield from ("| setting | values | default | |", "|---|---|---|---|", *rows, "")
    for name, section in inner:
        yield from _tables(section, f"{name}.", level=level)


def _section(annotation: Any) -> Any:
    from pydantic import BaseModel  # noqa: PLC0415

    candidates = [annotation, *getattr(annotation, "__args__", ())]
    return next((one for one in candidates if isinstance(one, type) and issubclass(one, BaseModel)), None)


def _kind(annotation: Any, limits: Sequence[Any] = ()) -> str:
    """A type in words.

    >>> _kind(float | None), _kind(Literal["a", "b"]), _kind(tuple[int, ...])
    ('float or none', '`a`, `b`', 'list')
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(inner[0], [part for item in inner[1:] for part in getattr(item, "metadata", [item])])
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in inner)
    if origin in {Union, UnionType}:
        return " or ".join(_kind(one) for one in inner)
    name = {NoneType: "none", tuple: "list", dict: "mapping", str: "text", int: "whole number"}
    kind = name.get(origin or annotation, getattr(annotation, "__name__", str(annotation)))
    return ", ".join([kind, *(f"{sign} {value:g}" for item in limits for sign, value in _limits(item))])


def _limits(item: Any) -> Iterator[tuple[str, float]]:
    for name, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤")):
        if isinstance(value := getattr(item, name, None), int | float):
            yield sign, value


def _default(field: Any) -> str:
    if field.is_required():
        return "–"
    value = field.get_default(call_default_factory=True)
    return f"`{value:,}`" if isinstance(value, int) and not isinstance(value, bool) else f"`{value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def commands(_: str = "") -> Iterator[str]:
    """What `laser COMMAND --help-all` prints."""
    from laser_rl.cli import COMMANDS  # noqa: PLC0415

    for name, (_, _, summary) in COMMANDS.items():
        yield from (f"## laser {name}", "", f"{summary[0].upper()}{summary[1:]}.", "")
        yield from ("```text", help_of(name), "```", "")


def help_of(name: str) -> str:
    """One command's help, without colours."""
    from laser_rl.cli import main  # noqa: PLC0415

    before = {key: os.environ.get(key) for key in ("COLUMNS", "NO_COLOR")}
    os.environ |= {"COLUMNS": WIDTH, "NO_COLOR": "1"}
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
            main([name, "--help-all"])
    finally:
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})
    return re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).strip()


def names(_: str = "") -> Iterator[str]:
    """What settings of other libraries are called here."""
    from laser_rl.errors import THEIRS  # noqa: PLC0415

    groups: dict[tuple[str, str], list[str]] = {}
    for theirs, ours in THEIRS.items():
        groups.setdefault(ours, []).append(f"`{theirs}`")
    yield from ("| there | here | its value here, or why there is none |", "|---|---|---|")
    yield from (
        f"| {', '.join(there)} | {f'`{ours}`' if ours else '–'} | {note} |" for (ours, note), there in groups.items()
    )


def notebook(path: str) -> Iterator[str]:
    """Cells one after the other: text as it is, code, what it printed, and pictures."""
    for cell in json.loads((ROOT / path).read_bytes())["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield from (text, "")
            continue
        yield from ("```python", text, "```", "")
        printed = "".join(_printed(cell["outputs"])).rstrip()
        if printed:
            yield from ("```text", printed, "```", "")
        for picture in (output["data"].get("image/png") for output in cell["outputs"] if "data" in output):
            if picture:
                yield from (f'<img alt="the plot" src="data:image/png;base64,{"".join(picture).strip()}">', "")


def _printed(outputs: list[dict[str, Any]]) -> Iterator[str]:
    for output in outputs:
        data = output.get("data", {})
        yield "" if "image/png" in data else "".join(output.get("text", data.get("text/plain", []))).rstrip("\n") + "\n"


MAKERS: dict[str, Callable[[str], Iterator[str]]] = {
    "settings": settings,
    "sweep-settings": sweep_settings,
    "commands": commands,
    "names": names,
    "notebook": notebook,
}
