"""Derives the expected reply of each client from its task, and checks replies against it.

A reply counts only if it answers the published task, its arrays have the expected names, shapes and dtypes, its
metrics are within bounds, and every number is finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.algorithm_api import Task
from fedquilt_common.errors import PayloadError
from fedquilt_common.flood_control.flood_guard import reply_units
from fedquilt_common.submodels.slices import Slice
from fedquilt_common.types import ClientId, ExchangeId, Precision, Shapes
from fedquilt_common.wire.chunks import ChunkHeader, check_size
from fedquilt_common.wire.codec import PackedArrays, wire_dtype
from fedquilt_common.wire.container_header import DTYPES, LENGTH_BYTES, header_size, read_header
from fedquilt_common.wire.messages import REPLY_KEY, ReplyHeader
from fedquilt_common.wire.parsing import parse
from fedquilt_common.wire.round_messages import RoundMessage, TaskMessage
from fedquilt_common.wire.texts import shorten_text

Layout = Mapping[str, tuple[str, tuple[int, ...]]]
"""Array name -> (wire dtype, shape)."""
_SUM_BYTES: Final = 16
"""Limit of the bytes of a number of a partial sum; sums of trained models take about 4."""
MEMBER_BYTES: Final = 1024
"""Limit of the bytes of a partial sum's member; with three metrics one takes about 30."""
_NAMED: Final = 3
"""Arrays that an error names; it counts the others."""


@dataclass(frozen=True)
class SumTerms:
    """What replies must have in common to travel as one partial sum.

    Attributes:
        base: digest of the patch with the arrays that their clients receive; None if it is not one patch.
        members: clients that may be in one sum, at most.
    """

    base: str | None
    members: int


@dataclass(frozen=True)
class ExpectedReply:
    """The properties that the reply of one client must have.

    Attributes:
        exchange: round and exchange that it answers.
        fingerprint: of the task that it answers.
        layouts: its arrays match one of these exactly.
        metrics: name -> smallest and largest value that counts, both included.
        public: digest of the public samples whose soft labels it carries; None if it carries none.
        summed: what a partial sum with it must have; None: it must come alone.
    """

    exchange: ExchangeId
    fingerprint: str
    layouts: Sequence[Layout]
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    public: str | None = None
    summed: SumTerms | None = None

    @cached_property  # asked for each chunk
    def limit(self) -> int:
        """The largest reply in bytes, or the largest partial sum, with room for the container's header."""
        alone = largest_size(self.layouts)
        return alone if self.summed is None else max(alone, _largest_sum(self.layouts, self.summed.members))

    @property
    def sizes(self) -> dict[str, int]:
        """Numbers of each of its arrays, if it has no choice among layouts."""
        return {name: math.prod(shape) for name, (_, shape) in self.layouts[0].items()}


def largest_reply_units(layouts: Mapping[ClientId, Sequence[Layout]], chunk: int) -> float:
    """Return the units of the largest reply, in chunks of at most ``chunk`` bytes.

    Args:
        layouts: as ``task_layouts`` returns them.
    """
    different = {id(choices): choices for choices in layouts.values()}.values()
    return max((reply_units(largest_size(choices), chunk) for choices in different), default=0.0)


def largest_size(layouts: Sequence[Layout]) -> int:
    """Return the largest size in bytes of a reply that has one of these layouts."""
    return max(_content_size(layout) + 8192 + 256 * len(layout) for layout in layouts)


def task_layouts(tasks: Mapping[ClientId, Task], up: Precision) -> dict[ClientId, Sequence[Layout]]:
    """Return the layouts that the reply of each client may have; clients with the same sub-model share one object.

    Args:
        tasks: the tasks of an exchange.
        up: precision in which floats travel to the coordinator.
    """
    layouts: dict[tuple[int, int, Slice | None], Sequence[Layout]] = {}
    of_client = {}
    for client, task in tasks.items():
        key = id(task.arrays), id(task.expect), task.slice
        if key not in layouts:
            layouts[key] = _layouts(task, up)
        of_client[client] = layouts[key]
    return of_client


