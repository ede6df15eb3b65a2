"""Films in reports: in the page if they are small, a link if not, and never a request."""

import base64
import os
import re
from urllib.parse import unquote

import pytest

from laser_rl.metrics.report import write_report
from laser_rl.metrics.reporting import html
from tests.metrics.test_report import a_run
from tests.metrics.test_videos import trained

SOURCE = re.compile(r'<video [^>]*src="data:video/mp4;base64,([^"]+)"')


@pytest.fixture
def run_dir(tmp_path):
    run_dir = a_run(tmp_path / "a run")
    trained(run_dir, 100, 9.0).write_bytes(b"the best")
    trained(run_dir, 200, 1.0, trusted=0.25, member=3).write_bytes(b"between")
    trained(run_dir, 300, 2.0).write_bytes(b"the newest")
    return run_dir


def test_the_newest_and_the_best_are_in_the_page(run_dir):
    for path, when in zip(sorted((run_dir / "videos").glob("*.mp4")), (1, 2, 3), strict=True):
        os.utime(path, (when, when))
    page, text, table = (path.read_text() for path in write_report([run_dir], formats=["html", "markdown", "csv"]))
    assert [base64.b64decode(one) for one in SOURCE.findall(page)] == [b"the newest", b"the best"]
    assert "media-src data:" in page
    assert not re.search(r"https?:|<script", page)
    assert "Newest: step 300, return 2" in page
    assert "Best: step 100, return 9" in page
    assert "of the other policies whose experience this agent replays" in page
    assert "videos/step-000000000200.mp4" in text
    assert "25.0 %" in text
    assert ",Episodes that were filmed,2,trusted,0.25," in table


def test_a_large_one_is_a_link_that_leads_there(run_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(html, "LARGEST_BYTES", 9)
    for out in (None, tmp_path / "elsewhere" / "report.html"):
        [path] = write_report([run_dir], out)
        page = path.read_text()
        assert [base64.b64decode(one) for one in SOURCE.findall(page)] == [b"the best"]
        [link] = re.findall(r'<a href="([^"]+)">Newest', page)
        assert (path.parent / unquote(link)).read_bytes() == b"the newest"
        assert link.startswith(".")


def test_of_several_directories_films_are_named_only(run_dir, tmp_path):
    page = write_report([run_dir, a_run(tmp_path / "b", 2.0, seed=8)], tmp_path / "report.html")[0].read_text()
    assert "<video" not in page
    assert "./a%20run/videos/step-000000000300.mp4" in page


def test_a_link_out_of_the_directory_is_no_film(run_dir, tmp_path):
    (tmp_path / "secret.mp4").write_bytes(b"secret")
    (run_dir / "videos" / "zz.mp4").symlink_to(tmp_path / "secret.mp4")
    page = write_report([run_dir])[0].read_text()
    assert base64.b64encode(b"secret").decode() not in page
    assert "zz.mp4" not in page


def test_a_folder_of_films_that_is_a_link_is_not_followed(run_dir, tmp_path):
    (run_dir / "videos").rename(tmp_path / "elsewhere")
    (run_dir / "videos").symlink_to(tmp_path / "elsewhere")
    page = write_report([run_dir])[0].read_text()
    assert "<video" not in page
    assert "step-000000000300" not in page


def test_no_films_no_section(tmp_path):
    assert "Videos" not in write_report([a_run(tmp_path / "a")])[0].read_text()
