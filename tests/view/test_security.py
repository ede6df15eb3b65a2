"""Row 15: who may see the page. Routes are those of the application itself, so that none is forgotten."""

import hashlib
import json
import os
import re
import socket
import time
from pathlib import Path

import pytest
from starlette.routing import Route

from laser_rl.errors import ConfigError
from laser_rl.view.report import static_files
from laser_rl.view.security import HEADERS, Access, chosen_token
from laser_rl.view.server import application, listening_socket
from tests.view.logs import write_run, write_sweep
from tests.view.serving import TOKEN, Served, serving

NAME = "<script>alert(1)</script>"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "BREW")
UNKNOWN = (
    "/x",
    "/api",
    "/api/",
    "/admin",
    "/static",
    "/docs",
    "/openapi.json",
    "/favicon.ico",
    "//",
    "/%2e%2e/etc/passwd",
)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    os.mkdir(folder / NAME.replace("/", "∕"))  # noqa: PTH102 - a name with a solidus that is none
    write_run(folder / NAME.replace("/", "∕"), 5)
    videos = write_sweep(folder / "sweep", 2, 5) / "videos"
    videos.mkdir()
    (videos / "step-1.mp4").write_bytes(bytes(range(256)) * 40)
    (folder / "secret.mp4").write_bytes(b"secret")
    (videos / "link.mp4").symlink_to(folder / "secret.mp4")
    (videos / "note.txt").write_text("no video")
    facts = {
        "by": "training",
        "step": 640,
        "member": 1,
        "return": 12.5,
        "length": 30,
        "task": "</b><script>",
    }
    (videos / "step-1.json").write_text(json.dumps(facts))
    with serving([folder]) as found:
        yield found


def paths_of(served: Served) -> list[str]:
    """Every route of the application, with something in the place of its parameters."""
    guard = application(served.runs, served.access)
    routes = guard.app.routes
    assert all(isinstance(route, Route) for route in routes), "mounts would hide routes from this test"
    values = {"{run:int}": "0", "{name:path}": "app.js", "{panel}": "returns", "{video}": "0" * 24}
    found = []
    for route in routes:
        path = route.path
        for name, value in values.items():
            path = path.replace(name, value)
        assert "{" not in path, f"this test does not know what to put into {path}"
        found.append(path)
    return found


@pytest.mark.fault(15)
def test_every_route_and_method_is_closed_without_the_token(served, figure):
    asked = 0
    paths = paths_of(served)
    assert {"/", "/api/runs", "/static/app.js"} <= set(paths)
    wrong = [
        {},
        {"cookie": f"{served.access.cookie_name}={'0' * 64}"},
        {"cookie": f"{served.access.cookie_name}={TOKEN}"},  # the token is not the cookie
        {"authorization": f"Bearer {TOKEN}"},
    ]
    for path in [*paths, *UNKNOWN]:
        for method in METHODS:
            for headers in wrong:
                status, answered, body = served.ask(path, method, headers, known=False)
                assert status == 401, (path, method, headers, status)
                assert HEADERS["content-security-policy"] == answered["content-security-policy"]
                assert TOKEN.encode() not in body
                assert "set-cookie" not in answered
                asked += 1
    for query in (
        "?token=",
        "?token=x",
        f"?token={TOKEN[:-1]}",
        f"?token={TOKEN}x",
        f"?token={TOKEN}&token={TOKEN}",
        f"?Token={TOKEN}",
    ):
        assert served.ask(f"/{query}", known=False)[0] == 401
    for path in paths[1:]:  # the token opens the first page and no other
        assert served.ask(f"{path}?token={TOKEN}", known=False)[0] == 401
    assert served.ask(f"/?token={TOKEN}", "POST", known=False)[0] == 401
    figure(
        f"{len(paths)} routes and {len(UNKNOWN)} unknown ones × {len(METHODS)} methods × 4 wrong credentials: {asked} × 401"
    )


@pytest.mark.fault(15)
def test_with_the_token_only_get_and_head(served, figure):
    asked = 0
    for path in [one for one in paths_of(served) if "videos" not in one]:
        for method in METHODS:
            status, _, body = served.ask(path, method)
            assert status == (200 if method in {"GET", "HEAD"} else 405), (path, method, status)
            assert method != "HEAD" or not body
            asked += 1
    assert all(served.ask(path)[0] == 404 for path in UNKNOWN)
    assert served.ask("/x", "POST")[0] == 405  # by the guard, not by a route
    figure(f"known pages: {asked} requests, GET and HEAD 200, all else 405, unknown routes 404")