def expected_replies(
    message: RoundMessage,
    tasks: Mapping[ClientId, Task],
    layouts: Mapping[ClientId, Sequence[Layout]],
    public: str | None = None,
) -> dict[ClientId, ExpectedReply]:
    """Return the expected reply of each client of an exchange.

    Args:
        message: the manifest of the exchange.
        tasks: the tasks that the manifest describes.
        layouts: of these tasks, as ``task_layouts`` returns them.
        public: digest of the public samples.
    """
    exchange = message.round, message.exchange
    return {
        client: ExpectedReply(
            exchange,
            fingerprint,
            layouts[client],
            tasks[client].metrics,
            public if tasks[client].labels else None,
            terms,
        )
        for group, terms in ((group, _sum_terms(message, group)) for group in message.tasks)
        for client, fingerprint in message.fingerprints(group, group.clients).items()
    }


def _sum_terms(message: RoundMessage, group: TaskMessage) -> SumTerms | None:
    if not group.summed:
        return None
    base = message.patches[group.patches[0]].digest if len(group.patches) == 1 else None
    return SumTerms(base, sum(len(other.clients) for other in message.tasks))


def _layouts(task: Task, up: Precision) -> list[Layout]:
    if task.expect is None and task.slice is None:
        return [{name: (wire_dtype(x.dtype, up), tuple(x.shape)) for name, x in task.arrays.items()}]
    arrays = task.arrays if task.slice is None else task.slice.anatomy.arrays
    dtypes = {name: np.dtype(arrays[name].dtype) for name in arrays}
    dtypes |= {name: np.dtype(kind) for name, kind in task.dtypes.items()}
    return [
        {name: (wire_dtype(dtypes.get(name, np.dtype(np.float32)), up), tuple(shape)) for name, shape in shapes.items()}
        for shapes in _allowed_shapes(task)
    ]


def _allowed_shapes(task: Task) -> Sequence[Shapes]:
    if task.expect is None:
        return [] if task.slice is None else [task.slice.shapes]
    return task.expect if isinstance(task.expect, tuple) else [task.expect]


def _largest_sum(layouts: Sequence[Layout], members: int) -> int:
    """Return the largest size in bytes of a partial sum whose replies have one of these layouts."""
    numbers = max(sum(math.prod(shape) for _, shape in layout.values()) for layout in layouts)
    arrays = max(map(len, layouts))
    return _SUM_BYTES * numbers + 512 * arrays + MEMBER_BYTES * members + 65_536


def _content_size(layout: Layout) -> int:
    """Return the bytes of all numbers of a layout."""
    return sum(DTYPES[dtype].itemsize * math.prod(shape) for dtype, shape in layout.values())


def check_announced(header: ChunkHeader, payload: bytes, expected: ExpectedReply) -> None:
    """Check the size of a reply when one of its chunks arrives, before memory or disk is taken for it.

    Args:
        header: of the chunk.
        payload: the chunk; the first one names the arrays of the reply.
        expected: what the reply must be.

    Raises:
        ProtocolError: the reply is too large; the text names the arrays that are not expected if the first chunk does.
    """
    try:
        check_size(header, expected.limit)
    except PayloadError as error:
        found = _announced(header, payload)
        wrong = f": {''.join(_difference(found, expected.layouts[0]))}" if found else ""
        raise PayloadError(f"{error}{wrong}") from None


def _announced(header: ChunkHeader, payload: bytes) -> Layout:
    """Return the arrays that the first chunk of a reply announces; none if it is no whole head of a container."""
    begin, size = header.head + payload, header.size + len(header.head)
    try:
        end = LENGTH_BYTES + header_size(begin[:LENGTH_BYTES], size)
        places = read_header(begin[LENGTH_BYTES:end], size)[1] if header.index == 0 else {}
    except PayloadError:
        return {}
    return {name: (place.dtype, place.shape) for name, place in places.items()}


