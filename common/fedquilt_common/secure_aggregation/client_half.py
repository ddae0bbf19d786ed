"""The board's half of secure aggregation: secrets, shares, masks, and which shares a client must keep secret."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.client_evaluation import EVALUATE
from fedquilt_common.algorithm_api import Reply, Task
from fedquilt_common.errors import PayloadError
from fedquilt_common.secure_aggregation.fixed_point import to_fixed
from fedquilt_common.secure_aggregation.keys import (
    SEALED_BYTES,
    SECRET_BYTES,
    Purpose,
    agree,
    commitment,
    derive_key,
    new_secret,
    public_key,
    seal,
    split_secret,
    unseal,
)
from fedquilt_common.secure_aggregation.masks import MaskStream, add_masks, pair_sign
from fedquilt_common.secure_aggregation.tasks import (
    ATTEMPT,
    KEYS,
    MASKED_WITH,
    SHARES,
    THRESHOLD,
    UNMASK,
    WEIGHT,
    decode_clients,
    decode_whole,
    without_own,
)
from fedquilt_common.types import ClientId

log = logging.getLogger(__name__)

SHOWN_METRICS: Final = frozenset({"train_seconds", "samples", "epsilon"})
"""Metrics that leave the board. ``samples`` belongs to evaluations, whose counts are not masked either."""
_PAIRS: Final[tuple[Purpose, ...]] = ("cipher", "mask")
_OTHER_AGENT: Final = (
    "the public keys that count for this client are not those of this board: a second agent with its id or its state "
    "has sent them. Stop one of the two agents"
)
LEAST_CLIENTS: Final = 3
"""With two clients each would learn the other's reply from the mean."""


class SecureContext(Protocol):
    """The inputs of a client's task with secure aggregation."""

    @property
    def client(self) -> ClientId:
        """The client's number."""

    @property
    def round(self) -> int:
        """The round's number."""

    @property
    def secrets(self) -> dict[str, NDArray[Any]]:
        """The secrets of the open sum; changes are stored with the reply."""


_EARLY_ADVICE: Final = (
    "The round must go on without it, which participation.quorum below per_round allows, or start again, as with "
    "participation.shortfall: replace"
)
_LATE_ADVICE: Final = (
    "The round goes on as soon as a quorum of clients has sent what removes the masks. If too few have kept their "
    "secrets, nobody can: begin a new run, with an --out of its own"
)


