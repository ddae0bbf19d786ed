"""The clients' private memory during a replay, as the boards held it after each reply that counts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedquilt_common.training_jobs import CheckedFile
from fedquilt_common.types import ClientId, ExchangeId
from fedquilt_common.wire.round_messages import RoundMessage


class Memories:
    """Private memories in ``folder``, one file for each client and reply after which it changed.

    A memory is named by the reply after which it holds. Several replies share the file if the memory did not change.

    Attributes:
        after: for each client and reply, the name and the digest of its memory's file; None for no memory.
    """

    def __init__(self, folder: Path, after: Mapping[tuple[ClientId, ExchangeId], CheckedFile | None]) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.after = dict(after)

    def draft(self, client: ClientId, exchange: ExchangeId, fingerprint: str) -> Path:
        """Return the path to which a training process writes the memory after a task."""
        return self.folder / f"{client}-{exchange[0]}.{exchange[1]}-{fingerprint}"

    def before(self, message: RoundMessage, client: ClientId) -> CheckedFile | None:
        """Return the memory with which a client starts an exchange; None if it has none."""
        since = message.memory_of(client)
        return None if since is None else self.after.get((client, since))

    def commit(self, message: RoundMessage, client: ClientId, changed: CheckedFile | None) -> None:
        """Record the memory after a reply that counts.

        Args:
            message: the manifest of the exchange.
            client: the client that replied.
            changed: its new memory; None if the memory did not change.
        """
        self.after[client, (message.round, message.exchange)] = changed or self.before(message, client)

    def keep(self, counted: Mapping[ClientId, ExchangeId]) -> None:
        """Forget every memory except the one after each client's last reply that counts; ``clean`` deletes its file."""
        self.after = {key: file for key, file in self.after.items() if counted.get(key[0]) == key[1]}

    def clean(self) -> None:
        """Delete the files of forgotten memories, once the stored progress does not name them any more."""
        used = {file.path for file in self.after.values() if file is not None}
        for path in self.folder.iterdir():
            if path not in used:
                path.unlink()
