"""Checkpoints of a run: the state after each finished round, durable on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

from fedquilt_common.algorithm_api import State
from fedquilt_common.errors import RunFolderError
from fedquilt_common.wire.chunks import Blob
from fedquilt_server.round.events import Replied
from fedquilt_server.runs import clock
from fedquilt_server.runs.journal import StoredCheckpoint, Traffic
from fedquilt_server.runs.run_folder import RunFolder

log = logging.getLogger(__name__)

_NO_ARRAYS: Final = ""
"""Stands for the digest of a state without extra arrays."""


class Checkpoints:
    """The checkpoints of one run folder; a new folder gets one for round 0 with the initial state.

    Args:
        folder: the opened run folder.
        first_state: makes the state before round 1; called in a new folder, and if its files are damaged.
        keep_replies: keep the replies of closed rounds.

    Attributes:
        last: the newest checkpoint.

    Raises:
        RunFolderError: a file of the newest checkpoint is damaged or missing, and cannot be made again.
    """

    def __init__(self, folder: RunFolder, first_state: Callable[[], State], *, keep_replies: bool = False) -> None:
        self._journal, self._blobs = folder.journal, folder.blobs
        self._down = folder.experiment.wire.down
        self._keep_replies = keep_replies
        last = self._journal.last_checkpoint()
        self.last = last or self._begin(first_state())
        if last is not None:
            self._verify(first_state)

    def _verify(self, first_state: Callable[[], State]) -> None:
        """Verify the state's files by their digests; the seed determines the first state, so it can be made again."""
        try:
            self._check_blobs()
        except RunFolderError as error:
            if self.last.round != 0:
                raise
            log.warning("%s. The run has no finished round, so its first state is made again", error)
            self.write(first_state())
            self._check_blobs()

    def _check_blobs(self) -> None:
        for digest in {self.last.arrays, self.last.extra} - {_NO_ARRAYS}:
            self._blobs.blob(digest)

    def _begin(self, state: State) -> StoredCheckpoint:
        arrays, extra = self.write(state)
        start = StoredCheckpoint(0, 0, arrays.digest, extra, clock.now(), "", None, Traffic())
        self._journal.save(start)
        return start

    def read(self) -> State:
        """Return the state of the newest checkpoint; its arrays are read from disk when they are used."""
        return self.read_back(self.last.arrays, self.last.extra)

    def read_back(self, arrays: str, extra: str) -> State:
        """Return a state that was written, from the digests of its arrays; they are read when they are used."""
        return State(self._blobs.arrays(arrays), self._blobs.arrays(extra) if extra != _NO_ARRAYS else {})

    def write(self, state: State, published: Blob | None = None) -> tuple[Blob, str]:
        """Write a state's arrays durably; returns the blob of the global model and the digest of the extra arrays.

        Args:
            published: the blob that was published with the global model; in fp32 the checkpoint uses it as it is.
        """
        extra = self._blobs.put(state.extra).digest if len(state.extra) else _NO_ARRAYS
        model = published if self._down == "fp32" else None
        return model or self._blobs.put(state.arrays), extra

    def published_model(self, state: State, model: Blob) -> Blob:
        """Return the global model in wire precision: in fp32 the checkpoint's own blob."""
        return model if self._down == "fp32" else self._blobs.put(state.arrays, self._down)

    def save(self, checkpoint: StoredCheckpoint) -> None:
        """Commit a checkpoint."""
        self.last = checkpoint
        self._journal.save(checkpoint)

    def clean(self, keep: Collection[str], *, reuse: bool = False) -> None:
        """Delete what the newest checkpoint does not need: blobs whose digest is not in ``keep``, and older replies.

        Replies that were journaled together with the one that closed the round may count in the next one.

        Args:
            reuse: whether more rounds come, whose files are written over the older ones.
        """
        last = self.last
        later = [event for _, event in self._journal.events_after(last.seq) if isinstance(event, Replied)]
        replies = None if self._keep_replies else later
        self._blobs.clean({last.arrays, last.extra, *keep}, replies=replies, reuse=reuse)
