"""Models of the hub: what is fetched from a server that speaks its protocol, and what its cache answers."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from variants import hub
from variants.errors import UserError

pytest.importorskip("huggingface_hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16, "vocab_size": 11}
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"a pickle",
    "modeling_own.py": b"raise SystemExit",
}


class Hub(BaseHTTPRequestHandler):
    """One repository, org/tiny, at one commit; every path that is asked for is kept."""

    asked: list[str]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(path)
        if path.startswith("/api/models/org/tiny/revision/"):
            siblings = [{"rfilename": name} for name in FILES]
            self._send(json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": siblings}).encode())
        elif path.startswith("/api/models/org/tiny/tree/"):
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in FILES.items()
            ]
            self._send(json.dumps(entries).encode())
        elif path.startswith(f"/org/tiny/resolve/{COMMIT}/") and path.rpartition("/")[2] in FILES:
            self._send(FILES[path.rpartition("/")[2]])
        else:
            self._send(b"{}", 404)

    do_HEAD = do_GET

    def _send(self, data: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Not on stderr."""


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """The address of a hub, and the paths that it was asked for."""
    asked: list[str] = []
    answering = ThreadingHTTPServer(("127.0.0.1", 0), type("Asked", (Hub,), {"asked": asked}))
    threading.Thread(target=answering.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{answering.server_port}", asked
    answering.shutdown()
    answering.server_close()


def python(code: str, home: Path, endpoint: str) -> subprocess.CompletedProcess[str]:
    """Run with a cache and an endpoint of its own, which the library reads when it is imported."""
    settings = {
        "HF_HOME": str(home),
        "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    command = [sys.executable, "-c", f"from variants import hub\n{code}"]
    return subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=60)


def test_a_model_is_fetched_without_its_code_and_named_by_its_commit(
    server: tuple[str, list[str]], tmp_path: Path
) -> None:
    endpoint, asked = server
    done = python(
        "name = hub.fetched('hub:org/tiny@main')\n"
        "print(name, sorted(file.name for file in hub.folder_of(name).iterdir()))",
        tmp_path, endpoint,
    )  # fmt: skip
    assert done.stdout.strip() == f"hub:org/tiny@{COMMIT} ['config.json', 'model.safetensors']", done.stderr
    assert not any(path.endswith((".bin", ".py")) for path in asked)

    # the same commit again asks nobody, and needs no network
    asked.clear()
    again = python(f"print(hub.fetched('hub:org/tiny@{COMMIT}'))", tmp_path, endpoint)
    assert again.stdout.strip() == f"hub:org/tiny@{COMMIT}" and not asked
    offline = python("print(hub.fetched('hub:org/tiny@main'))", tmp_path, "http://127.0.0.1:9")
    assert offline.stdout.strip() == f"hub:org/tiny@{COMMIT}", offline.stderr


def test_a_shape_needs_the_settings_alone(server: tuple[str, list[str]], tmp_path: Path) -> None:
    endpoint, asked = server
    code = (
        "from profiling.sizing.read_shape import read_shape\n"
        "shape = read_shape('hub:org/tiny')\n"
        "print(shape.name, shape.n_layer, shape.head_dim)"
    )
    done = python(code, tmp_path, endpoint)
    assert done.stdout.split() == ["org/tiny", "1", "4"], done.stderr
    assert not any(path.endswith("model.safetensors") for path in asked)


@pytest.mark.parametrize("name", ["hub:org/none", "hub:a/b/c", "hub:", "hub:org/tiny@v9", "hub:spaced name"])
def test_what_the_hub_does_not_give_is_one_line(
    name: str, server: tuple[str, list[str]], tmp_path: Path
) -> None:
    code = (
        "from variants.errors import UserError\n"
        f"try: hub.fetched({name!r})\n"
        "except UserError as error: print(error)"
    )
    endpoint = "http://127.0.0.1:9" if name.endswith("@v9") else server[0]  # there nobody answers
    done = python(code, tmp_path, endpoint)
    assert done.stdout.startswith(f"--model {name}: not in the cache") and done.stdout.count("\n") == 1, (
        done.stderr
    )


def test_without_the_package_the_line_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match="pip install huggingface_hub"):
        hub.fetched("hub:org/tiny")


def test_other_names_stay_as_they_are() -> None:
    assert hub.fetched("gpt2") == "gpt2" and hub.folder_of("some/folder") == Path("some/folder")
