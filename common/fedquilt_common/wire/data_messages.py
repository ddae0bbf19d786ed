"""The control messages about samples that boards receive."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedquilt_common.wire.message_base import MAX_CLIENTS, Big, MessagePart, Name, Number, Sha256, WireMessage, Word

NumberType = Annotated[str, Field(pattern=r"^(float32|float64|u?int8|int16|int32|int64|bool)$")]
"""Type of an array's numbers, as numpy names it."""
FileAddress = Annotated[str, Field(max_length=2000)]
"""Where to download a file."""


class DataFile(MessagePart):
    """A file with samples that a board needs for its clients.

    Attributes:
        digest: SHA-256 of its bytes, in hex.
        size: its bytes.
        url: where to download it; null: the coordinator publishes it to the agents that request it.
    """

    digest: Sha256
    size: Big
    url: FileAddress | None = None


class DataMessage(MessagePart):
    """The samples of a run whose boards do not have the data set.

    Attributes:
        name: of the data set.
        shape: of a sample.
        dtype: of the samples, as numpy names it.
        classes: number of classes; 0 for regression.
        task: the learning task; empty: classification if there are classes, else regression.
        label_shape: of the label of one sample.
        label_dtype: of the labels, as numpy names it.
        shards: the samples of each client, in client order; empty if the boards have samples of their own.
        public: the public samples; null if the experiment has none.
        test: the official test samples, for algorithms whose clients test on them; null otherwise.
    """

    name: Annotated[str, Field(max_length=200)]
    shape: Annotated[list[Number], Field(max_length=8)]
    dtype: NumberType
    classes: Number
    task: Word
    label_shape: Annotated[list[Number], Field(max_length=8)] = Field(default_factory=list)
    label_dtype: NumberType = "int64"
    shards: Annotated[list[DataFile], Field(max_length=MAX_CLIENTS)] = Field(default_factory=list)
    public: DataFile | None = None
    test: DataFile | None = None


class DataRequest(WireMessage):
    """Topic ``agents/<agent>/requests``: asks for chunks of a ``DataFile``; the coordinator publishes them as ``data``.

    Attributes:
        run: the run's identifier.
        digest: of the file.
        first: number of the first chunk.
        count: number of chunks; the coordinator publishes those that exist.
    """

    run: Name
    digest: Sha256
    first: Number
    count: Annotated[int, Field(ge=1, le=64)]
