"""The coordinator's half of secure aggregation: an algorithm whose rounds see the mean of the replies only."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.client_evaluation import EVALUATE
from fedquilt_common.algorithm_api import (
    Algorithm,
    ClientContext,
    Declaration,
    Reply,
    Round,
    ServerContext,
    State,
    Task,
    declaration_of,
)
from fedquilt_common.errors import PayloadError
from fedquilt_common.secure_aggregation.fixed_point import from_fixed
from fedquilt_common.secure_aggregation.keys import (
    KEY_BYTES,
    SEALED_BYTES,
    SECRET_BYTES,
    agree,
    commitment,
    derive_key,
    join_shares,
    public_key,
)
from fedquilt_common.secure_aggregation.masks import MaskStream, add_masks, pair_sign
from fedquilt_common.secure_aggregation.tasks import (
    ATTEMPT,
    EXCHANGE,
    KEYS,
    MASKED_WITH,
    SHARES,
    THRESHOLD,
    UNMASK,
    WEIGHT,
    encode_clients,
)
from fedquilt_common.types import Arrays, ClientId, Scalar, Shapes
from fedquilt_common.wire.codec import BLOCK, block

Exchanges = Generator[Mapping[ClientId, Task], Mapping[ClientId, Reply], Mapping[ClientId, Reply]]
_BYTES: Final = "uint8"


@dataclass(frozen=True)
class SecureRounds:
    """An algorithm with secure aggregation around it.

    Each exchange whose replies have arrays becomes four: public keys, shares, masked replies, and shares of the secrets
    that remove the masks. The algorithm then receives the mean as the reply of each client that sent a masked one. The
    coordinator draws nothing, so a round that starts again with the stored replies gives the same bits.

    Attributes:
        inner: the algorithm; it reads of the replies only their mean.
        threshold: number of clients whose shares give a secret.
    """

    inner: Algorithm
    threshold: int

    @property
    def declares(self) -> Declaration:
        """What the algorithm declares."""
        return declaration_of(self.inner)

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        return self.inner.init(model, ctx)

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        return self.inner.work(task, ctx)

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        return self.inner.evaluate(state, ctx)

    def round(self, state: State, ctx: ServerContext) -> Round:
        inner = self.inner.round(state, ctx)
        tasks, exchange = next(inner), 0
        while True:
            tasks = _add_scalars(tasks, {EXCHANGE: exchange})
            if any(_is_summed(task) for task in tasks.values()):
                replies = yield from sum_replies(tasks, self.threshold, f"{ctx.opened!r} {exchange}")
            else:
                replies = yield tasks
            try:
                tasks, exchange = inner.send(replies), exchange + 1
            except StopIteration as done:
                result: State = done.value
                return result


def _add_scalars(tasks: Mapping[ClientId, Task], scalars: Mapping[str, Scalar]) -> dict[ClientId, Task]:
    """Return the tasks with further scalars; tasks that were one object stay one."""
    made = {id(task): replace(task, scalars={**task.scalars, **scalars}) for task in tasks.values()}
    return {client: made[id(task)] for client, task in tasks.items()}


def _is_summed(task: Task) -> bool:
    return task.kind != EVALUATE and len(_shapes(task)) > 0


def _shapes(task: Task) -> Shapes:
    """Return the shapes of the reply's arrays."""
    if task.expect is None:
        return {name: tuple(array.shape) for name, array in task.arrays.items()}
    if isinstance(task.expect, tuple):
        raise PayloadError(f"task {task.kind!r} allows replies of several shapes, which cannot be summed")
    return task.expect


def sum_replies(tasks: Mapping[ClientId, Task], threshold: int, attempt: str) -> Exchanges:
    """Ask clients for masked replies and return the mean as the reply of each one that sent one.

    Args:
        tasks: the algorithm's tasks; all expect arrays of the same shapes.
        threshold: number of clients whose shares give a secret.
        attempt: tells this sum from others of the round, also from those before the round started again.

    Raises:
        PayloadError: too few clients are left, or shares do not belong to the keys.
    """
    scalars = {ATTEMPT: attempt}
    request = Task(KEYS, scalars=scalars, expect={"keys": (2, KEY_BYTES)}, dtypes={"keys": _BYTES})
    answers = yield dict.fromkeys(tasks, request)
    members = sorted(answers)
    _check_enough(members, threshold)
    keys = np.stack([np.asarray(answers[client].arrays["keys"]) for client in members])
    request = Task(
        SHARES,
        {"members": np.array(members), "keys": keys},
        {**scalars, THRESHOLD: threshold},
        expect={"sealed": (len(members), SEALED_BYTES), "commitment": (KEY_BYTES,)},
        dtypes={"sealed": _BYTES, "commitment": _BYTES},
    )
    answers = yield dict.fromkeys(members, request)
    senders = sorted(answers)
    _check_enough(senders, threshold)
    sealed = {client: np.asarray(answers[client].arrays["sealed"]) for client in senders}
    commitments = {client: np.asarray(answers[client].arrays["commitment"]).tobytes() for client in senders}
    masked = yield _masked_tasks({client: tasks[client] for client in senders}, scalars)
    survivors = sorted(masked)
    _check_enough(survivors, threshold)
    shown = yield _unmask_tasks(members, senders, survivors, sealed, scalars)
    told = {client: np.asarray(shown[client].arrays["shares"]) for client in sorted(shown)[:threshold]}
    _check_enough(list(told), threshold)
    shares = {members.index(client): rows for client, rows in told.items()}
    secrets = {
        client: join_shares({position: rows[row].tobytes() for position, rows in shares.items()})
        for row, client in enumerate(senders)
    }
    public = {client: keys[row, 1].tobytes() for row, client in enumerate(members)}
    _check_secrets(secrets, survivors, public, commitments)
    total = _add([masked[client].arrays for client in survivors])
    add_masks(total, _opposite_masks(secrets, survivors, public))
    task = tasks[survivors[0]]
    reply = Reply(_mean(total, task.arrays), 1.0, dict.fromkeys(task.metrics, 1.0))
    return dict.fromkeys(survivors, reply)


