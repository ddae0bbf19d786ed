"""Read a partition that a file lists: which client has which samples (``scheme: manual``)."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.data_file import read_data_file
from fedquilt_common.datasets.files import report_csv_errors
from fedquilt_common.errors import DataUnavailableError, ExperimentError

_KEY = "data.partition.file"
_HEADER = ["client", "index"]
ListedSample = tuple[str, int, int]
"""(place in the file for messages, client, index)."""


def read_mapping(name: str, sha256: str | None, clients: int, free: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Read the samples of each client from a file below the folder in FEDQUILT_DATA.

    A CSV file has the header ``client,index`` and a line for each sample. A JSON file has an object that maps each
    client to the list of its indices. A sample that is not listed has no client.

    Args:
        name: the file; JSON if it ends in ``.json``, else CSV.
        sha256: the digest that the file must have; None: any.
        clients: number of clients. The file must list samples for each of them.
        free: indices that clients may have, ascending.

    Returns:
        For each client the sorted indices of its samples.

    Raises:
        DataUnavailableError: the file cannot be read, or a line of it is wrong.
        ExperimentError: a client has no samples, or the path leads out of the folder.
    """
    path, content = read_data_file(name, sha256, _KEY)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataUnavailableError(f"{path}: is not UTF-8 text; save it as CSV or JSON") from None
    rows = _json_rows(path, text) if path.suffix == ".json" else _csv_rows(path, text)
    return _collect(path, rows, clients, free)


def _collect(
    path: Path, rows: Iterator[ListedSample], clients: int, free: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    shares: list[list[int]] = [[] for _ in range(clients)]
    allowed, owners = set(free.tolist()), dict[int, int]()
    for place, client, index in rows:
        if not 0 <= client < clients:
            raise DataUnavailableError(f"{place}: there is no client {client}, only 0 to {clients - 1}; correct it")
        if index not in allowed:
            raise DataUnavailableError(
                f"{place}: index {index} is not a sample that a client may have; there are {len(allowed)} of them, "
                "counted from 0, without the public samples"
            )
        if index in owners:
            raise DataUnavailableError(
                f"{place}: sample {index} has client {owners[index]} already; list each sample once"
            )
        owners[index] = client
        shares[client].append(index)
    empty = [client for client, share in enumerate(shares) if not share]
    if empty:
        raise ExperimentError(f"{path}: lists no samples of client {empty[0]}; add some, or lower data.clients")
    return [np.sort(np.array(share, dtype=np.int64)) for share in shares]


def _csv_rows(path: Path, text: str) -> Iterator[ListedSample]:
    lines = csv.reader(text.splitlines())
    with report_csv_errors(path):
        if [word.strip() for word in next(lines, [])] != _HEADER:
            raise DataUnavailableError(f"{path}:1: the first line must be {','.join(_HEADER)}")
        for number, words in enumerate(lines, 2):
            if words:
                yield (f"{path}:{number}", *_parse_pair(f"{path}:{number}", words))


def _parse_pair(place: str, words: list[str]) -> tuple[int, int]:
    try:
        client, index = (int(word) for word in words)
    except ValueError:
        raise DataUnavailableError(
            f"{place}: '{','.join(words)[:60]}' is not client,index; write two whole numbers"
        ) from None
    return client, index


def _make_object(path: Path, pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object; of a repeated key, ``json`` alone would keep the last value and drop the others."""
    found = dict[str, object]()
    for key, value in pairs:
        if key in found:
            raise DataUnavailableError(f"{path}: lists client {key[:20]} twice; join both lists")
        found[key] = value
    return found


def _json_rows(path: Path, text: str) -> Iterator[ListedSample]:
    try:
        content = json.loads(text, object_pairs_hook=lambda pairs: _make_object(path, pairs))
    except (ValueError, RecursionError) as error:
        raise DataUnavailableError(f"{path}: is not JSON: {error}; correct it") from None
    if not isinstance(content, dict):
        raise DataUnavailableError(f"{path}: must be an object that maps each client to a list of indices")
    for client, indices in content.items():
        place = f"{path}, client {client[:20]}"
        if not client.isdecimal() or not isinstance(indices, list) or any(type(index) is not int for index in indices):
            raise DataUnavailableError(f"{place}: must be a client's number with a list of whole numbers")
        yield from ((place, int(client), index) for index in indices)
