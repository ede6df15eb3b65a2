"""A hook of mkdocs: what a page links to outside of `docs` (benchmarks, CONTRIBUTING, examples) comes along, under `repository/`.

Pages are written for readers of the repository, so they link to files there. A site without those files would have broken links, and links
to a server would not work offline.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = "repository"
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]+)([^)]*\))")


def on_files(files: Any, config: Any) -> Any:
    """Add every file that a page needs, and what those need in turn."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - tests import this module without mkdocs

    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    seen = set(waiting)
    while waiting:
        page = waiting.pop()
        for target in sorted(targets((ROOT / page).read_text(), page) - seen):
            seen.add(target)
            if target.startswith("docs/"):
                continue
            files.append(File.generated(config, site_path(target), abs_src_path=str(ROOT / target)))
            if target.endswith(".md"):
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are in the repository become links as they are in the site."""
    return rewritten(markdown, repository_path(page.file.src_uri))


def targets(markdown: str, page: str) -> set[str]:
    """The files of the repository that a page links to, by their paths.

    >>> targets("[a](../CONTRIBUTING.md#x), [b](https://example.org), [c](nowhere.md)", "docs/theory.md")
    {'CONTRIBUTING.md'}
    """
    found = (_resolved(match[2], page) for match in LINK.finditer(markdown))
    return {path for path in found if path is not None}


def rewritten(markdown: str, page: str) -> str:
    """The text of a page with every link that leads out of `docs` led into the site.

    >>> rewritten("[a](../CONTRIBUTING.md#x), [b](glossary.md)", "docs/theory.md")
    '[a](repository/CONTRIBUTING.md#x), [b](glossary.md)'
    >>> rewritten("[a](docs/theory.md)", "CONTRIBUTING.md")
    '[a](../theory.md)'
    """
    here = posixpath.dirname(site_path(page))

    def lead(match: re.Match[str]) -> str:
        path = _resolved(match[2], page)
        return match[0] if path is None else match[1] + posixpath.relpath(site_path(path), here or ".") + match[3]

    return LINK.sub(lead, markdown)


def site_path(path: str) -> str:
    """Where a file of the repository is in the site.

    >>> site_path("docs/theory.md"), site_path("benchmarks/README.md")
    ('theory.md', 'repository/benchmarks/README.md')
    """
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{FOLDER}/{path}"


def repository_path(uri: str) -> str:
    """The other way round."""
    return uri.removeprefix(f"{FOLDER}/") if uri.startswith(f"{FOLDER}/") else f"docs/{uri}"


def _resolved(target: str, page: str) -> str | None:
    if re.match(r"[a-z]+:", target):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    return path if (ROOT / path).is_file() else None  # mkdocs itself complains about the others
