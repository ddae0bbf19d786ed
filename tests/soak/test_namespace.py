"""The namespace: what goes down in it comes up again, and this machine's own network stays as it is."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from tests.soak.faults import NO_NAMESPACE
from tests.soak.namespace import namespace, partitioned, prefix

TALK = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(server.getsockname())
other, _ = server.accept()
for line in sys.stdin:
    one.sendall(b"x")
    other.settimeout(float(line))
    try:
        print(other.recv(1).decode(), flush=True)
    except TimeoutError:
        print("lost", flush=True)
"""


def test_a_partition_loses_packets_and_connections_survive_it() -> None:
    with namespace() as name:
        if name is None:
            pytest.skip(NO_NAMESPACE)
        argv = [*prefix(name), sys.executable, "-c", TALK]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as talk:
            assert talk.stdin is not None
            assert talk.stdout is not None
            talk.stdin.write("60\n")
            assert talk.stdout.readline() == "x\n"
            with partitioned(name):
                with socket.create_server(("127.0.0.1", 0)) as server:  # outside, nothing is lost
                    socket.create_connection(server.getsockname(), timeout=60).close()
                talk.stdin.write("0.2\n")
                assert talk.stdout.readline() == "lost\n"
            talk.stdin.write("60\n")
            assert talk.stdout.readline() == "x\n"
            talk.stdin.close()
