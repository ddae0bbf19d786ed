"""Start ``python -m`` commands as forks of one process that has already imported their modules.

Linux shares a page between the forks until one of them writes to it, so the forks share what they have imported. Each
starts within milliseconds.

    python -m fedquilt_common.process.fork_server DESCRIPTOR MODULE...

``DESCRIPTOR`` is a listening socket (AF_UNIX, SOCK_SEQPACKET) that this process inherits; the modules are imported
before the first fork. ``forked`` has the other half, and describes the messages.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedquilt_common.process.child import die_with_parent
from fedquilt_common.process.forked import DESCRIPTORS, REQUEST_BYTES
from fedquilt_common.process.malloc import return_freed_memory, trim_heap

READ_ON_IMPORT: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONPATH")
"""Variables that Python and its libraries read only once: a fork cannot get other values."""
_TASKS: Final = Path("/proc/self/task")
_CHILD_SIGNALS: Final = (signal.SIGCHLD, signal.SIGTERM)


class RefusedError(Exception):
    """A command cannot run as a fork of this process; the text gives the reason."""


@dataclass(frozen=True)
class ForkedCommand:
    """A command to run in a fork.

    Attributes:
        argv: as a shell would run it; it begins with this interpreter and ``-m``.
        env: the whole environment.
        folder: its working directory.
        name: what ``ps`` and ``top`` call the process; at most 15 bytes.
        session: whether it leads a session of its own.
    """

    argv: list[str]
    env: Mapping[str, str]
    folder: str
    name: str
    session: bool

    def check(self) -> None:
        """Check that a fork does the same as a process of its own would.

        Raises:
            RefusedError: it would not, and why.
        """
        if self.argv[:2] != [sys.executable, "-m"]:
            raise RefusedError(f"a fork server of {sys.executable} runs modules only, not {self.argv[0]}")
        for name in READ_ON_IMPORT:
            if self.env.get(name) != os.environ.get(name):
                raise RefusedError(f"{name} is {self.env.get(name)}, the fork server has {os.environ.get(name)}")
        if (threads := count_threads()) != 1:
            raise RefusedError(f"the fork server has {threads} threads, and a fork would have only one of them")

    def run(self) -> None:  # pragma: no cover - runs in the child
        """Do what ``python -m`` does."""
        sys.argv[:] = self.argv[2:]
        sys.modules.pop(self.argv[2], None)  # a program begins with nothing of its own module
        runpy.run_module(self.argv[2], run_name="__main__", alter_sys=True)


def count_threads() -> int:
    """Return the number of threads of this process, including those that a library has started."""
    return len(list(_TASKS.iterdir()))


class ForkServer:
    """Forks for each connection; the connection's end ends the fork."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._wake, sender = socket.socketpair()
        self._sender = sender
        for end in (self._wake, sender):
            end.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._running: dict[int, socket.socket] = {}
        """The connection of each fork that has not ended, by process id."""

    def serve(self) -> ForkedCommand:
        """Serve until the process is killed; returns in each fork, with what it must run."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        while True:
            for key, _ in self._selector.select():
                if (command := self._handle(key.fileobj)) is not None:
                    return command

    def _handle(self, source: Any) -> ForkedCommand | None:
        if source is self._listener:
            connection, _ = self._listener.accept()
            self._selector.register(connection, selectors.EVENT_READ)
        elif source is self._wake:
            with contextlib.suppress(BlockingIOError):
                self._wake.recv(4096)
            self._reap()
        elif source.fileno() >= 0:  # an event of the same turn may have closed it
            return self._read(source)
        return None

    def _read(self, connection: socket.socket) -> ForkedCommand | None:
        """Receive a command, or notice that the requester of one has closed the connection or died."""
        try:
            request, descriptors, _, _ = socket.recv_fds(connection, REQUEST_BYTES, DESCRIPTORS)
        except ConnectionError:
            request, descriptors = b"", []
        if not request or _is_closed(connection):
            self._end_fork_of(connection)
            _close_all(descriptors)
            return None
        command = None
        try:
            command = self._fork(ForkedCommand(**json.loads(request)), connection, descriptors)
        except (RefusedError, OSError) as error:
            _send(connection, {"refused": str(error)})
            self._forget(connection)
        finally:
            if command is None:
                _close_all(descriptors)
        return command

    def _fork(self, command: ForkedCommand, connection: socket.socket, descriptors: list[int]) -> ForkedCommand | None:
        """Start a command; returns it in the fork, and None in this process."""
        command.check()
        server = os.getpid()
        pid = os.fork()
        if pid == 0:  # pragma: no cover - runs in the child
            try:
                self._become_child(command, connection, descriptors, server)
            except OSError as error:
                traceback.print_exc()
                _send(connection, {"refused": str(error)})
                os._exit(1)  # it must not go on as a second server
            return command
        self._running[pid] = connection
        return None

    def _become_child(  # pragma: no cover - runs in the child
        self, command: ForkedCommand, connection: socket.socket, descriptors: list[int], server: int
    ) -> None:
        """Give the fork what a process of its own would have."""
        signal.set_wakeup_fd(-1)
        for number in _CHILD_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        if command.session:
            os.setsid()
        die_with_parent(server)
        handle = os.pidfd_open(os.getpid())
        # if the server dies from here on, the requester already knows the process id
        _send(connection, {"pid": os.getpid()}, handle)
        os.close(handle)
        self._close()
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        os.chdir(command.folder)
        os.environ.clear()
        os.environ.update(command.env)
        Path("/proc/self/comm").write_text(command.name)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()  # a process of its own draws another seed, too

    def _close(self) -> None:  # pragma: no cover - runs in the child
        watched: list[Any] = [key.fileobj for key in self._selector.get_map().values()]
        self._selector.close()
        for end in (*watched, self._sender, *self._running.values()):
            end.close()

    def _end_fork_of(self, connection: socket.socket) -> None:
        for pid, owner in self._running.items():
            if owner is connection:
                os.kill(pid, signal.SIGTERM)
                self._selector.unregister(connection)
                return
        self._forget(connection)

    def _reap(self) -> None:
        """Report the exit code of each fork that has ended."""
        for pid in list(self._running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                connection = self._running.pop(pid)
                _send(connection, {"exit": os.waitstatus_to_exitcode(status)})
                self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        with contextlib.suppress(KeyError):  # it has been closed at the other end
            self._selector.unregister(connection)
        connection.close()


def _is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed the connection; it sends nothing after a request."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _send(connection: socket.socket, message: Mapping[str, object], *descriptors: int) -> None:
    with contextlib.suppress(OSError):  # nobody waits for it any more
        socket.send_fds(connection, [json.dumps(message).encode()], list(descriptors))


def _end(listener: socket.socket, server: int, parent: int) -> None:
    """End by SIGTERM. If the process that started this one was killed, delete its socket, and its folder if empty."""
    if os.getpid() == server and os.getppid() != parent:
        path = Path(listener.getsockname())
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another server's socket is there
            path.parent.rmdir()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Import the modules, and serve."""
    listener, server, parent = socket.socket(fileno=int(sys.argv[1])), os.getpid(), os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: _end(listener, server, parent))
    return_freed_memory()
    os.close(os.pidfd_open(os.getpid()))  # fail now on a system that has none
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.collect()
    trim_heap()
    gc.freeze()  # a collection in a fork writes to every object that it visits, and so copies its page
    ForkServer(listener).serve().run()


if __name__ == "__main__":
    main()
