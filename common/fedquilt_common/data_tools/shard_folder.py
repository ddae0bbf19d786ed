"""A folder with the samples of each client, and ``manifest.json`` with their digests.

The manifest is written last, so that an unfinished folder has none. Until then ``.progress`` lists the finished files,
and the same command resumes after them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from fedquilt_common.datasets.public import digest_public_set
from fedquilt_common.datasets.shard_files import DatasetForm, form_of, shard_name, write_samples, write_shard
from fedquilt_common.errors import DataUnavailableError, ExperimentError, RunFolderError
from fedquilt_common.experiment_tools import ExperimentTools
from fedquilt_common.files.digests import has_digest
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_common.files.durable import replace_durably, write_durably
from fedquilt_common.files.locking import lock_folder
from fedquilt_common.rejections import first_problem
from fedquilt_common.types import Examples
from fedquilt_common.wire.chunks import Blob
from fedquilt_common.wire.data_messages import FileAddress
from fedquilt_common.wire.message_base import MAX_CLIENTS, Big, Sha256

MANIFEST: Final = "manifest.json"
PUBLIC_FILE, TEST_FILE = "public.safetensors", "test.safetensors"
_PROGRESS: Final = ".progress"
_LOCK: Final = ".lock"
_FORMAT: Final = 1
_CLIENT_PREFIX: Final = "client-"
OnShard = Callable[[int, int], None]
"""Receives the number of finished files and that of all files."""


def _check_address(url: str) -> str:
    urlsplit(url)
    return url


@dataclass(frozen=True)
class ShardFile:
    """A file of samples.

    Attributes:
        digest: SHA-256 in hex.
        size: its bytes.
        url: its address; "" if it lies beside the manifest.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    digest: Sha256
    size: Big
    url: Annotated[FileAddress, AfterValidator(_check_address)] = ""


@dataclass(frozen=True)
class ShardManifest:
    """What a folder of shards holds.

    Attributes:
        experiment: its name.
        clients: number of clients.
        partition: what determines the files: the digests of partition, noise and public samples.
        form: of the samples.
        files: by name.
        format: version of the manifest's form.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    experiment: str
    clients: Annotated[int, Field(ge=1, le=MAX_CLIENTS)]
    partition: str
    form: DatasetForm
    files: Mapping[str, ShardFile]
    format: Literal[1] = _FORMAT

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())

    def encode(self) -> str:
        """Return the manifest's text; the same samples give the same text on every machine."""
        content = asdict(self)
        for file in content["files"].values():
            if not file["url"]:
                del file["url"]
        return json.dumps(content, indent=1, sort_keys=True) + "\n"


_MANIFEST: Final = TypeAdapter(ShardManifest)


def write_shard_folder(
    tools: ExperimentTools, folder: Path, on_shard: OnShard = lambda _finished, _all: None
) -> ShardManifest:
    """Write the samples of each client, unless boards have them; public and official test samples if boards need them.

    Args:
        tools: of the experiment.
        folder: is created. Files of an interrupted call are used again if they are intact.
        on_shard: called after each file.

    Raises:
        ExperimentError: the experiment trains no model, or its data cannot be partitioned.
        DataUnavailableError: files of the data set are missing or damaged.
        RunFolderError: the folder holds something else, the disk is full, or it is not writable.
        FolderInUseError: another process writes there.
    """
    if not tools.learns:
        raise ExperimentError(f"'{tools.experiment.algorithm.name}' trains no model, so its clients have no samples")
    key, writers = describe_partition(tools), dict(_list_writers(tools))
    with report_disk_errors(folder), lock_folder(folder, name=_LOCK):
        finished = _find_finished(folder, key)
        _write_missing(folder, key, writers, finished, on_shard)
        manifest = ShardManifest(
            tools.experiment.name, tools.experiment.data.clients, key, form_of(tools.dataset),
            {name: finished[name] for name in writers},
        )  # fmt: skip
        write_durably(folder / MANIFEST, manifest.encode())
        (folder / _PROGRESS).unlink(missing_ok=True)
    return manifest


