"""Writes the files that a training process leaves: a client's reply, or the sum of those of a joint job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pydantic import ValidationError

from fedquilt_common.algorithm_api import Reply
from fedquilt_common.errors import AlgorithmError
from fedquilt_common.rejections import first_problem
from fedquilt_common.training_jobs import Job
from fedquilt_common.types import Arrays, Precision
from fedquilt_common.wire.chunks import Blob
from fedquilt_common.wire.codec import PackedArrays, write_arrays
from fedquilt_common.wire.messages import MAX_METRICS, REPLY_KEY, ReplyHeader, RunMessage, SumHeader

if TYPE_CHECKING:
    from fedquilt_common.partial_sums.members import SumMember


def reply_header(job: Job, run: RunMessage, reply: Reply, taken: Mapping[str, float | None]) -> ReplyHeader:
    """Return the reply's header; the algorithm's own metrics come before what the training has taken.

    Raises:
        AlgorithmError: the weight is not above 0, a metric is not finite, or there are too many.
    """
    metrics = {name: float(value) for name, value in reply.metrics.items()}
    for name, value in taken.items():
        if value is not None and len(metrics) < MAX_METRICS:
            metrics.setdefault(name, float(value))
    try:
        return ReplyHeader(
            run=run.run,
            round=job.round,
            exchange=job.exchange,
            client=job.client,
            task=job.fingerprint,
            weight=float(reply.weight),
            metrics=metrics,
            public=run.public if job.labels else None,
        )
    except ValidationError as error:
        raise AlgorithmError(f"what the algorithm's `work` returned: {first_problem(error)}") from None


def write_reply(job: Job, arrays: Arrays, up: Precision, header: ReplyHeader) -> Blob:
    """Write a reply, over the bytes of a spare file if there is one."""
    if job.spare is not None:
        with suppress(FileNotFoundError):
            job.spare.replace(job.reply)
    return write_arrays(job.reply, arrays, up, {REPLY_KEY: header.model_dump_json()}, labels=job.labels)


def write_joint_reply(
    job: Job, run: str, members: Sequence[SumMember], replies: Sequence[PackedArrays], base: Arrays
) -> Blob:
    """Write the sum of the replies of a joint job.

    Args:
        job: the joint job.
        run: identifier of the run.
        members: the clients of the replies, in their order.
        replies: as their receiver reads them.
        base: what the clients received.

    Raises:
        PayloadError: the replies have different arrays, or numbers that are not finite.
    """
    from fedquilt_common.partial_sums.partial_sum import check_layouts, write_partial_sum

    digest = job.patches[0].digest
    assert digest is not None  # noqa: S101 - that of a received patch is known
    check_layouts(replies)
    header = SumHeader(run=run, round=job.round, exchange=job.exchange, base=digest)
    return write_partial_sum(job.reply, header, members, replies, base)


def round_figure(figure: float | None) -> float | None:
    """Round to six digits, which sensors do not exceed: the others are most of a partial sum's bytes for a client."""
    return None if figure is None else float(f"{figure:.6g}")
