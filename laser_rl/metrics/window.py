"""Running numbers: returns of the last episodes, memory."""

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class EpisodeWindow:
    """The returns of the last `size` episodes.

    >>> window = EpisodeWindow(2)
    >>> for raw_return in (9.0, 1.0, 3.0):
    ...     window.add(raw_return)
    >>> window.numbers()
    {'return_mean': 2.0, 'return_best': 3.0, 'episodes': 3}
    """

    def __init__(self, size: int = 100) -> None:
        self._returns: deque[float] = deque(maxlen=size)
        self._episodes = 0

    def add(self, raw_return: float) -> None:
        """Take one finished episode."""
        self._returns.append(float(raw_return))
        self._episodes += 1

    def numbers(self) -> Mapping[str, float]:
        """Mean and best of the window, and the count of all episodes; nothing before the first has ended."""
        if not self._returns:
            return {}
        mean = sum(self._returns) / len(self._returns)
        return {"return_mean": mean, "return_best": max(self._returns), "episodes": self._episodes}

    @property
    def episodes(self) -> int:
        """All of them."""
        return self._episodes

    def forget(self) -> None:
        """Go on with an empty window: what was in it is of another policy. The count of all episodes stays."""
        self._returns.clear()

    @property
    def full(self) -> bool:
        """Whether the window holds as many episodes as it can: only then is a mean over them comparable."""
        return len(self._returns) == self._returns.maxlen

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs, as JSON."""
        return {"returns": list(self._returns), "episodes": self._episodes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the other one was."""
        self._returns = deque(state["returns"], maxlen=self._returns.maxlen)
        self._episodes = int(state["episodes"])


def memory_bytes() -> int:
    """Resident memory of this process.

    >>> memory_bytes() > 1_000_000
    True
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0
