"""What all pictures have in common: no window system, quiet axes, and one colour a member."""

from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Paul Tol's "muted" scheme: told apart with every kind of colour blindness. Black is left for what is of no single member.
_COLOURS = ("#332288", "#CC6677", "#44AA99", "#999933", "#88CCEE", "#882255", "#117733", "#DDCC77", "#AA4499")
_DASHES = ("solid", (0, (4, 1.5)), (0, (1, 1.2)), (0, (4, 1.2, 1, 1.2)))
_MOST_IN_COLUMN = 14


def figure(width: float = 6.4, height: float = 3.6) -> "Figure":
    """An empty figure, in inches."""
    # Not pyplot: no window system is looked for, and nothing is kept in a global list.
    from matplotlib.figure import Figure  # noqa: PLC0415

    return Figure(figsize=(width, height), dpi=110, layout="constrained")


def label(axes: Any, text: str, title: str, steps: str = "steps") -> None:
    """Name the axes, of which the first is steps, and take away what is not needed."""
    from matplotlib.ticker import EngFormatter  # noqa: PLC0415

    axes.set_xlabel(steps)
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))  # 200 k, 5 M
    axes.set_ylabel(text)
    axes.set_title(title.replace("$", r"\$"))
    axes.grid(visible=True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def png(figure: "Figure") -> bytes:
    """The picture as a file."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def line(member: int) -> dict[str, Any]:
    """Colour and dashes of a member's line: nine colours, then the same ones dashed.

    >>> line(0)["linestyle"], line(9)["color"] == line(0)["color"], line(9)["linestyle"]
    ('solid', True, (0, (4, 1.5)))
    """
    return {"color": _COLOURS[member % len(_COLOURS)], "linestyle": _DASHES[member // len(_COLOURS) % len(_DASHES)]}


def legend(figure: "Figure", handles: list[Any], title: str = "member") -> None:
    """Beside the picture, where it hides nothing."""
    style: dict[str, Any] = {"frameon": False, "fontsize": 8, "title_fontsize": 8, "loc": "outside right upper"}
    figure.legend(handles=handles, title=title, ncols=-(-len(handles) // _MOST_IN_COLUMN), **style)
