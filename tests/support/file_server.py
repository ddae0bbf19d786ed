"""A web server with files, ranges and faults, for downloads."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FileServer:
    """Files by path, the requests so far, and faults that the next requests meet.

    Attributes:
        port: on 127.0.0.1.
        files: contents by path such as ``/a.bin``.
        faults: what happens to the next requests, one each; then the server works.
        requests: path and ``Range`` of each request.
        has_ranges: whether ranges are honoured.
        has_validators: whether ETags are sent.
        headers: further headers of each answer; a ``Last-Modified`` is a validator, too.
    """

    port: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    has_ranges: bool = True
    has_validators: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)

    def url(self, path: str) -> str:
        """Address of a file."""
        return f"http://127.0.0.1:{self.port}{path}"

    def etag(self, path: str) -> str:
        """Validator of a file's present version."""
        return f'"{hashlib.sha256(self.files[path]).hexdigest()[:16]}"'

    @property
    def ranges(self) -> list[str]:
        """The ``Range`` of each request; "" where it has none."""
        return [given for _, given in self.requests]


Answer = BaseHTTPRequestHandler
Fault = Callable[[FileServer, Answer], bool]
"""Does harm to one request; returns whether the request is finished."""


def cut_after(count: int) -> Fault:
    """Close the connection after ``count`` bytes of the body."""

    def do(server: FileServer, answer: Answer) -> bool:
        body = server.files[answer.path]
        start = _send_head(server, answer, body)
        answer.wfile.write(body[start : start + count])
        answer.wfile.flush()
        answer.close_connection = True
        return True

    return do


def answer_status(status: int, **headers: str) -> Fault:
    """Answer with a status and no file."""

    def do(server: FileServer, answer: Answer) -> bool:
        answer.send_response(status)
        for name, value in {"Content_Length": "0", **headers}.items():
            answer.send_header(name.replace("_", "-"), value)
        answer.end_headers()
        return True

    return do


def answer_bytes(status: int, body: bytes, **headers: str) -> Fault:
    """Answer with bytes that end where the connection ends, without their number."""

    def do(server: FileServer, answer: Answer) -> bool:
        answer.send_response(status)
        for name, value in {"Connection": "close", **headers}.items():
            answer.send_header(name.replace("_", "-"), value)
        answer.end_headers()
        answer.wfile.write(body)
        return True

    return do


def answer_page(page: bytes) -> Fault:
    """Answer with a web page."""

    def do(server: FileServer, answer: Answer) -> bool:
        answer_status(200, Content_Type="text/html", Content_Length=str(len(page)))(server, answer)
        answer.wfile.write(page)
        return True

    return do


def change_file(path: str, content: bytes) -> Fault:
    """Publish another version of a file, before the request is answered."""

    def do(server: FileServer, answer: Answer) -> bool:
        server.files[path] = content
        return False

    return do


def drop_connection(server: FileServer, answer: Answer) -> bool:
    """Close the connection without an answer."""
    answer.close_connection = True
    return True


@contextmanager
def serve_files(files: Mapping[str, bytes] | None = None) -> Iterator[FileServer]:
    """Run a server until the block ends."""
    state = FileServer(files=dict(files or {}))
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(state)) as server:
        server.daemon_threads = True
        state.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield state
        server.shutdown()
        thread.join()


def _handler(state: FileServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle(self) -> None:
            with suppress(ConnectionError):  # clients leave in the middle of a file
                super().handle()

        def do_GET(self) -> None:
            state.requests.append((self.path, self.headers.get("Range", "")))
            if state.faults and state.faults.pop(0)(state, self):
                return
            body = state.files.get(self.path)
            if body is None:
                answer_status(404)(state, self)
                return
            self.wfile.write(body[_send_head(state, self, body) :])

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _send_head(state: FileServer, answer: Answer, body: bytes) -> int:
    """Send status and headers; returns the first byte that the client gets."""
    etag = state.etag(answer.path)
    wanted = answer.headers.get("Range", "").removeprefix("bytes=").removesuffix("-")
    fits = answer.headers.get("If-Range", etag) in (etag, state.headers.get("Last-Modified")) and state.has_ranges
    start = int(wanted) if wanted and fits else 0
    if start >= len(body) > 0:
        answer.send_response(416)
        answer.send_header("Content-Range", f"bytes */{len(body)}")
        answer.send_header("Content-Length", "0")
        answer.end_headers()
        return len(body)
    answer.send_response(206 if wanted and fits else 200)
    if wanted and fits:
        answer.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
    answer.send_header("Content-Length", str(len(body) - start))
    if state.has_validators:
        answer.send_header("ETag", etag)
    for name, value in state.headers.items():
        answer.send_header(name, value)
    answer.end_headers()
    return start