@dataclass(frozen=True)
class SecureClient:
    """Answers the tasks of one client.

    Attributes:
        ctx: of the task.
        weigh: returns the weight of a reply in the mean.
    """

    ctx: SecureContext
    weigh: Callable[[Reply], float]

    def do(self, task: Task, work: Callable[[Task], Reply]) -> Reply:
        """Do a task and return the reply as it may leave the board.

        Args:
            task: of secure aggregation, or of the algorithm.
            work: does a task of the algorithm.

        Raises:
            PayloadError: the task asks for more than the coordinator may know, or belongs to another sum.
        """
        own = {KEYS: self._send_keys, SHARES: self._share_secrets, UNMASK: self._unmask}
        if task.kind in own:
            return own[task.kind](task)
        reply = work(replace(task, scalars=without_own(task.scalars)))
        shown = {name: value for name, value in reply.metrics.items() if name in SHOWN_METRICS}
        if MASKED_WITH in task.scalars:
            return Reply(self._mask(task, reply), 1.0, shown)
        if len(reply.arrays) and task.kind != EVALUATE:
            raise PayloadError(f"task {task.kind!r} asks for a reply without masks, but the experiment promises them")
        return Reply(reply.arrays, 1.0, shown)

    def _send_keys(self, task: Task) -> Reply:
        """Draw the secrets of a new sum and return the public keys, uint8 of shape (2, 32)."""
        cipher, mask = new_secret(), new_secret()
        self.ctx.secrets.clear()
        self.ctx.secrets.update(sum=self._name(task), cipher=to_bytes(cipher), mask=to_bytes(mask))
        return Reply({"keys": _public_keys(self.ctx.secrets)})

    def _share_secrets(self, task: Task) -> Reply:
        """Return sealed shares for each member, uint8 of shape (members, 60), and the commitment to the own mask."""
        secrets, own_mask = self._open(task, "cipher"), new_secret()
        members, keys = [int(c) for c in task.arrays["members"]], np.asarray(task.arrays["keys"])
        threshold = int(task.scalars[THRESHOLD])
        self._check_members(members, threshold)
        if not np.array_equal(keys[members.index(self.ctx.client)], _public_keys(secrets)):
            raise PayloadError(_OTHER_AGENT)
        both = zip(
            split_secret(secrets["mask"].tobytes(), threshold, len(members)),
            split_secret(own_mask, threshold, len(members)),
            strict=True,
        )
        shares = [mask + own for mask, own in both]
        sealed = np.zeros((len(members), SEALED_BYTES), np.uint8)
        for position, peer in enumerate(members):
            if peer != self.ctx.client:
                key = agree(secrets["cipher"].tobytes(), keys[position, 0].tobytes(), "cipher")
                sealed[position] = to_bytes(seal(key, shares[position], self.ctx.client, peer))
        own_shares = to_bytes(shares[members.index(self.ctx.client)])
        secrets.update(
            own=to_bytes(own_mask), members=np.array(members), keys=keys, own_shares=own_shares,
            threshold=np.array([threshold]),
        )  # fmt: skip
        return Reply({"sealed": sealed, "commitment": to_bytes(commitment(own_mask))})

    def _check_members(self, members: list[ClientId], threshold: int) -> None:
        if len(set(members)) != len(members) or self.ctx.client not in members:
            raise PayloadError("the list of clients has a client twice, or lacks this one")
        if threshold < LEAST_CLIENTS or not len(members) < 2 * threshold <= 2 * len(members):
            raise PayloadError(
                f"{threshold} of {len(members)} shares would give a secret: at least {LEAST_CLIENTS} must be needed, "
                "and more than half of them (participation.quorum)"
            )

    def _mask(self, task: Task, reply: Reply) -> dict[str, NDArray[np.int64]]:
        """Return the reply's arrays and its weight in fixed point, with the masks of all pairs and the own one."""
        secrets, peers = self._open(task, "own"), decode_clients(task.scalars)
        members, threshold = secrets["members"].tolist(), int(secrets["threshold"][0])
        if "masked_with" in secrets:
            raise PayloadError(
                "this client has sent its masked reply of this sum; a second one with the same masks would reveal the "
                "difference"
            )
        if self.ctx.client not in peers or not set(peers) <= set(members) or len(set(peers)) < threshold:
            raise PayloadError(f"masks with clients {peers}: too few of {members} have sent shares")
        weight = self.weigh(reply)
        _check_kinds(reply, decode_whole(task.scalars))
        fixed = {name: to_fixed(name, np.asarray(reply.arrays[name]), weight, len(peers)) for name in reply.arrays}
        fixed[WEIGHT] = to_fixed(WEIGHT, np.ones(1), weight, len(peers))
        streams = [MaskStream(derive_key(secrets["own"].tobytes(), "own mask"), 1)]
        for peer in sorted(set(peers) - {self.ctx.client}):
            key = secrets["keys"][members.index(peer), 1].tobytes()
            streams.append(MaskStream(agree(secrets["mask"].tobytes(), key, "mask"), pair_sign(self.ctx.client, peer)))
        add_masks(fixed, streams)
        secrets["masked_with"] = np.array(sorted(set(peers)))
        return fixed

    def _unmask(self, task: Task) -> Reply:
        """Return one share of each client that added masks, uint8 of shape (clients, 16), and forget all secrets.

        For a client whose masked reply has arrived it is a share of its own mask; for one that dropped out, a share of
        the secret of its pairs. Nobody may learn both of one client.
        """
        secrets = self._open(task, "masked_with")
        senders = secrets["masked_with"].tolist()
        survivors, sealed = set(np.asarray(task.arrays["survivors"]).tolist()), np.asarray(task.arrays["sealed"])
        enough = len(survivors) >= int(secrets["threshold"][0])
        if not (enough and survivors <= set(senders) and self.ctx.client in survivors):
            raise PayloadError(f"unmasks clients {sorted(survivors)}: that would reveal single replies")
        if sealed.shape != (len(senders), SEALED_BYTES):
            raise PayloadError(f"sealed shares have shape {sealed.shape} instead of {(len(senders), SEALED_BYTES)}")
        shares = []
        for row, sender in enumerate(senders):
            own = sender == self.ctx.client
            both = secrets["own_shares"].tobytes() if own else self._unseal(sender, sealed[row].tobytes())
            shares.append(to_bytes(both[SECRET_BYTES:] if sender in survivors else both[:SECRET_BYTES]))
        secrets.clear()
        return Reply({"shares": np.stack(shares)})

    def _unseal(self, sender: ClientId, sealed: bytes) -> bytes:
        """Return both shares that a client sealed for this one; zeros, which count as none, if they are damaged."""
        secrets = self.ctx.secrets
        key = secrets["keys"][secrets["members"].tolist().index(sender), 0].tobytes()
        try:
            return unseal(agree(secrets["cipher"].tobytes(), key, "cipher"), sealed, sender, self.ctx.client)
        except PayloadError as error:
            log.warning("%s; this client sends none of them", error)
            return bytes(2 * SECRET_BYTES)

    def _name(self, task: Task) -> NDArray[np.uint8]:
        """Return the bytes that identify the task's sum within the run, shape (n,)."""
        return to_bytes(f"{self.ctx.round} {task.scalars[ATTEMPT]}".encode())

    def _open(self, task: Task, needed: str) -> dict[str, NDArray[Any]]:
        """Return the secrets of the task's sum; an earlier task must have stored the one that is needed."""
        secrets = self.ctx.secrets
        if needed not in secrets or not np.array_equal(secrets["sum"], self._name(task)):
            wanted = _LATE_ADVICE if task.kind == UNMASK else _EARLY_ADVICE
            raise PayloadError(
                "this board has no secrets for this sum: it has sent its shares already, or it lost its state after "
                f"the sum began. {wanted}"
            )
        return secrets


def _public_keys(secrets: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """Return the public keys that belong to a sum's secrets, of shape (2, 32)."""
    return np.stack([to_bytes(public_key(secrets[name].tobytes(), name)) for name in _PAIRS])


def _check_kinds(reply: Reply, whole: Collection[str]) -> None:
    """Check that a reply has whole numbers where the coordinator adds up whole numbers: their fraction is shorter.

    Raises:
        PayloadError: an array has another kind of numbers.
    """
    for name in reply.arrays:
        dtype = np.asarray(reply.arrays[name]).dtype
        if (dtype.kind != "f") != (name in whole):
            raise PayloadError(
                f"array {name!r} has dtype {dtype} instead of {'whole numbers' if name in whole else 'floats'}; name "
                "the dtype in Task.dtypes, or convert the array"
            )


def to_bytes(data: bytes) -> NDArray[np.uint8]:
    """Return bytes as a uint8 array of shape (len(data),)."""
    return np.frombuffer(data, np.uint8)
