"""The documentation site: every page is in it, its parts are made from the package, nothing in it is loaded from elsewhere."""

import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from laser_rl.cli import COMMANDS
from laser_rl.config import setting_fields
from laser_rl.errors import THEIRS
from tests.view.chromium import PROGRAM, Chromium

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SETTINGS = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def hook(name):
    spec = importlib.util.spec_from_file_location(f"hook_{name}", DOCS / "hooks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages_of(entry):
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry
    return [page for one in inner for page in pages_of(one)]


def test_every_page_is_in_the_navigation_once():
    listed = pages_of(hook("navigation").expanded(SETTINGS["nav"]))
    assert len(listed) == len(set(listed))
    assert set(listed) == {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}


def test_every_setting_has_a_row_with_its_default():
    text = "\n".join(hook("made").settings())
    assert set(re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE)) == set(setting_fields())
    [row] = re.findall(r"^\| `replay.capacity_steps` .*$", text, re.MULTILINE)
    assert row.startswith("| `replay.capacity_steps` | whole number, ≥ 1 | `100,000` | Environment steps that are kept")
    [row] = re.findall(r"^\| `loss.trust_bound` .*$", text, re.MULTILINE)
    assert "| float, > 0 or none | `None` |" in row


def test_a_command_says_what_its_help_says():
    help_text = hook("made").help_of("status")
    assert help_text.startswith("usage: laser status")
    assert "\x1b" not in help_text
    assert "--json" in help_text


def test_the_names_of_other_libraries_have_a_row_each():
    text = "\n".join(hook("made").names())
    assert {*re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in text.splitlines()))} == {*THEIRS}
    assert "| `gamma` | `loss.discount` | the same number |" in text


def test_a_page_is_led_to_files_outside_of_docs():
    repository = hook("repository")
    text = "[a](../benchmarks/README.md#x) ![b](images/dashboard.png) [c](https://example.org/d.md)"
    assert (
        repository.rewritten(text, "docs/scaling.md")
        == "[a](repository/benchmarks/README.md#x) ![b](images/dashboard.png) [c](https://example.org/d.md)"
    )
    assert repository.targets(text, "docs/scaling.md") == {"benchmarks/README.md", "docs/images/dashboard.png"}
    assert repository.rewritten("[a](kernels.md)", "benchmarks/README.md") == "[a](kernels.md)"


class Loaded(HTMLParser):
    """What a browser would fetch to show a page: not where its links lead."""

    def __init__(self):
        super().__init__()
        self.addresses, self.inline = [], []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag != "a":
            self.addresses += [given[name] for name in ("src", "href", "srcset", "poster", "data") if given.get(name)]
        self.inline += [given["style"]] if given.get("style") else []


def fetched(page):
    parser = Loaded()
    parser.feed(page.read_text())
    return parser.addresses + re.findall(r"url\(([^)]*)\)", " ".join(parser.inline))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="make docs installs it")
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_is_built_without_a_broken_link_and_loads_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    elsewhere = {address for page in pages for address in fetched(page) if re.match(r"(https?:)?//", address)}
    assert not elsewhere
    for style in site.rglob("*.css"):
        assert not re.findall(r"url\(['\"]?(?:https?:)?//", style.read_text()), style
    commands = (site / "reference" / "commands.html").read_text()
    assert all(f">laser {name}" in commands for name in COMMANDS)
    assert "LASER" in (site / "reference" / "api.html").read_text()
    assert "of 10 coins" in (site / "notebook.html").read_text()


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="needs Chromium: apt-get install chromium")
def test_search_works_from_the_disk_and_asks_nobody(site, tmp_path):
    with Chromium(tmp_path / "profile") as browser:
        asked = []
        listen = browser._listen

        def hear(message):
            if message.get("method") == "Network.requestWillBeSent":
                asked.append(message["params"]["request"]["url"])
            listen(message)

        browser._listen = hear
        browser.go((site / "index.html").as_uri())
        browser.wait("document.readyState === 'complete' && document.querySelector('.md-search__input') !== null")
        browser.run("document.querySelector('.md-search__input').focus()")
        for letter in "autoreset":
            browser.key(letter)
        found = browser.wait("document.querySelectorAll('.md-search-result__link').length", 30)
        assert found >= 3
        assert asked
        assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))]
