"""The coordinator's half of secure aggregation: an algorithm whose rounds see the mean of the replies only."""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.client_evaluation import EVALUATE
from fedquilt_common.algorithm_api import Reply, Round, ServerContext, State, Task, advance_full_round
from fedquilt_common.algorithm_api.reply_dtypes import reply_dtype
from fedquilt_common.algorithm_api.wrapper import AlgorithmWrapper
from fedquilt_common.errors import PayloadError, SpoiledSumError
from fedquilt_common.plurals import plural
from fedquilt_common.secure_aggregation.fixed_point import fraction_bits, from_fixed
from fedquilt_common.secure_aggregation.keys import (
    KEY_BYTES,
    SEALED_BYTES,
    SECRET_BYTES,
    agree,
    commitment,
    derive_key,
    is_public_key,
    public_key,
)
from fedquilt_common.secure_aggregation.masks import MaskStream, add_masks, pair_sign
from fedquilt_common.secure_aggregation.shares import IsRight, ShareJoiner
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
    encode_whole,
)
from fedquilt_common.types import Arrays, ClientId, Scalar, Shapes
from fedquilt_common.wire.codec import BLOCK, block

log = logging.getLogger(__name__)

Gathered = TypeVar("Gathered")
Exchanges = Generator[Mapping[ClientId, Task], Mapping[ClientId, Reply], Gathered]
"""Exchanges that end with a result."""
_Keys = Mapping[ClientId, NDArray[np.uint8]]
_BYTES: Final = "uint8"


@dataclass(frozen=True)
class SecureRounds(AlgorithmWrapper):
    """An algorithm with secure aggregation around it.

    Each exchange whose replies have arrays becomes four: public keys, shares, masked replies, and shares of the secrets
    that remove the masks. The algorithm then receives the mean as the reply of each client that sent a masked one. The
    coordinator draws nothing, so a round that starts again with the stored replies gives the same bits. The report of
    the round has ``summed``: the number of clients in each mean.

    Attributes:
        inner: it reads of the replies only their mean.
        threshold: number of clients whose shares give a secret.
    """

    threshold: int

    def round(self, state: State, ctx: ServerContext) -> Round:
        inner = self.inner.round(state, ctx)
        tasks, exchange, summed = advance_full_round(inner, None), 0, list[int]()
        while not isinstance(tasks, State):
            tasks = _add_scalars(tasks, {EXCHANGE: exchange})
            if any(_is_summed(task) for task in tasks.values()):
                replies = yield from sum_replies(tasks, self.threshold, f"{ctx.opened!r} {exchange}")
                summed.append(len(replies))
            else:
                replies = yield tasks
            tasks, exchange = advance_full_round(inner, replies), exchange + 1
        return replace(tasks, report={**tasks.report, "summed": summed}) if summed else tasks


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


def sum_replies(tasks: Mapping[ClientId, Task], threshold: int, attempt: str) -> Exchanges[Mapping[ClientId, Reply]]:
    """Ask clients for masked replies and return the mean as the reply of each one that sent one.

    Args:
        tasks: the algorithm's tasks; all expect arrays of the same shapes.
        threshold: number of clients whose shares give a secret.
        attempt: distinguishes this sum from others of the round, even from those before the round started again.

    Raises:
        PayloadError: the tasks expect different arrays.
        SpoiledSumError: too few clients are left, or what clients sent does not fit together.
    """
    _check_alike(tasks)
    scalars: dict[str, Scalar] = {ATTEMPT: attempt, THRESHOLD: threshold}
    keys = yield from _collect_keys(tasks, scalars)
    shares = yield from _collect_shares(keys, scalars)
    masked = yield _masked_tasks({client: tasks[client] for client in shares}, scalars)
    _check_enough(masked, scalars)
    survivors = sorted(masked)
    told = yield from _collect_secret_shares(list(keys), shares, survivors, scalars)
    secrets = _join_secrets(told, threshold, survivors, keys, shares)
    total = _add([masked[client].arrays for client in survivors])
    add_masks(total, _opposite_masks(secrets, survivors, keys))
    task = tasks[survivors[0]]
    return dict.fromkeys(survivors, Reply(_mean(total, task), 1.0, dict.fromkeys(task.metrics, 1.0)))


