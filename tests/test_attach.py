"""A server asked from outside: what is counted, how it may misbehave, what never leaves."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import pytest
from floor_run import GOLDEN
from hypothesis import given
from hypothesis import strategies as st
from records import MADE

from experiments import attach
from experiments.shared import cli
from profiling.forecast.devices import DEVICES
from profiling.forecast.job import job_of
from profiling.results.folder import RunFolder
from profiling.results.record import AttachRecord, StreamedAnswer
from profiling.results.streamed import Streamed, token_ms, token_ms_at_most
from profiling.serving.asking import COMPLETIONS, asker
from profiling.serving.client import Server
from profiling.sizing.read_shape import read_shape
from reports import build

Json = dict[str, Any]
KEY = "sk-this-is-the-key"
AROUND = 3  # tokens that the scripted server counts beside the words of a prompt
SMALL = ["--context", "20,60", "--tokens", "9", "--repeats", "3", "--timeout", "5"]


@dataclass
class Script:
    """How the server behaves. `usage`: "end", "every" chunk, or "none". `lines` replace the whole answer."""

    models: Any = field(default_factory=lambda: {"data": [{"id": "small", "owned_by": "vllm"}]})
    paths: tuple[str, ...] = (COMPLETIONS,)
    knows: tuple[str, ...] = ("ignore_eos", "stream_options")
    status: int = 200
    said: bytes = b'{"error": {"message": "no, says the server"}}'
    headers: dict[str, str] = field(default_factory=dict)
    kind: str = "text/event-stream"
    stream_headers: dict[str, str] = field(default_factory=dict)
    per_chunk: int = 1
    usage: str = "end"
    longest: int = 1 << 30
    counts: Callable[[int], int] = lambda words: words + AROUND
    lines: Callable[[int], Iterator[bytes]] | None = None
    cut_after: int | None = None  # answers, of which the next is cut off
    on_stop: Callable[[], object] | None = None
    asked: list[tuple[str, Json, dict[str, str]]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0


class Handler(BaseHTTPRequestHandler):
    script: Script

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(json.dumps(self.script.models).encode() if self.path == "/v1/models" else None)

    def _answer(self, body: bytes | None, status: int = 200) -> None:
        script = self.script
        if script.status != 200 or body is None:
            status, body = (script.status, script.said) if body is not None else (404, b"not here")
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **script.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        script = self.script
        body: Json = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        script.asked.append((self.path, body, dict(self.headers)))
        with suppress(BrokenPipeError, ConnectionResetError):  # who asked has had enough
            self._post(body)

    def _post(self, body: Json) -> None:
        script = self.script
        if self.path in ("/start_profile", "/stop_profile") and script.on_stop:
            if self.path == "/stop_profile":
                script.on_stop()
            self._answer(b"")
        elif self.path not in script.paths:
            self._answer(None)
        elif unknown := {"ignore_eos", "stream_options"} & body.keys() - {*script.knows}:
            self._answer(f"unknown: {unknown}".encode(), 422)
        elif self._tokens(body) > script.longest:
            self._answer(b'{"message": "the prompt is too long"}', 400)
        else:
            self._stream(body)

    def _tokens(self, body: Json) -> int:
        text = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
        return self.script.counts(len(text.split()))

    def _stream(self, body: Json) -> None:
        self.send_response(200)
        for name, value in {"Content-Type": self.script.kind, **self.script.stream_headers}.items():
            self.send_header(name, value)
        self.end_headers()
        for line in (self.script.lines or self._lines(body))(body["max_tokens"]):
            self.wfile.write(line)
            self.wfile.flush()
            time.sleep(0.0005)

    def _lines(self, body: Json) -> Callable[[int], Iterator[bytes]]:
        script, prompt = self.script, self._tokens(body)

        def lines(tokens: int) -> Iterator[bytes]:
            script.at_once += 1
            script.most_at_once = max(script.most_at_once, script.at_once)
            for done in range(script.per_chunk, tokens + script.per_chunk, script.per_chunk):
                if script.cut_after is not None and len(script.asked) > script.cut_after and done > 3:
                    return
                said = {"content": "x "} if "messages" in body else None
                choice = {"delta": said} if said else {"text": "x "}
                usage = {"prompt_tokens": prompt, "completion_tokens": min(done, tokens)}
                yield event({"choices": [choice], "usage": usage if script.usage == "every" else None})
            yield event({"choices": [{"text": "", "finish_reason": "length"}]})
            if script.usage == "end":
                yield event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": tokens}})
            script.at_once -= 1
            yield b"data: [DONE]\n\n"

        return lines


def event(chunk: Json) -> bytes:
    return b": still here\n\ndata: " + json.dumps(chunk).encode() + b"\r\n\r\n"


@contextmanager
def serving(script: Script) -> Iterator[str]:
    handler = type("Scripted", (Handler,), {"script": script})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def attached(script: Script, out: Path, *flags: str) -> AttachRecord:
    with serving(script) as url:
        assert attach.main([url, *SMALL, "--quiet", "--out", str(out), *flags]) == 0
    (folder,) = out.iterdir()
    return RunFolder.load(folder, AttachRecord).record


def refusal(url: str, out: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        cli.run(attach.main, [url, *SMALL, "--quiet", "--out", str(out), *flags])
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and error.startswith("error: ") and error.count("\n") == 1
    return error


# -- what is counted ------------------------------------------------------------------------------


@pytest.mark.parametrize("usage", ["end", "every"])
@pytest.mark.parametrize("per_chunk", [1, 4])
def test_tokens_are_what_the_server_counts(usage: str, per_chunk: int, tmp_path: Path) -> None:
    script = Script(usage=usage, per_chunk=per_chunk)
    record = attached(script, tmp_path)
    assert len(record.answers) == 2 * 3 and record.status == "complete"
    for answer in record.answers:
        chunks = -(-9 // per_chunk)
        assert (answer.prompt_tokens, answer.tokens) == (answer.context, 9)
        assert len(answer.arrivals_ms) == chunks and answer.arrivals_ms == sorted(answer.arrivals_ms)
        assert answer.counted == (
            [min(9, per_chunk * n) for n in range(1, chunks + 1)] if usage == "every" else []
        )
    rows = Streamed(record).rows
    assert [row.context for row in rows] == [20, 60]
    for row in rows:
        assert row.token_ms and row.first_ms and row.per_chunk == pytest.approx(9 / chunks)
        assert 0 < row.token_ms.low <= row.token_ms.mid <= row.token_ms.high
    assert Streamed(record).slope_ms is not None


def test_requests_are_polite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As many as were said before, one at a time, bounded, greedy, and no prompt twice."""
    script = Script()
    with serving(script) as url:
        assert attach.main([url, *SMALL, "--out", str(tmp_path)]) == 0
    said, *_ = capsys.readouterr().err.splitlines()
    most = int(said.split("At most ")[1].split()[0])
    assert len(script.asked) == 2 + 2 * (1 + 3) <= most and script.most_at_once == 1
    bodies = [body for _, body, _ in script.asked]
    assert {body["max_tokens"] for body in bodies} == {1, 9}
    assert all(body["temperature"] == 0 and body["stream"] is True for body in bodies)
    assert len({tuple(body["prompt"].split()[:9]) for body in bodies}) == len(bodies)
    headers = script.asked[0][2]
    assert "decode-floor" in headers["User-Agent"] and "Authorization" not in headers


