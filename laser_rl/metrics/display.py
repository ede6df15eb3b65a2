"""How numbers are written for people: which rows the progress table has, and the text of each."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from laser_rl.metrics.rows import Value

NONE = "–"  # where there is no number
_KILO, _KIBI = 1000, 1024
COLOURS = {"good": "32", "warning": "33", "bad": "31;1", "defect": "31;1", "not done": "2"}  # of verdicts
_Text = Callable[[Mapping[str, Value]], str]


def short(number: float) -> str:
    """About three digits."""
    return f"{number:,.0f}" if _KILO <= abs(number) < float("inf") else f"{number:.3g}"


def share(number: float) -> str:
    return f"{100 * number:.1f} %"


def size(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < _KIBI:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= _KIBI
    return f"{number:.1f} TiB"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def progress(step: int, total: int) -> str:
    return f"{step:,} of {total:,} ({100 * step // total} %)"


def listed(values: Mapping[str, Value]) -> str:
    """All values with their names, on one line. Of a mixture, those of single tasks are too many, and the mean is a score."""
    from laser_rl.envs.scores import RETURN_OF, SCORE_OF  # noqa: PLC0415 - tables, which a table of members does without

    kept = {name: value for name, value in values.items() if not name.startswith((RETURN_OF, SCORE_OF))}
    if is_mixture(kept):
        kept = {"score" if name == "mean" else name: value for name, value in kept.items()}
    return ", ".join(f"{name} {value if isinstance(value, str) else short(value)}" for name, value in kept.items())


def setting(value: object) -> str:
    """The value of a setting: all its digits, unlike a number that was measured."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def label(settings: Mapping[str, object]) -> str:
    """What tells a member from the others."""
    return ", ".join(f"{name} {setting(value)}" for name, value in settings.items()) or "base"


def flat_settings(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by full name."""
    found: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, dict) and item:
            found |= flat_settings(item, f"{prefix}{name}.")
        else:
            found[prefix + name] = item
    return found


def last_name(name: str) -> str:
    return name.rsplit(".", maxsplit=1)[-1]


def number(values: Mapping[str, Value], name: str) -> float | None:
    value = values.get(name)
    return None if value is None or isinstance(value, str) else float(value)


def is_mixture(values: Mapping[str, Value]) -> bool:
    """Whether a row is of several tasks: then its `return_mean` is a score, the median of what is normalised."""
    return "tasks_seen" in values


def verdict_line(part: str, verdict: str, text: str) -> str:
    """What a check came to, with its verdict in colour on a terminal."""
    mark = f"{verdict if verdict in ('good', 'not done') else verdict.upper():<10}"
    mark = f"\x1b[{COLOURS[verdict]}m{mark}\x1b[0m" if sys.stdout.isatty() else mark
    return f"{part:<16}{mark}  {text}"


def _one(name: str, form: Callable[[float], str], unit: str = "") -> _Text:
    return lambda values: "" if (found := number(values, name)) is None else form(found) + unit


def _part(name: str, *all_of: str) -> _Text:
    def text(values: Mapping[str, Value]) -> str:
        part, every = number(values, name), [number(values, one) for one in all_of]
        return "" if part is None or None in every else f"{part:.0f} of {sum(one or 0.0 for one in every):.0f}"

    return text


ENTRIES: dict[str, _Text] = {
    "return": _one("return_mean", short),
    "mean capped": _one("score_mean_capped", short),
    "above random": _part("tasks_above_random", "tasks_seen"),
    "best": _one("return_best", short),
    "episodes": _one("episodes", "{:,.0f}".format),
    "steps/s": _one("steps_per_second", "{:,.0f}".format),
    "updates/s": _one("updates_per_second", short),
    "learned steps/s": _one("learned_steps_per_second", "{:,.0f}".format),
    "replayed": _part("replayed_unrolls", "online_unrolls", "replayed_unrolls"),
    "trusted": _one("acceptance", share),
    "KL": _one("kl", short),
    "rho clipped": _one("rho_clipped", share),
    "c clipped": _one("c_clipped", share),
    "entropy": _one("entropy", short),
    "policy loss": _one("policy_loss", short),
    "value loss": _one("value_loss", short),
    "gradient norm": _one("gradient_norm", short),
    "learning rate": _one("learning_rate", short),
    "policy lag": _one("lag_updates", short, " updates"),
    "replay": _one("replay_fill", share, " full"),
    "replay age": _one("replay_age_updates", short, " updates"),
    "replay size": _one("replay_bytes", size),
    "memory": _one("memory_bytes", size),
    "skipped updates": _one("skipped_updates", "{:,.0f}".format),
    "restarts": _one("environment_restarts", "{:,.0f}".format),
}
# A line has no room for these.
TABLE_ONLY = frozenset(
    {"mean capped", "episodes", "learned steps/s", "policy loss", "value loss", "gradient norm", "learning rate"}
)


def texts(values: Mapping[str, Value]) -> dict[str, str]:
    """The entries of the table for which there are numbers; what a mixture of tasks returns is a score."""
    found = {label: text for label, entry in ENTRIES.items() if (text := entry(values))}
    if is_mixture(values) and "return" in found:
        found = {"score": found.pop("return"), **found}
    return found