def _check_alike(tasks: Mapping[ClientId, Task]) -> None:
    different = {id(task): task for task in tasks.values()}.values()
    first, *others = (_shapes(task) for task in different)
    if any(dict(other) != dict(first) for other in others):
        raise PayloadError("the tasks of an exchange expect replies of different shapes, which cannot be summed")


def _collect_keys(clients: Collection[ClientId], scalars: Mapping[str, Scalar]) -> Exchanges[_Keys]:
    """Return the public keys of the clients that answer, uint8 of shape (2, 32), in client order.

    A key that is not valid would make all other clients fail.
    """
    request = Task(KEYS, scalars=scalars, expect={"keys": (2, KEY_BYTES)}, dtypes={"keys": _BYTES})
    answers = yield dict.fromkeys(clients, request)
    keys = {client: np.asarray(answers[client].arrays["keys"]) for client in sorted(answers)}
    usable = {client: pair for client, pair in keys.items() if all(is_public_key(key.tobytes()) for key in pair)}
    if wrong := sorted(keys.keys() - usable.keys()):
        log.warning("secure aggregation leaves out clients whose public keys are not of the curve X25519: %s", wrong)
    _check_enough(usable, scalars)
    return usable


def _collect_shares(keys: _Keys, scalars: Mapping[str, Scalar]) -> Exchanges[dict[ClientId, Arrays]]:
    """Return what the clients that answer have sealed for all with keys, and their commitments, in client order."""
    request = Task(
        SHARES,
        {"members": np.array(list(keys)), "keys": np.stack(list(keys.values()))},
        scalars,
        expect={"sealed": (len(keys), SEALED_BYTES), "commitment": (KEY_BYTES,)},
        dtypes={"sealed": _BYTES, "commitment": _BYTES},
    )
    answers = yield dict.fromkeys(keys, request)
    _check_enough(answers, scalars)
    return {client: answers[client].arrays for client in sorted(answers)}


def _collect_secret_shares(
    members: Sequence[ClientId],
    shares: Mapping[ClientId, Arrays],
    survivors: Sequence[ClientId],
    scalars: Mapping[str, Scalar],
) -> Exchanges[dict[ClientId, dict[int, bytes]]]:
    """Return the shares of one secret of each client that was asked to mask its reply, by the senders' positions.

    It is the secret of its own mask, or that of its pairs if it dropped out.
    """
    answers = yield _unmask_tasks(members, shares, survivors, scalars)
    _check_enough(answers, scalars)
    told = {members.index(client): np.asarray(answers[client].arrays["shares"]) for client in sorted(answers)}
    return {
        client: {position: rows[row].tobytes() for position, rows in told.items() if rows[row].any()}
        for row, client in enumerate(shares)
    }


def _join_secrets(
    told: Mapping[ClientId, Mapping[int, bytes]],
    threshold: int,
    survivors: Collection[ClientId],
    keys: _Keys,
    shares: Mapping[ClientId, Arrays],
) -> dict[ClientId, bytes]:
    """Return one secret of each client that was asked to mask its reply.

    Raises:
        SpoiledSumError: no set of received shares that was tried gives a secret that matches its owner's commitment or
            public key.
    """
    joiner, secrets = ShareJoiner(threshold), dict[ClientId, bytes]()
    for client, given in told.items():
        secret = joiner.join(given, _binding(client, survivors, keys, shares))
        if secret is not None:
            secrets[client] = secret
    members = list(keys)
    if liars := sorted(members[position] for position in joiner.liars):
        log.warning("shares that %s sent do not fit together with the others and are left out", _name(liars))
    if wrong := sorted(told.keys() - secrets.keys()):
        is_sure = (
            secrets and max(map(len, told.values())) > threshold
        )  # without spare shares, a liar could accuse others
        raise _spoiled_by(wrong if is_sure else [])
    return secrets


