"""Where rows of numbers go: each sink takes all rows and keeps what it can show."""

from collections.abc import Mapping
from typing import Literal, Protocol

Kind = Literal["train", "episode", "evaluation", "event", "sweep"]  # sweep: of all members together
Value = float | str  # int, bool and NumPy's numbers included
Row = dict[str, Value]


class Sink(Protocol):
    """A destination of rows, used by one thread."""

    def write(self, kind: Kind, step: int, update: int, values: Mapping[str, Value]) -> None:
        """Take one row: `step` steps and `update` updates after the start of the run."""

    def flush(self) -> None:
        """Hand everything to the operating system or further; called with each checkpoint."""

    def close(self) -> None:
        """The run ends; may be called twice."""
