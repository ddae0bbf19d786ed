"""Processes that a fork server starts, with the methods of ``subprocess.Popen``.

One connection (AF_UNIX, SOCK_SEQPACKET) belongs to each process, and each message is a JSON object:

1. The request has the fields of ``fork_server.ForkedCommand``, with descriptors of standard input, output and error.
2. The process answers ``{"pid": number}`` with a descriptor of itself (pidfd), or the server ``{"refused": reason}``.
3. ``{"exit": code}`` is the last message. The code is negative if a signal has ended the process.

If the side that asked for the process closes the connection or dies, the server ends the process with SIGTERM.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

FORK_SERVER: Final = "FEDQUILT_FORK_SERVER"
"""Environment variable of an agent: path of the socket of the server that forks training processes."""
WORKER_NAME: Final = "worker-"
"""A forked training process is called this and its agent's process id: the agent is not its parent."""
REQUEST_BYTES: Final = 1 << 20
DESCRIPTORS: Final = 3
"""Standard input, output and error."""
NAME_BYTES: Final = 15
"""What Linux keeps of a process's name."""
_LOST: Final = -signal.SIGTERM
"""The exit code of a process whose server has ended: Linux has sent it SIGTERM."""
_NOT_NEEDED: Final = "the fork server did not answer in time"


class ForkedProcess:
    """A process that a fork server starts; any thread may call its methods.

    Args:
        address: path of the server's socket.
        argv: the command: this interpreter, ``-m``, a module and its arguments.
        descriptors: standard input, output and error of the process.
        env: its whole environment.
        name: what ``ps`` calls it; the rest after ``NAME_BYTES`` is cut off.
        session: whether it leads a session of its own.

    Raises:
        OSError: no server listens at the address.
    """

    def __init__(
        self,
        address: str,
        argv: Sequence[str],
        descriptors: Sequence[int],
        env: Mapping[str, str],
        name: str,
        *,
        session: bool = False,
    ) -> None:
        self.pid: int | None = None
        """The process id; None until the server has answered."""
        self.returncode: int | None = None
        self.refusal = ""
        """Why the server does not start the process; then its exit code is that of SIGTERM."""
        self._handle = -1
        self._is_lost = False
        self._lock = threading.Lock()
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {
            "argv": list(argv), "env": dict(env), "folder": str(Path.cwd()),
            "name": name.encode()[:NAME_BYTES].decode(errors="ignore"), "session": session,
        }  # fmt: skip
        try:
            self._connection.connect(address)
            socket.send_fds(self._connection, [json.dumps(request).encode()], list(descriptors))
        except OSError:
            self._connection.close()
            raise

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs, or is not started yet."""
        with self._lock:
            while self.returncode is None and _readable(self._source, 0):
                self._receive()
            return self.returncode

    def wait_started(self, timeout: float) -> bool:
        """Wait until the process runs; returns False if the server refuses or does not answer in time."""
        end = time.monotonic() + timeout
        while self.poll() is None and self.pid is None and (left := end - time.monotonic()) > 0:
            self._await_message(left)
        return self.pid is not None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, and return its exit code.

        Raises:
            subprocess.TimeoutExpired: it runs longer than ``timeout`` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired("fork", timeout or 0)
            self._await_message(left)
        return code

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._send_signal(signal.SIGKILL)

    def _send_signal(self, number: signal.Signals) -> None:
        if self.poll() is not None:
            return
        with self._lock:
            if self._handle < 0:
                self._close(_LOST, _NOT_NEEDED)
                return
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    @property
    def _source(self) -> int:
        """The descriptor that has the next news: the connection, or the process itself once the server is gone."""
        return self._handle if self._is_lost else self._connection.fileno()

    def _await_message(self, seconds: float | None) -> None:
        with contextlib.suppress(OSError, ValueError):  # another thread has closed it
            _readable(self._source, seconds)

    def _receive(self) -> None:
        """Receive the next message; without a server, the only one is that the process has ended."""
        if self._is_lost:
            self._close(_LOST)
            return
        try:
            data, handles, _, _ = socket.recv_fds(self._connection, REQUEST_BYTES, 1)
        except ConnectionError:
            data, handles = b"", []
        message = json.loads(data or b"{}")
        if "pid" in message:
            self.pid, self._handle = message["pid"], handles[0]
        elif "exit" in message:
            self._close(message["exit"])
        elif self._handle >= 0:
            self._is_lost = True
        else:
            self._close(_LOST, message.get("refused", "the fork server has ended"))

    def _close(self, code: int, refusal: str = "") -> None:
        self.returncode, self.refusal = code, refusal
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits
        self._connection.close()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _readable(descriptor: int, seconds: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))