def read_manifest(folder: Path) -> ShardManifest:
    """Read a folder's manifest, and check that all of its files are there with the right size and digest.

    Raises:
        DataUnavailableError: the folder has no manifest, or a file is missing or damaged.
    """
    path = folder / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataUnavailableError(
            f"{path}: there is no such file; write the folder with `fedquilt data partition`, or run it again to finish"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataUnavailableError(f"{path}: cannot be read: {error}; check its permissions") from None
    manifest = parse_manifest(text, str(path))
    for name, file in manifest.files.items():
        if not _is_intact(folder / name, file):
            raise DataUnavailableError(
                f"{folder / name}: is missing or differs from {MANIFEST}; run `fedquilt data partition` again"
            )
    return manifest


def parse_manifest(text: str, source: str) -> ShardManifest:
    """Parse a manifest's text.

    Args:
        text: of ``manifest.json``.
        source: its path or address, for messages.

    Raises:
        DataUnavailableError: it is no manifest of this version, lacks the file of a client, or names files outside its
            folder.
    """
    try:
        manifest = _MANIFEST.validate_json(text, strict=True)
        _check_names(manifest)
    except ValidationError as error:
        raise DataUnavailableError(f"{source}: is damaged ({first_problem(error)}); write it again") from None
    except ValueError as error:
        raise DataUnavailableError(f"{source}: is damaged ({error}); write it again") from None
    return manifest


def _check_names(manifest: ShardManifest) -> None:
    """Raise ValueError unless the files lie beside the manifest, with one for each client or none for any."""
    if outside := [name for name in manifest.files if Path(name).name != name]:
        raise ValueError(f"{outside[0][:200]!r} lies in another folder")
    found = {name for name in manifest.files if name.startswith(_CLIENT_PREFIX)}
    expected = {shard_name(client) for client in range(manifest.clients)}
    if found and (lacking := expected - found):
        raise ValueError(f"it lacks {min(lacking)}, one of its {manifest.clients} clients")
    if strange := found - expected:
        raise ValueError(f"{min(strange)[:200]} is of no client; it has {manifest.clients}")


def name_files(tools: ExperimentTools) -> list[str]:
    """Return the names of the files that an experiment's folder has."""
    return [name for name, _ in _list_writers(tools)]


def describe_partition(tools: ExperimentTools) -> str:
    """Return what determines the files, as ``ShardManifest.partition``."""
    samples = "own" if _has_own_samples(tools) else tools.samples_digest()
    public = digest_public_set(tools.public) if tools.experiment.data.public is not None else None
    return f"{samples} {public} {tools.tests_on_official_samples}"


def _has_own_samples(tools: ExperimentTools) -> bool:
    """Whether the boards have the clients' samples themselves."""
    return tools.experiment.data.delivery == "own"


def _list_writers(tools: ExperimentTools) -> Iterator[tuple[str, Callable[[Path], Blob]]]:
    for client in range(0 if _has_own_samples(tools) else tools.experiment.data.clients):
        yield shard_name(client), partial(_write_client, tools, client)
    if tools.experiment.data.public is not None:
        yield PUBLIC_FILE, lambda path: write_samples(path, _take_public(tools))
    if tools.tests_on_official_samples:
        yield TEST_FILE, lambda path: write_samples(path, tools.dataset.test)


def _write_client(tools: ExperimentTools, client: int, path: Path) -> Blob:
    return write_shard(path, tools.shard(client))


def _take_public(tools: ExperimentTools) -> Examples:
    """Return the public samples. Their labels are not used and not handed out: all are 0."""
    form = form_of(tools.dataset)
    return Examples(tools.raw_public, np.zeros((len(tools.raw_public), *form.label_shape), form.label_dtype))


def _write_missing(
    folder: Path, key: str, writers: Mapping[str, Callable[[Path], Blob]], finished: dict[str, ShardFile],
    on_shard: OnShard,
) -> None:  # fmt: skip
    known = [{"partition": key}, *({"name": name, **asdict(file)} for name, file in finished.items())]
    write_durably(folder / _PROGRESS, "".join(map(_as_line, known)))
    with (folder / _PROGRESS).open("a", encoding="utf-8") as progress:
        if not writers.keys() <= finished.keys():
            (folder / MANIFEST).unlink(missing_ok=True)
        for number, (name, write) in enumerate(writers.items(), 1):
            if name not in finished:
                draft = folder / f".{name}.new"
                blob = write(draft)
                replace_durably(draft, folder / name)
                finished[name] = ShardFile(blob.digest, blob.size)
                progress.write(_as_line({"name": name, **asdict(finished[name])}))
                progress.flush()
            on_shard(number, len(writers))


def _as_line(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry) + "\n"


def _find_finished(folder: Path, key: str) -> dict[str, ShardFile]:
    """Return the intact files of an earlier call.

    Raises:
        RunFolderError: the folder holds the samples of another partition, or other files.
    """
    listed = _read_listed(folder)
    if listed is None:
        strangers = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
        if strangers:
            raise RunFolderError(f"{folder}: holds other files, such as {strangers[0]}; choose a new folder")
        return {}
    if listed[0] != key:
        raise RunFolderError(
            f"{folder}: holds the samples of another experiment or partition; choose another folder, or delete this one"
        )
    return {name: file for name, file in listed[1].items() if _is_intact(folder / name, file)}


def _read_listed(folder: Path) -> tuple[str, dict[str, ShardFile]] | None:
    """Return the key and the files of the manifest, else of the list of an interrupted call; None without both."""
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return content["partition"], {name: ShardFile(**fields) for name, fields in content["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return _read_progress(folder)


def _read_progress(folder: Path) -> tuple[str, dict[str, ShardFile]] | None:
    """Return the key and the files of the list; its end may be torn, and the files from there on are written again."""
    try:
        first, *lines = (folder / _PROGRESS).read_text(encoding="utf-8", errors="replace").splitlines()
        key, files = str(json.loads(first)["partition"]), dict[str, ShardFile]()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        for line in lines:
            fields = json.loads(line)
            name = fields.pop("name")
            files[name] = ShardFile(**fields)
    return key, files


def _is_intact(path: Path, file: ShardFile) -> bool:
    return path.is_file() and path.stat().st_size == file.size and has_digest(path, file.digest)