@pytest.mark.fault(15)
@pytest.mark.parametrize("known", [True, False])
def test_foreign_hosts_and_origins_are_refused(served, known, figure):
    port = served.port
    hosts = ["evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", f"127.0.0.1.evil.example:{port}", "localhost",
             "",             f"0.0.0.0:{port}", f"localhost:{port}.evil.example", f"[::1]:{port}x",
             f"127.0.0.1:{port}, evil.example"]  # fmt: skip
    for path in [*paths_of(served), "/x", f"/?token={TOKEN}"]:
        for host in hosts:
            assert served.ask(path, headers={"host": host}, known=known)[0] == 400, (path, host)
    origins = [
        "http://evil.example",
        "null",
        f"https://127.0.0.1:{port}",
        f"http://127.0.0.1:{port + 1}",
        f"http://127.0.0.1:{port}.evil.example",
        "",
    ]
    for path in [*paths_of(served), "/x", f"/?token={TOKEN}"]:
        for origin in origins:
            assert served.ask(path, headers={"origin": origin}, known=known)[0] == 403, (path, origin)
    for site in ("cross-site", "same-site"):  # another port of this machine is the same site
        for path in [one for one in paths_of(served) if one != "/"]:
            assert served.ask(path, headers={"sec-fetch-site": site, "sec-fetch-mode": "cors"}, known=known)[0] == 403
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}"):
        right = served.ask("/api/runs", headers={"host": host, "origin": f"http://127.0.0.1:{port}"}, known=known)[0]
        assert right == (200 if known else 401)
    figure(
        f"{len(hosts)} foreign hosts 400, {len(origins)} foreign origins 403, on every route, {'with' if known else 'without'} the token"
    )


def test_two_hosts_are_none(served):
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as raw:
        lines = [
            "GET / HTTP/1.1",
            f"Host: 127.0.0.1:{served.port}",
            "Host: evil.example",
            f"Cookie: {served.cookie['cookie']}",
            "",
            "",
        ]
        raw.sendall("\r\n".join(lines).encode())
        assert b" 400 " in raw.recv(4096).split(b"\r\n")[0]


@pytest.mark.fault(15)
def test_no_path_reaches_the_disk(served, figure):
    up = [
        "/static/../server.py", "/static/%2e%2e/server.py", "/static/..%2fserver.py", "/static/..%5cserver.py", "/static//etc/passwd",
        "/static/vendor/../../server.py", "/static/%2fetc%2fpasswd", "/static/app.js%00.css", "/static/vendor", "/static/",
        "/static/__init__.py",
                "/../../../../etc/passwd", "/api/runs/0/videos/../../config.json", "/api/runs/0/videos/..%2f..%2fconfig.json",
        "/api/runs/0/videos/config.json", "/api/runs/1/videos/step-1.mp4", "/api/runs/1/videos/link.mp4", "/api/runs/-1", "/api/runs/99",
        "/api/runs/99/details", "/api/runs/1e0", "/api/runs/0/panels/__class__", "/api/runs/0/panels/..%2f..", "/api/runs/%2e%2e/details",
        "/api/runs/99999999999999999999999", "/api/runs/0/panels/", "/api/runs/%EF%BC%90",
    ]  # fmt: skip
    for path in up:
        status, _, body = served.ask(path)
        assert status == 404, (path, status)
        assert b"root:" not in body
    figure(f"{len(up)} paths upwards or aside: all 404")


def test_videos_in_parts_and_no_link_out(served):
    number = next(run.number for run in served.runs.every() if run.name == "sweep")
    details = json.loads(served.ask(f"/api/runs/{number}/details")[2])
    assert [one["name"] for one in details["videos"]] == ["step-1.mp4"]
    path = f"/api/runs/{number}/videos/{details['videos'][0]['id']}"
    status, headers, body = served.ask(path, headers={"range": "bytes=100-199"})
    assert (status, headers["content-range"], body) == (206, "bytes 100-199/10240", (bytes(range(256)) * 40)[100:200])
    status, headers, body = served.ask(path)
    assert (status, len(body), headers["content-type"]) == (200, 10240, "video/mp4")
    for method in METHODS:
        assert served.ask(path, method)[0] == (200 if method in {"GET", "HEAD"} else 405)
        assert served.ask(path, method, known=False)[0] == 401


def test_nothing_is_served_through_a_folder_of_videos_or_a_log_that_is_a_link(tmp_path):
    elsewhere, run = tmp_path / "elsewhere", write_run(tmp_path / "runs" / "a", 5)
    elsewhere.mkdir()
    (elsewhere / "step-1.mp4").write_bytes(b"secret")
    (run / "videos").symlink_to(elsewhere)
    linked = write_run(tmp_path / "runs" / "b", 0)
    (run / "metrics.jsonl").rename(elsewhere / "metrics.jsonl")
    (linked / "metrics.jsonl").unlink()
    (linked / "metrics.jsonl").symlink_to(elsewhere / "metrics.jsonl")
    digest = hashlib.sha256(b"step-1.mp4").hexdigest()[:24]
    with serving([tmp_path / "runs"]) as served:
        for one in served.runs.every():
            assert served.ask(f"/api/runs/{one.number}/videos/{digest}")[0] == 404
            assert json.loads(served.ask(f"/api/runs/{one.number}/details")[2])["videos"] == []
            time.sleep(0.3)
            assert json.loads(served.ask(f"/api/runs/{one.number}")[2])["rows"] == 0