def _binding(
    client: ClientId, survivors: Collection[ClientId], keys: _Keys, shares: Mapping[ClientId, Arrays]
) -> IsRight:
    """Return the check of a client's secret: by its commitment, or by its public key if it dropped out."""
    if client in survivors:
        expected = np.asarray(shares[client]["commitment"]).tobytes()
        return lambda secret: commitment(secret) == expected
    return lambda secret: public_key(secret, "mask") == _mask_key(keys, client)


def _spoiled_by(clients: Sequence[ClientId]) -> SpoiledSumError:
    if clients:
        text = f"{_name(clients)} shared wrong secrets, so the masks cannot be removed"
    else:
        text = "the shares of the clients' secrets do not fit together, and it is not known who sent wrong ones"
    return SpoiledSumError(text, clients)


def _name(clients: Sequence[ClientId]) -> str:
    return f"{plural('client', len(clients))} {', '.join(map(str, clients))}"


def _check_enough(clients: Collection[ClientId], scalars: Mapping[str, Scalar]) -> None:
    if len(clients) < int(threshold := scalars[THRESHOLD]):
        raise SpoiledSumError(
            f"secure aggregation needs {threshold} clients (participation.quorum), but only {len(clients)} are left"
        )


def _masked_tasks(tasks: Mapping[ClientId, Task], scalars: Mapping[str, Scalar]) -> dict[ClientId, Task]:
    """Return the algorithm's tasks, whose replies are to be masked, in fixed point."""
    first = next(iter(tasks.values()))
    shapes = {**_shapes(first), WEIGHT: (1,)}
    dtypes = dict.fromkeys(shapes, "int64")
    whole = encode_whole([name for name in _shapes(first) if reply_dtype(first, name).kind != "f"])
    asked = _add_scalars(tasks, {**scalars, MASKED_WITH: encode_clients(sorted(tasks)), **whole})
    return {client: replace(task, expect=shapes, dtypes=dtypes, metrics={}) for client, task in asked.items()}


def _unmask_tasks(
    members: Sequence[ClientId],
    shares: Mapping[ClientId, Arrays],
    survivors: Sequence[ClientId],
    scalars: Mapping[str, Scalar],
) -> dict[ClientId, Task]:
    """Return the task of each client that has sent a masked reply, with the shares that the others sealed for it."""
    sealed = np.stack([np.asarray(arrays["sealed"]) for arrays in shares.values()])
    expect = {"shares": (len(shares), SECRET_BYTES)}
    tasks = {}
    for client in survivors:
        arrays = {"sealed": sealed[:, members.index(client)], "survivors": np.array(survivors)}
        tasks[client] = Task(UNMASK, arrays, scalars, expect=expect, dtypes={"shares": _BYTES}, lasting=True)
    return tasks


def _mask_key(keys: _Keys, client: ClientId) -> bytes:
    return bytes(keys[client][1].tobytes())


def _opposite_masks(
    secrets: Mapping[ClientId, bytes], survivors: Collection[ClientId], keys: _Keys
) -> list[MaskStream]:
    """Return what removes the masks that are left in the sum: the own ones, and those of pairs that dropped out."""
    own = [MaskStream(derive_key(secrets[client], "own mask"), -1) for client in survivors]
    pairs = [
        MaskStream(agree(secrets[client], _mask_key(keys, peer), "mask"), pair_sign(client, peer))
        for client in sorted(set(secrets) - set(survivors)) for peer in survivors
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


def _mean(total: Mapping[str, NDArray[np.int64]], task: Task) -> dict[str, NDArray[Any]]:
    """Return the weighted mean, in the dtypes of replies to the task."""
    weight = float(from_fixed(total[WEIGHT])[0])
    if not weight > 0:
        raise SpoiledSumError(
            f"the sum of the replies' weights is {weight:g} instead of a number above 0, so a client has sent a wrong "
            "weight"
        )
    means = {}
    for name, array in total.items():
        if name != WEIGHT:
            dtype = reply_dtype(task, name)
            mean = from_fixed(array, fraction_bits(dtype)) / weight
            means[name] = np.asarray(mean if dtype.kind == "f" else np.rint(mean), dtype)
    return means