@pytest.mark.parametrize("knows", [("ignore_eos", "stream_options"), ("stream_options",), ()])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_what_the_server_answers_decides_how_it_is_asked(
    knows: tuple[str, ...], path: str, tmp_path: Path
) -> None:
    script = Script(knows=knows, paths=(path,))
    record = attached(script, tmp_path)
    assert record.path == path and all(answer.tokens == 9 for answer in record.answers)
    assert all(("ignore_eos" in body) == ("ignore_eos" in knows) for _, body, _ in script.asked[-6:])


def test_without_usage_tokens_are_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = attached(Script(usage="none"), tmp_path, "--json")
    printed = json.loads(capsys.readouterr().out)
    assert all(answer.tokens is None and token_ms(answer) is None for answer in record.answers)
    assert printed["contexts"]["20"]["token_ms"] is None and len(printed["contexts"]["20"]["first_ms"]) == 3
    assert printed["unknown"][0].startswith("tokens: the server reports no usage")
    assert "time between tokens is unknown" in printed["answer"]


def test_an_answer_in_one_chunk_has_no_time_between_tokens(tmp_path: Path) -> None:
    record = attached(Script(per_chunk=9), tmp_path)
    (row, _) = Streamed(record).rows
    assert row.token_ms is None and row.first_ms is not None and row.gap_p99_ms is None
    assert "all text came in one piece" in " ".join(Streamed(record).unknown())
    (folder,) = tmp_path.iterdir()
    assert "unknown" in (folder / "report.md").read_text("utf-8")