def _check_enough(clients: Sequence[ClientId], threshold: int) -> None:
    if len(clients) < threshold:
        raise PayloadError(
            f"secure aggregation needs {threshold} clients (participation.quorum), but only {len(clients)} are left"
        )


def _masked_tasks(tasks: Mapping[ClientId, Task], scalars: Mapping[str, Any]) -> dict[ClientId, Task]:
    """Return the algorithm's tasks, whose replies are to be masked, in fixed point."""
    shapes = {**_shapes(next(iter(tasks.values()))), WEIGHT: (1,)}
    dtypes = dict.fromkeys(shapes, "int64")
    asked = _add_scalars(tasks, {**scalars, MASKED_WITH: encode_clients(sorted(tasks))})
    return {client: replace(task, expect=shapes, dtypes=dtypes, metrics={}) for client, task in asked.items()}


def _unmask_tasks(
    members: Sequence[ClientId],
    senders: Sequence[ClientId],
    survivors: Sequence[ClientId],
    sealed: Mapping[ClientId, NDArray[np.uint8]],
    scalars: Mapping[str, Any],
) -> dict[ClientId, Task]:
    """Return the task of each client that has sent a masked reply, with the shares that the others sealed for it."""
    expect = {"shares": (len(senders), SECRET_BYTES)}
    tasks = {}
    for client in survivors:
        column = members.index(client)
        arrays = {"sealed": np.stack([sealed[sender][column] for sender in senders]), "survivors": np.array(survivors)}
        tasks[client] = Task(UNMASK, arrays, scalars, expect=expect, dtypes={"shares": _BYTES})
    return tasks


def _check_secrets(
    secrets: Mapping[ClientId, bytes],
    survivors: Sequence[ClientId],
    public: Mapping[ClientId, bytes],
    commitments: Mapping[ClientId, bytes],
) -> None:
    for client, secret in secrets.items():
        right = commitments[client] if client in survivors else public[client]
        if (commitment(secret) if client in survivors else public_key(secret, "mask")) != right:
            raise PayloadError(f"the shares of client {client}'s secret are wrong, so its mask cannot be removed")


def _opposite_masks(
    secrets: Mapping[ClientId, bytes], survivors: Sequence[ClientId], public: Mapping[ClientId, bytes]
) -> list[MaskStream]:
    """Return what removes the masks that are left in the sum: the own ones, and those of pairs that dropped out."""
    own = [MaskStream(derive_key(secrets[client], "own mask"), -1) for client in survivors]
    gone = sorted(set(secrets) - set(survivors))
    pairs = [
        MaskStream(agree(secrets[client], public[peer], "mask"), pair_sign(client, peer))
        for client in gone for peer in survivors
    ]  # fmt: skip
    return own + pairs


def _add(replies: Sequence[Arrays]) -> dict[str, NDArray[np.int64]]:
    """Return the sum of masked arrays modulo 2^64, in the shapes of the replies."""
    total = {}
    for name in replies[0]:
        sums = np.zeros(replies[0][name].shape, np.int64)
        flat = sums.reshape(-1)
        for start in range(0, flat.size, BLOCK):
            stop = min(start + BLOCK, flat.size)
            for arrays in replies:
                flat[start:stop] += block(arrays, name, start, stop)
        total[name] = sums
    return total


def _mean(total: Mapping[str, NDArray[np.int64]], like: Arrays) -> dict[str, NDArray[Any]]:
    """Return the weighted mean, float32 or in the dtype that ``like`` has for integers."""
    weight = float(from_fixed(total[WEIGHT])[0])
    if not weight > 0:
        raise PayloadError("the replies' weights must not all be zero")
    means = {}
    for name, array in total.items():
        if name != WEIGHT:
            mean = from_fixed(array) / weight
            whole = name in like and like[name].dtype.kind != "f"
            means[name] = np.asarray(np.rint(mean), like[name].dtype) if whole else mean.astype(np.float32)
    return means
