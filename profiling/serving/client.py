"""How is a server asked, and what does it answer? Requests and streamed events, bounded and checked.

One connection for each request, straight to the host that was named: no proxy, no redirect is followed. The
key goes to that host only and stands in no message. Whatever the server sends is bounded.
"""

from __future__ import annotations

import http.client
import io
import json
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeGuard
from urllib.parse import urlsplit

from variants.errors import UserError
from variants.version import NAME

HEADERS = {"User-Agent": f"{NAME} (experiments.attach)", "Content-Type": "application/json"}
DONE = b"[DONE]"  # the data of a stream's last event
LONGEST_LINE, LONGEST_STREAM, LONGEST_BODY = 1 << 20, 1 << 28, 1 << 24  # bytes
QUOTED = 200  # characters of what a server says
LONGEST_NAME = 500  # characters
SECRET = 8  # characters of a key at least: a shorter one is a word that any name may hold
PORTS = {"http": http.client.HTTP_PORT, "https": http.client.HTTPS_PORT}


class Refused(UserError):
    """The server answered a request with an error."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class _Within(io.RawIOBase):
    """What a socket receives within its timeout, all together: a byte now and then puts no end off."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket) -> None:
        self._raw, self._sock, self._seconds = raw, sock, sock.gettimeout() or 0.0
        self.renew()

    def renew(self) -> None:
        self._end = time.monotonic() + self._seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """An answer whose head and body must come `within` the timeout, or each line that renews it."""

    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        self.within = _Within(self.fp.detach(), sock)
        self.fp = io.BufferedReader(self.within)