def test_a_folder_that_becomes_a_link_after_it_was_listed_is_not_followed(tmp_path):
    run = write_run(tmp_path / "runs" / "a", 5)
    (run / "videos").mkdir()
    (run / "videos" / "step-1.mp4").write_bytes(b"own")
    with serving([tmp_path / "runs"]) as served:
        [video] = json.loads(served.ask("/api/runs/0/details")[2])["videos"]
        assert served.ask(f"/api/runs/0/videos/{video['id']}")[2] == b"own"
        [known] = served.runs.every()[0].videos()
        (run / "videos").rename(tmp_path / "elsewhere")
        (run / "videos").symlink_to(tmp_path / "elsewhere")
        served.runs.every()[0].videos = lambda: [known]  # as it was listed a moment ago
        assert served.ask(f"/api/runs/0/videos/{video['id']}")[0] == 404


def test_what_is_beside_a_video_is_told_and_not_served(served):
    number = next(run.number for run in served.runs.every() if run.name == "sweep")
    [told] = json.loads(served.ask(f"/api/runs/{number}/details")[2])["videos"]
    assert {name: told[name] for name in ("step", "member", "return", "length", "task")} == {
        "step": 640, "member": 1, "return": 12.5, "length": 30, "task": "</b><script>",
    }  # fmt: skip
    for name in ("step-1.json", "step-1.mp4", "..%2fsweep.json", "%2e%2e"):
        digest = hashlib.sha256(name.encode()).hexdigest()[:24]
        expected = 200 if name == "step-1.mp4" else 404
        assert served.ask(f"/api/runs/{number}/videos/{digest}")[0] == expected
        assert served.ask(f"/api/runs/{number}/videos/{name}")[0] == 404


@pytest.mark.fault(15)
def test_a_script_as_a_name_is_data(served, figure):
    status, headers, body = served.ask("/api/runs")
    assert (status, headers["content-type"], headers["x-content-type-options"]) == (200, "application/json", "nosniff")
    assert "<script>" in json.loads(body)[0]["name"] or "<script>" in json.loads(body)[1]["name"]
    assert b"<script>alert" not in served.ask("/")[2]
    # The page makes elements, it never parses text as one; and its policy would not run a script that is not a file of ours.
    dangerous = re.compile(
        rb"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|javascript:| on\w+=\"| style=\""
    )
    own = {name: text for name, text in static_files().items() if not name.startswith("vendor/")}
    assert len(own) >= 6
    assert not [name for name, text in own.items() if dangerous.search(text)]
    assert "'unsafe" not in headers["content-security-policy"]
    assert "default-src 'none'" in headers["content-security-policy"]
    figure("a run called <script>…: JSON, nosniff, a page that never parses text, no inline script allowed")


def test_the_token_becomes_a_cookie_and_leaves_the_address(served):
    status, headers, _ = served.ask(f"/?token={TOKEN}", known=False)
    assert (status, headers["location"]) == (303, "/")
    cookie = headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert TOKEN not in cookie
    assert served.ask("/", headers={"cookie": cookie.split(";")[0]}, known=False)[0] == 200
    for name, value in HEADERS.items():
        assert headers[name] == value
    assert "access-control-allow-origin" not in headers


def test_the_same_token_on_the_same_port_knows_old_pages():
    assert Access("a" * 43, 8080).cookie == Access("a" * 43, 8080).cookie != Access("b" * 43, 8080).cookie


@pytest.mark.fault(15)
def test_it_listens_on_loopback_only(served, figure):
    listening = listening_socket(0)
    assert listening.getsockname()[0] == "127.0.0.1"
    listening.close()
    # What the kernel says: nobody listens on this port but on 127.0.0.1.
    lines = [line.split()[1] for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
             if line.split()[3] == "0A"]  # fmt: skip
    assert [one for one in lines if one.endswith(f":{served.port:04X}")] == [f"0100007F:{served.port:04X}"]
    figure("listens on 127.0.0.1 only")


def test_a_port_that_is_taken_is_said(served):
    with pytest.raises(ConfigError, match=f"port {served.port} of 127.0.0.1 cannot be used"):
        listening_socket(served.port)
    with pytest.raises(ConfigError, match="cannot be used"):
        listening_socket(99999)


def test_the_token_is_a_new_one_or_that_of_the_environment(monkeypatch):
    monkeypatch.delenv("LASER_DASHBOARD_TOKEN", raising=False)
    first, second = chosen_token(), chosen_token()
    assert first != second
    assert len(first) >= 43
    monkeypatch.setenv("LASER_DASHBOARD_TOKEN", first)
    assert chosen_token() == first
    for text in ("short", "x" * 20 + "\n" + "y" * 30, "ü" * 50, "x" * 32 + "\n"):
        monkeypatch.setenv("LASER_DASHBOARD_TOKEN", text)
        with pytest.raises(ConfigError, match="expected 32 or more"):
            chosen_token()


def test_vendored_files_are_those_that_were_published():
    told = dict(re.findall(r"dist/(\S+)\s+([0-9a-f]{64})", static_files()["vendor/README.txt"].decode()))
    assert {name: hashlib.sha256(static_files()[f"vendor/{name}"]).hexdigest() for name in told} == told
    assert len(told) == 2
