"""A hook of mkdocs: a pattern in the navigation stands for the pages that it matches: new decisions and results appear by themselves."""

from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]


def on_config(config: Any) -> Any:
    """Write the pages into the navigation."""
    config.nav = expanded(config.nav)
    return config


def expanded(entry: Any) -> Any:
    """A list with every pattern replaced by its pages: those of upper folders first, README before the rest.

    >>> expanded([{"Decisions": ["adr/0001*.md"]}, "faq.md"])
    [{'Decisions': ['adr/0001-pytorch.md']}, 'faq.md']
    """
    if isinstance(entry, dict):
        return {title: expanded(inner) for title, inner in entry.items()}
    if not isinstance(entry, list):
        return entry
    return [page for one in entry for page in (pages(one) if isinstance(one, str) and "*" in one else [expanded(one)])]


def pages(pattern: str) -> list[str]:
    """The pages that a pattern matches.

    >>> pages("results/atari/*.md")
    ['results/atari/README.md', 'results/atari/calibration.md']
    """
    found = [path.relative_to(DOCS) for path in DOCS.glob(pattern)]
    return [
        path.as_posix()
        for path in sorted(found, key=lambda path: (path.parent.parts, path.name != "README.md", path.name))
    ]