def check_reply(run: str, client: ClientId, expected: ExpectedReply, arrays: PackedArrays) -> ReplyHeader:
    """Check a complete reply against the expected one; returns its header.

    Raises:
        ProtocolError: the reply differs from the expected one; the text names the difference.
    """
    header = _header(arrays)
    if (header.run, header.client, (header.round, header.exchange)) != (run, client, expected.exchange):
        raise PayloadError("the header of the reply names another run, client or exchange than its topic")
    if header.task != expected.fingerprint:
        raise PayloadError("the reply answers another task than the one that was published")
    _check_public(header.public, expected.public)
    _check_layout(arrays, expected.layouts)
    check_metrics(header.metrics, expected.metrics)
    _check_finite(arrays)
    return header


def _header(arrays: PackedArrays) -> ReplyHeader:
    return parse(ReplyHeader, arrays.metadata.get(REPLY_KEY, "").encode(), "the reply's header")


def _check_layout(arrays: PackedArrays, layouts: Sequence[Layout]) -> None:
    found = {name: (arrays.dtype(name), arrays.shape(name)) for name in arrays}
    if any(found == dict(layout) for layout in layouts):
        return
    wrong, advice = _difference(found, layouts[0])
    if len(layouts) == 1:
        raise PayloadError(shorten_text(f"{wrong}{advice}"))
    raise PayloadError(
        shorten_text(
            f"the reply matches none of the {len(layouts)} allowed layouts, such as one nested in the sub-model that "
            f"was sent: {wrong}"
        )
    )


def _difference(found: Layout, layout: Layout) -> tuple[str, str]:
    """Return the first difference, and advice for the author of the algorithm."""
    if extra := found.keys() - layout.keys():
        return f"the reply has arrays that its task does not expect: {_name(extra)}", "; list them in Task.expect"
    if missing := layout.keys() - found.keys():
        advice = "; list those that it has in Task.expect"
        return f"the reply lacks arrays that its task expects: {_name(missing)}", advice
    name = next((name for name in layout if found[name] != layout[name]), None)
    if name is None:
        return "its arrays are those that are expected, so its header is too long", ""
    (dtype, shape), (expected_dtype, expected_shape) = found[name], layout[name]
    if shape != expected_shape:
        return f"array {name!r} has shape {shape} instead of {expected_shape}", "; give its shape in Task.expect"
    kinds = f"{_numpy_name(dtype)} instead of {_numpy_name(expected_dtype)}"
    return f"array {name!r} has dtype {kinds}", "; name its dtype in Task.dtypes, or convert the array"


def _numpy_name(dtype: str) -> str:
    return "bfloat16" if dtype == "BF16" else DTYPES[dtype].name


def _check_public(found: str | None, expected: str | None) -> None:
    if expected is not None and found != expected:
        labels = "do not name their public set" if found is None else f"are of public set {found[:12]}"
        raise PayloadError(f"the soft labels {labels}; the coordinator's is {expected[:12]}")


def _name(arrays: Iterable[str]) -> str:
    names = sorted(arrays)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(repr(name[:60]) for name in names[:_NAMED]) + more


def check_metrics(found: Mapping[str, float], bounds: Mapping[str, tuple[float, float]]) -> None:
    """Check that a reply has the metrics that its task requires, each within its bounds.

    Raises:
        PayloadError: one is missing or out of bounds.
    """
    for name, (least, most) in bounds.items():
        if name not in found:
            raise PayloadError(f"the reply lacks the metric {name!r}")
        if not least <= found[name] <= most:
            raise PayloadError(f"metric {name!r} is {found[name]:g}; it must be between {least:g} and {most:g}")


def _check_finite(arrays: PackedArrays) -> None:
    if all(map(_is_finite, arrays.blocks())):
        return
    wrong = next(name for name in arrays if not all(map(_is_finite, arrays.blocks(name))))
    raise PayloadError(f"array {wrong!r} holds numbers that are not finite")


def _is_finite(numbers: NDArray[Any]) -> bool:
    return numbers.dtype.kind != "f" or bool(np.isfinite(numbers).all())
