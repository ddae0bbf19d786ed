"""A Mosquitto that requires a password, which a test changes."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from pathlib import Path
from typing import Final

from fedquilt_server.simulate.mosquitto import broker_command, free_port, wait_listening

USER: Final = "ann"
_SALT: Final = b"0123456789ab"
_ROUNDS: Final = 101


def password_line(user: str, password: str) -> str:
    """Return a line of Mosquitto's password file."""
    key = hashlib.pbkdf2_hmac("sha512", password.encode(), _SALT, _ROUNDS)
    return f"{user}:$7${_ROUNDS}${base64.b64encode(_SALT).decode()}${base64.b64encode(key).decode()}\n"


class PasswordBroker:
    """The broker; ``USER`` is its only user. It does not run before ``start``.

    Args:
        folder: for its files.
    """

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"mqtt://{USER}@127.0.0.1:{self.port}"
        self._passwords = folder / "passwords"
        listener = f"listener {self.port} 127.0.0.1", "allow_anonymous false", f"password_file {self._passwords}"
        self._command = broker_command(folder, self.port, listener)
        self._child: subprocess.Popen[bytes] | None = None

    def start(self, password: str) -> None:
        """Start it, or start it again with another password; before version 2.1, a reload damages its memory."""
        self.stop()
        self._passwords.touch(0o600)
        self._passwords.write_text(password_line(USER, password))
        self._child = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)
        wait_listening("127.0.0.1", self.port, timeout=60)

    def stop(self) -> None:
        """Stop it, if it runs."""
        if self._child is not None:
            self._child.terminate()
            self._child.wait(60)