def test_more_tokens_than_were_asked_for_are_no_count(tmp_path: Path) -> None:
    def lines(tokens: int) -> Iterator[bytes]:
        yield event({"choices": [{"text": "x"}]})
        yield event({"choices": [{"text": "x", "finish_reason": "stop"}]})
        yield event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": tokens + 1}})

    assert {answer.tokens for answer in attached(Script(lines=lines), tmp_path).answers} == {None}


def test_a_context_that_is_refused_is_left_out(tmp_path: Path) -> None:
    record = attached(Script(longest=50 + 144), tmp_path, "--context", "20,600")
    assert list(record.left_out) == [600] and "the prompt is too long" in record.left_out[600]
    assert {answer.context for answer in record.answers} == {20}


def test_the_report_comes_from_the_folder_alone(tmp_path: Path) -> None:
    attached(Script(), tmp_path, "--model", "gpt2", "--device", "H100")
    (folder,) = tmp_path.iterdir()
    before = (folder / "report.md").read_text("utf-8")
    assert "PREDICTION" in before and (folder / "figures" / "attach.png").is_file()
    (folder / "report.md").unlink()
    build.main([str(folder)])
    assert (folder / "report.md").read_text("utf-8") == before


def test_the_floor_is_that_of_the_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = attached(Script(), tmp_path, "--model", "gpt2", "--device", "a100", "--json")
    assert record.on_device and (record.on_device.device, record.on_device.engine) == ("A100-80GB", "vllm")
    row = json.loads(capsys.readouterr().out)["contexts"]["60"]
    job = job_of(read_shape("gpt2"), "bfloat16", 60 + 4)  # of the middle of nine tokens, rounded to even
    assert row["floor_ms"] == pytest.approx(job.floor_ms(DEVICES["A100-80GB"]), rel=1e-9)
    assert row["over_floor"] == pytest.approx([ms / row["floor_ms"] for ms in row["token_ms"]])
    low, expected, high = row["predicted_ms"]["graph"]
    assert low < expected < high and expected > row["floor_ms"]
    measured = row["token_ms"]
    assert row["graph_saves_ms"] == pytest.approx(
        [measured[0] - high, measured[1] - expected, measured[2] - low]
    )


@given(
    st.lists(st.floats(0.1, 100), min_size=1, max_size=40),
    st.integers(2, 400),
    st.floats(0.1, 10),
)
def test_a_tokens_time_lies_within_its_bounds(gaps: list[float], tokens: int, unit: float) -> None:
    at = [10 + sum(gaps[:n]) for n in range(len(gaps) + 1)]
    answer = StreamedAnswer(round=0, context=1, prompt_tokens=1, tokens=tokens, arrivals_ms=at)
    ms, most = token_ms(answer), token_ms_at_most(answer)
    assert ms == pytest.approx(sum(gaps) / (tokens - 1)) and most and ms <= most * (1 + 1e-12)
    slower = StreamedAnswer(
        round=0, context=1, prompt_tokens=1, tokens=tokens, arrivals_ms=[unit * x for x in at]
    )
    assert unit < 1 or token_ms(slower) == pytest.approx(unit * ms)


@pytest.mark.parametrize("slope", [0.0, 0.01, -0.01])
def test_the_slope_is_what_a_token_of_context_adds(slope: float) -> None:
    record = AttachRecord(**MADE, contexts=[10, 110, 1010])
    for number in range(4):
        for n in record.contexts:
            step = 20 + number + slope * (n + 2)  # two of four tokens are held in the middle
            at = [5 + step * k for k in range(4)]
            record.answers.append(
                StreamedAnswer(round=number, context=n, prompt_tokens=n, tokens=4, arrivals_ms=at)
            )
    per_token = Streamed(record).slope_ms
    assert per_token and per_token.mid == pytest.approx(slope, abs=1e-9)