@dataclass(frozen=True)
class Server:
    """Where it is, without a trailing /v1; `timeout_s` of its silence are the end. The key is never shown."""

    scheme: str
    host: str
    port: int
    prefix: str
    timeout_s: float
    key: str | None = field(default=None, repr=False)

    @staticmethod
    def at(url: str, timeout_s: float, key: str | None) -> Server:
        """Raises UserError for what is no plain http:// or https:// address, and repeats no part of one that
        may hold a secret."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise UserError(f"the URL cannot be read ({error}); give http://HOST:PORT") from None
        if parts.username or parts.password or parts.query or parts.fragment:
            raise UserError(
                "the URL holds a user, a password, a query or a fragment, which would stand in the record: "
                "give http://HOST:PORT, and a key by --key-env"
            )
        host = parts.hostname or ""
        if parts.scheme not in PORTS or not host or not url.isascii() or not url.isprintable() or " " in url:
            raise UserError(f"{url!r} is no address of a server; give http://HOST:PORT or https://HOST")
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return Server(parts.scheme, host, port or PORTS[parts.scheme], prefix, timeout_s, key)

    @property
    def url(self) -> str:
        """The address as it is printed and kept."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.prefix}"

    def get(self, path: str) -> Any:
        """The JSON value there. Raises Refused for an answer that is an error, UserError for none."""
        return self._whole("GET", path, None)

    def post(self, path: str, body: Mapping[str, object]) -> None:
        """Ask for something whose answer says nothing more. Raises as `get` does."""
        self._whole("POST", path, body)

    def _whole(self, method: str, path: str, body: Mapping[str, object] | None) -> Any:
        with self._connected() as connection, self._in_one_line():
            response = self._asked(connection, method, path, body)
            text = response.read(LONGEST_BODY)
        if method == "POST":
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise UserError(f"{self.url}{path} answers no JSON: it is no OpenAI-compatible server") from None

    @contextmanager
    def streamed(self, path: str, body: Mapping[str, object]) -> Iterator[Iterator[bytes | None]]:
        """The data of each event as it comes, `DONE` the last; None for what only holds the line open.

        The connection stands before, and the request is sent when the first event is asked for.
        Raises Refused, UserError then.
        """
        with self._connected() as connection:
            yield self._events(connection, path, body)

    def _events(
        self, connection: http.client.HTTPConnection, path: str, body: Mapping[str, object]
    ) -> Iterator[bytes | None]:
        data: list[bytes] = []
        with self._in_one_line():
            response = self._asked(connection, "POST", path, body)
            where = f"{self.url}{path}"
            if response.headers.get_content_type() == "application/json":
                said = self.quoted(message_of(response.read(LONGEST_LINE)))
                raise UserError(
                    f"{where} answers in one piece: it does not stream, so nothing is timed; it says {said}"
                )
            length, other, events = 0, b"", False
            response.within.renew()
            while line := response.readline(LONGEST_LINE + 1):
                length += len(line)
                response.within.renew()
                if len(line) > LONGEST_LINE or length > LONGEST_STREAM:
                    raise UserError(f"{where} sends more than any answer is long; stopped")
                line = line.rstrip(b"\r\n")
                if line.startswith(b"data:"):
                    data.append(line[5:].removeprefix(b" "))
                    events = True
                elif line or not data:
                    other = other or line
                    yield None
                else:
                    yield b"\n".join(data)
                    data.clear()
            if data == [DONE]:  # without the empty line that should end it
                yield DONE
            if other and not events:
                raise UserError(f"{where} sends no events; it says {self.quoted(message_of(other))}")

    def _asked(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Mapping[str, object] | None,
    ) -> _Response:
        key = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        content = None if body is None else json.dumps(body).encode()
        connection.request(method, self.prefix + path, content, {**HEADERS, **key})
        response = connection.getresponse()
        assert isinstance(response, _Response)
        where = f"{self.url}{path}"
        if (packed := response.headers.get("Content-Encoding", "identity")) != "identity":
            raise UserError(f"{where} answers in {self.quoted(packed)}, which it was not asked for")
        if response.status == HTTPStatus.OK:
            return response
        if 300 <= response.status < 400:
            to = urlsplit(response.headers.get("Location", "")).netloc.rpartition("@")[2] or "another place"
            raise UserError(
                f"{where} leads to {self.quoted(to)}; nothing is sent there: give that URL, if it is meant"
            )
        if response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            needed = "is refused" if self.key else "is needed: --key-env NAME says which variable holds it"
            raise Refused(f"{where} answers {response.status}: a key {needed}", response.status)
        said = self.quoted(message_of(response.read(LONGEST_LINE)))
        if after := self.quoted(response.headers.get("Retry-After", "")):
            said = f"{said} (Retry-After: {after})".lstrip()
        raise Refused(f"{where} answers {response.status}{': ' if said else ''}{said}", response.status)

    def is_name(self, value: object) -> TypeGuard[str]:
        """Whether a record may hold what the server calls something: short text, without the key."""
        if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= LONGEST_NAME:
            return False
        return self.key is None or len(self.key) < SECRET or self.key not in value

    def quoted(self, text: str) -> str:
        """What the server said, short, on one line, and without the key."""
        plain = "".join(c if c.isprintable() else " " if c.isspace() else "" for c in text)
        plain = plain if self.key is None else plain.replace(self.key, "(the key)")
        words = " ".join(plain.split())
        return words if len(words) <= QUOTED else f"{words[:QUOTED]}..."

    @contextmanager
    def _connected(self) -> Iterator[http.client.HTTPConnection]:
        kind = http.client.HTTPSConnection if self.scheme == "https" else http.client.HTTPConnection
        connection = kind(self.host, self.port, timeout=self.timeout_s)
        connection.response_class = _Response
        try:
            with self._in_one_line():
                connection.connect()
            yield connection
        finally:
            connection.close()

    @contextmanager
    def _in_one_line(self) -> Iterator[None]:
        """What the network says, as UserError."""
        try:
            yield
        except TimeoutError:
            raise UserError(
                f"{self.url} was silent for {self.timeout_s:g} s, or sent no whole line; "
                "--timeout waits longer"
            ) from None
        except ConnectionRefusedError:
            raise UserError(f"{self.url} refuses the connection: is the server running there?") from None
        except (socket.gaierror, UnicodeError):
            raise UserError(f"{self.url}: no host of this name is known") from None
        except ssl.SSLError as error:
            raise UserError(f"{self.url}: no secure connection ({error.reason or error})") from None
        except (http.client.HTTPException, ValueError) as error:  # the latter of a chunk of negative length
            raise UserError(f"{self.url} does not answer as HTTP asks ({type(error).__name__})") from None
        except OSError as error:
            raise UserError(f"{self.url}: the connection broke ({error.strerror or error})") from None


def message_of(body: bytes) -> str:
    """What an error's body says, whichever of the usual forms it has."""
    text = body.decode("utf-8", "replace")
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return text
    for name in ("error", "message", "detail"):
        said = said.get(name, said) if isinstance(said, dict) else said
    return said if isinstance(said, str) else text