# -- how a server may misbehave -------------------------------------------------------------------


def only(*lines: bytes) -> Script:
    return Script(lines=lambda _: iter(lines))


def endless(line: bytes) -> Script:
    def lines(_: int) -> Iterator[bytes]:
        while True:
            yield line

    return Script(lines=lines)


END = event({"choices": [{"text": "", "finish_reason": "stop"}]}) + b"data: [DONE]\n\n"
HOSTILE: dict[str, tuple[Script, str]] = {
    "a key is needed": (Script(status=401), "answers 401: a key is needed: --key-env"),
    "forbidden": (Script(status=403), "answers 403: a key is needed"),
    "broken inside": (Script(status=500), "answers 500: no, says the server"),
    "not OpenAI-compatible": (Script(status=404), "it is no OpenAI-compatible server"),
    "a page": (Script(models="<html>"), "lists no model"),
    "a list of nothing": (Script(models={"data": []}), "lists no model"),
    "models that are none": (Script(models={"data": [{"id": 3}, "x", None]}), "lists no model"),
    "several models": (Script(models={"data": [{"id": "a"}, {"id": "b"}]}), "choose one by --served: a, b"),
    "elsewhere": (
        Script(status=302, headers={"Location": "http://user:secret@other.example/v1?key=1"}),
        "leads to other.example; nothing is sent there",
    ),
    "neither way": (Script(paths=()), "has neither /v1/completions nor /v1/chat/completions"),
    "in one piece": (Script(kind="application/json"), "answers in one piece: it does not stream"),
    "cut off at once": (only(), "cut off after 0 chunks"),
    "cut off inside": (only(event({"choices": [{"text": "x"}]}), b'data: {"choi'), "cut off after 1 chunks"),
    "no JSON": (only(b"data: {nonsense\n\n"), "chunk 1 of the answer cannot be read"),
    "another type": (only(event({"choices": [{"text": 7}]})), "chunk 1 of the answer cannot be read"),
    "a negative count": (
        only(event({"choices": [], "usage": {"completion_tokens": -1}})),
        "chunk 1 of the answer cannot be read",
    ),
    "another object": (only(event({"hello": 1})), "is no part of a completion"),
    "an error": (only(event({"error": {"message": "out of memory"}})), "is an error"),
    "an error of words": (only(b'data: {"error": "out of memory"}\n\n'), "is an error"),
    "bytes that are no text": (only(b"data: \xff\xfe\n\n"), "cannot be read"),
    "deeply nested": (only(b"data: " + b"[" * 100000 + b"\n\n"), "cannot be read"),
    "control characters": (only(b'data: {"error": "\\u001b[2J"}\n\n'), "is an error"),
    "an error in one piece": (
        Script(kind="application/json", lines=lambda _: iter([b'{"error": {"message": "out of memory"}}'])),
        "it says out of memory",
    ),
    "a page in place of events": (only(b"<html>Sign in</html>"), "sends no events; it says <html>Sign in"),
    "compressed": (
        Script(headers={"Content-Encoding": "gzip"}),
        "answers in gzip, which it was not asked for",
    ),
    "too many requests": (
        Script(status=429, headers={"Retry-After": "30"}),
        "says the server (Retry-After: 30)",
    ),
    "a name that is no text": (Script(models={"data": [{"id": "a\ud800"}]}), "lists no model"),
    "a name that draws": (Script(models={"data": [{"id": "\x1b[2J"}]}), "lists no model"),
    "a name without end": (Script(models={"data": [{"id": "m" * 100000}]}), "lists no model"),
    "a chunk of negative length": (
        Script(lines=lambda _: iter([b"-5\r\n"]), stream_headers={"Transfer-Encoding": "chunked"}),
        "does not answer as HTTP asks",
    ),
    "without end": (endless(event({"choices": [{"text": ""}]})), "sends on after"),
    "one line without end": (endless(b"x" * (1 << 20)), "sends more than any answer is long"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_server_does_wrong_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, said = HOSTILE[name]
    with serving(script) as url:
        error = refusal(url, tmp_path / "runs", capsys)
    assert said in error and error[:-1].isprintable() and "secret" not in error
    assert not (tmp_path / "runs").exists()


def test_a_model_that_is_not_there_is_said_with_those_that_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Script()) as url:
        error = refusal(url, tmp_path / "runs", capsys, "--served", "large")
    assert "serves no model 'large'; it serves small" in error


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\n" + b"a" * 70000])
def test_what_is_no_http_server_is_said(
    answer: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def answering() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        threading.Thread(target=answering, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        error = refusal(url, tmp_path / "runs", capsys)
    assert "does not answer as HTTP asks" in error or "the connection broke" in error


def test_silence_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:  # accepts, and says nothing
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        assert "was silent for 0.2 s" in refusal(url, tmp_path / "runs", capsys, "--timeout", "0.2")
    with serving(endless(b": still here\n\n")) as url:
        assert "sent no text for 0.2 s" in refusal(url, tmp_path / "runs", capsys, "--timeout", "0.2")
    with serving(endless(b" ")) as url:  # never silent, and no line
        assert "sent no whole line" in refusal(url, tmp_path / "runs", capsys, "--timeout", "0.2")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("piece", [b"a", b"\r\n\r\nHTTP/1.1 100 Continue"])
def test_an_answer_that_trickles_ends(
    piece: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A byte now and then inside a header, or one 100 Continue after another, is no answer either."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 100 Continue\r\nX: ")
                while True:
                    connection.sendall(piece)
                    time.sleep(0.02)

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        assert "sent no whole line" in refusal(url, tmp_path / "runs", capsys, "--timeout", "0.2")


def test_a_count_that_cannot_be_makes_no_longer_prompt() -> None:
    """A server that counts a token for 128 words is not sent 128 words for each token."""
    script = Script(counts=lambda words: 5 + words // 128)
    with serving(script) as url:
        way = asker(Server.at(url, 5, None), "small", Random(0))
    assert way.per_word is None and way.words(1000) == 1000


def test_nobody_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]
    assert "refuses the connection" in refusal(f"http://127.0.0.1:{port}", tmp_path / "runs", capsys)


def test_an_answer_that_is_cut_off_later_leaves_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Script(cut_after=2 + 2 + 3)) as url:
        error = refusal(url, tmp_path, capsys)
    (folder,) = tmp_path.iterdir()
    assert "was cut off after 3 chunks" in error and str(folder) in error
    record = RunFolder.load(folder, AttachRecord).record
    assert record.status == "incomplete" and len(record.answers) == 3


# -- what is asked wrongly, and what never leaves ---------------------------------------------------


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:8000", "is no address of a server"),
        ("ftp://host", "is no address of a server"),
        ("http://", "is no address of a server"),
        ("http://h ost", "is no address of a server"),
        ("http://höst", "is no address of a server"),
        ("http://host:port", "the URL cannot be read"),
        ("http://[::1", "the URL cannot be read"),
        ("http://me:hidden@host", "which would stand in the record"),
        ("http://host/v1?key=hidden", "which would stand in the record"),
        ("http://host/#hidden", "which would stand in the record"),
    ],
)
def test_a_url_is_checked_and_a_secret_in_it_not_repeated(
    url: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refusal(url, tmp_path / "runs", capsys)
    assert said in error and "hidden" not in error


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--tokens", "1"], "--tokens must be at least 2"),
        (["--repeats", "1"], "--repeats must be at least 2"),
        (["--context", "0"], "--context needs numbers of at least 1"),
        (["--timeout", "0"], "--timeout must be above 0 s"),
        (["--model", "gpt2"], "a floor needs both"),
        (["--model", "gpt2", "--device", "abacus"], "device 'abacus' is not known"),
        (["--model", "gpt2", "--device", "H100", "--context", "2000"], "fewer than --context 2,000"),
        (["--key-env", KEY], "takes the name of an environment variable"),
        (["--trace-folder", "."], "a folder, with --profile"),
    ],
)
def test_flags_are_checked_before_anything_is_sent(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script()
    with serving(script) as url:
        error = refusal(url, tmp_path / "runs", capsys, *flags)
    assert said in error and KEY not in error and not script.asked


def test_a_key_that_cannot_be_sent_is_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", f"{KEY}\nX: y")
    error = refusal("http://host", tmp_path / "runs", capsys, "--key-env", "A_KEY")
    assert "cannot be sent as a key" in error and KEY not in error


@pytest.mark.parametrize("name", ["", "A_KEY"])
def test_a_key_goes_where_it_is_meant_and_nowhere_else(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not without being named, not into the run folder, not to the console where the server repeats it."""
    monkeypatch.setenv("A_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    script, flags = Script(), ["--key-env", name] if name else []
    attached(script, tmp_path / "runs", *flags, "--json")
    sent = {headers.get("Authorization") for _, _, headers in script.asked}
    assert sent == ({f"Bearer {KEY}"} if name else {None})
    contents = [file.read_bytes() for file in (tmp_path / "runs").rglob("*") if file.is_file()]
    assert len(contents) > 3 and not any(KEY.encode() in content for content in contents)
    assert KEY not in "".join(capsys.readouterr())
    named = Script(models={"data": [{"id": f"small of {KEY}"}]})
    escaped = "".join(f"\\u{ord(c):04x}" for c in KEY)
    split = only(b'data: {"error": "' + KEY[:9].encode() + b"\\u0007" + KEY[9:].encode() + b'"}\n\n')
    for hostile in (named, only(f'data: {{"error": "{escaped}"}}\n\n'.encode()), split) if name else ():
        with serving(hostile) as url:
            error = refusal(url, tmp_path / "none", capsys, *flags)
        assert KEY not in error and escaped not in error and KEY[9:] not in error
    for status in (401, 500) if name else ():
        with serving(Script(status=status, said=f"Bearer {KEY} is wrong".encode())) as url:
            assert KEY not in refusal(url, tmp_path / "none", capsys, *flags)


def test_a_redirect_gets_no_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", KEY)
    there = Script()
    with serving(there) as target:
        leading = Script(status=307, headers={"Location": f"{target}/v1/models"})
        with serving(leading) as url:
            assert "nothing is sent there" in refusal(url, tmp_path / "runs", capsys, "--key-env", "A_KEY")
    assert not there.asked


# -- a trace of the engine --------------------------------------------------------------------------


def test_a_trace_of_the_engine_is_explained(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    trace = GOLDEN / "traces" / "sdpa.pt.trace.json.gz"
    script = Script(on_stop=lambda: shutil.copy(trace, there / "rank-0.pt.trace.json.gz"))
    attached(script, tmp_path / "runs", "--profile", "--trace-folder", str(there))
    asked = [path for path, _, _ in script.asked]
    assert asked[-3:] == ["/start_profile", COMPLETIONS, "/stop_profile"]
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "explained" / "report.md").is_file()


@pytest.mark.parametrize("traces", [True, False])
def test_without_a_trace_the_times_stand(traces: bool, tmp_path: Path) -> None:
    record = attached(Script(on_stop=(lambda: None) if traces else None), tmp_path, "--profile")
    page = json.dumps([[str(block) for block in section.blocks] for section in record.page.sections])  # type: ignore[union-attr]
    assert len(record.answers) == 6
    assert ("on the server's disk" if traces else "No trace: ") in page


# -- a real server ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def transformers_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`transformers serve` with a tiny model, in a thread of its own."""
    for needed in ("tokenizers", "fastapi", "uvicorn", "openai", "accelerate"):
        pytest.importorskip(needed, reason="needs what `transformers serve` needs")
    serve = pytest.importorskip("transformers.cli.serve", reason="needs a transformers that serves")
    import tokenizers
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    folder = str(tmp_path_factory.mktemp("served"))
    vocabulary = {
        letter: i for i, letter in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    }
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary | {"<end>": 256}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"vocab_size": 257, "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 1024}
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=256, eos_token_id=256)).save_pretrained(folder)
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    running = serve.Serve(folder, device="cpu", host="127.0.0.1", port=port, non_blocking=True)
    for _ in range(1200):
        if running.server.started:
            break
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    running.kill_server()


def test_a_real_server_is_timed(transformers_server: str, tmp_path: Path) -> None:
    assert attach.main([transformers_server, *SMALL, "--quiet", "--out", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    record = RunFolder.load(folder, AttachRecord).record
    assert record.path == COMPLETIONS and len(record.answers) == 6
    assert all(1 <= (answer.tokens or 0) <= 9 for answer in record.answers)
    # a word and its space are four of its tokens
    assert all(abs((answer.prompt_tokens or 0) - answer.context) <= 2 for answer in record.answers)
