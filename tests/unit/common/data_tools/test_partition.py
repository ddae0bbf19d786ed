"""``fedquilt data partition`` and ``publish``: shards, their manifest, bundles."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedquilt_common import cli
from fedquilt_common.data_tools import shard_folder
from fedquilt_common.data_tools.inspect_data import inspect_target
from fedquilt_common.data_tools.publish_data import publish_bundle
from fedquilt_common.data_tools.shard_folder import MANIFEST, read_manifest, write_shard_folder
from fedquilt_common.datasets.shard_files import Shard, form_of, read_shard, shard_name, write_shard
from fedquilt_common.errors import DataUnavailableError, ExperimentError, FedquiltError, RunFolderError
from fedquilt_common.experiment.experiment import dump_experiment
from fedquilt_common.experiment_file import load_experiment
from fedquilt_common.experiment_tools import ExperimentTools
from fedquilt_common.wire.chunks import Blob

EXPERIMENTS = Path(__file__).parents[4] / "deploy" / "experiments"
FEDAVG = EXPERIMENTS / "digits-fedavg.yaml"


def tools_of(name: str = "digits-fedavg", *overrides: str) -> ExperimentTools:
    return ExperimentTools(load_experiment(EXPERIMENTS / f"{name}.yaml", overrides), ())


def write(folder: Path, tools: ExperimentTools | None = None) -> Path:
    write_shard_folder(tools or tools_of(), folder, lambda *_: None)
    return folder


def recording(names: list[str]) -> Callable[[Path, Shard], Blob]:
    def write_and_record(path: Path, shard: Shard) -> Blob:
        names.append(path.name)
        return write_shard(path, shard)

    return write_and_record


def visible(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.startswith(".")}


def die(*_: object) -> None:
    raise KeyboardInterrupt


def test_each_client_has_a_file_with_its_samples(tmp_path: Path) -> None:
    tools, done = tools_of(), list[tuple[int, int]]()
    manifest = write_shard_folder(tools, tmp_path / "out", lambda *numbers: done.append(numbers))
    assert list(manifest.files) == [shard_name(client) for client in range(8)]
    assert done == [(number, 8) for number in range(1, 9)]
    for client in range(8):
        shard, expected = read_shard(tmp_path / "out" / shard_name(client), form_of(tools.dataset)), tools.shard(client)
        assert np.array_equal(shard.train.x, expected.train.x)
        assert np.array_equal(shard.train.y, expected.train.y)
    assert read_manifest(tmp_path / "out") == manifest
    assert set(visible(tmp_path / "out")) == {MANIFEST, *manifest.files}
    counted = inspect_target(str(tmp_path / "out"), (), (), None).clients
    assert counted is not None
    assert [group.samples for group in counted.groups] == [len(tools.shard(client).train) for client in range(8)]


def test_public_samples_come_without_their_labels(tmp_path: Path) -> None:
    tools = tools_of("digits-fedakd")
    manifest = write_shard_folder(tools, tmp_path / "out", lambda *_: None)
    assert "public.safetensors" in manifest.files
    public = read_shard(tmp_path / "out" / "public.safetensors", form_of(tools.dataset)).train
    assert np.array_equal(public.x, tools.public)
    assert not np.any(public.y)


def test_the_same_experiment_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (visible(write(tmp_path / name, tools_of())) for name in ("a", "b"))
    assert first == second
    other = visible(write(tmp_path / "c", tools_of("digits-fedavg", "seed=99")))
    assert other.keys() == first.keys()
    assert other != first


@pytest.mark.parametrize("after", [0, 1, 5, 8])
def test_an_interrupted_partition_resumes(after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = list[str]()

    def write_or_die(path: Path, shard: Shard) -> Blob:
        if len(written) == after:
            path.write_bytes(b"half of a file")
            raise KeyboardInterrupt
        written.append(path.name)
        return write_shard(path, shard)

    monkeypatch.setattr(shard_folder, "write_shard", write_or_die)
    if after < 8:
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "out")
        assert not (tmp_path / "out" / MANIFEST).exists()
        with pytest.raises(DataUnavailableError, match="run it again to finish"):
            read_manifest(tmp_path / "out")
    again = list[str]()
    monkeypatch.setattr(shard_folder, "write_shard", recording(again))
    write(tmp_path / "out")
    assert len(again) == 8 - (after if after < 8 else 0)
    assert visible(tmp_path / "out") == visible(write(tmp_path / "whole"))


@pytest.mark.parametrize(
    "torn", [b'{"name": "client-000', b"\0" * 100, b"\xff\xfe\n", b'"a"\n', b"[]\n", b'{"name": 1}\n']
)
def test_a_torn_list_of_finished_files_is_used_up_to_its_damage(
    torn: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut leaves any bytes at the end of a file that grows."""
    folder, names = tmp_path / "out", list[str]()

    def write_four(path: Path, shard: Shard) -> Blob:
        if len(names) == 4:
            raise KeyboardInterrupt
        names.append(path.name)
        return write_shard(path, shard)

    monkeypatch.setattr(shard_folder, "write_shard", write_four)
    with pytest.raises(KeyboardInterrupt):
        write(folder)
    lines = (folder / ".progress").read_bytes().splitlines(keepends=True)
    (folder / ".progress").write_bytes(b"".join(lines[:3]) + torn)
    again = list[str]()
    monkeypatch.setattr(shard_folder, "write_shard", recording(again))
    write(folder)
    assert len(again) == 6
    assert visible(folder) == visible(write(tmp_path / "whole"))


@pytest.mark.parametrize("after", ["write_durably", "_as_line"])
def test_a_list_of_finished_files_is_never_empty(after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second interruption, while the list is written again, does not lose the first one's files."""
    folder = write(tmp_path / "out")
    key = json.loads((folder / MANIFEST).read_text())["partition"]
    (folder / MANIFEST).unlink()
    (folder / ".progress").write_text(json.dumps({"partition": key}) + "\n")
    with monkeypatch.context() as patch:
        patch.setattr(shard_folder, after, die)
        with pytest.raises(KeyboardInterrupt):
            write(folder)
    write(folder)
    assert read_manifest(folder).partition == key


def test_a_finished_folder_is_not_written_again_and_a_damaged_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "out")
    before = visible(folder)
    again = list[str]()
    monkeypatch.setattr(shard_folder, "write_shard", recording(again))
    write(folder)
    assert again == []
    (folder / shard_name(3)).write_bytes(b"damaged")
    with pytest.raises(DataUnavailableError, match=r"client-00003.safetensors: is missing or differs"):
        read_manifest(folder)
    write(folder)
    assert (again, visible(folder)) == ([f".{shard_name(3)}.new"], before)


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "out")
    with pytest.raises(RunFolderError, match="holds the samples of another experiment or partition"):
        write(folder, tools_of("digits-fedavg", "seed=99"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(RunFolderError, match=r"holds other files, such as thesis\.txt"):
        write(tmp_path / "mine")


def test_a_diagnostic_has_no_samples(tmp_path: Path) -> None:
    tools = tools_of("digits-fedavg", "algorithm={name: echo}")
    with pytest.raises(ExperimentError, match="trains no model"):
        write(tmp_path / "out", tools)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 2}', '{"format": 1, "files": {"a": 1}}', '{"format": 1, "files": {}}']
)
def test_a_damaged_manifest_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(DataUnavailableError, match=r"manifest\.json: is damaged"):
        read_manifest(tmp_path)


def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    folder = write(tmp_path / "out")
    content = json.loads((folder / MANIFEST).read_text())
    content["files"]["../secret"] = {"digest": hashlib.sha256(b"x").hexdigest(), "size": 1}
    (tmp_path / "secret").write_bytes(b"x")
    (folder / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(DataUnavailableError, match=r"'\.\./secret' lies in another folder"):
        read_manifest(folder)


def damage(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((folder / MANIFEST).read_text())
    change(content)
    (folder / MANIFEST).write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("clients", "2", "clients: must be a whole number"),
        ("clients", 10**5, "it lacks client-00008.safetensors, one of its 100000 clients"),
        ("clients", 10**6, "clients: must be at most 400,000"),
        ("clients", 7, "client-00007.safetensors is of no client; it has 7"),
        ("partition", None, "partition: must be text"),
        ("form", [], "form: "),
        ("form", {"name": "digits", "shape": "8", "dtype": "float32", "classes": 10}, "form.shape: "),
        ("form", {"name": "digits", "shape": [8], "dtype": "object", "classes": 10}, "form.dtype: "),
        ("form", {"name": "digits", "shape": [8], "dtype": "int64", "classes": 10**6 + 1}, "form.classes: "),
        ("files", [], "files: "),
        ("stranger", 1, "stranger: unknown key; remove it"),
    ],
)
def test_a_manifest_with_a_wrong_value_is_named_with_its_key(key: str, value: Any, words: str, tmp_path: Path) -> None:
    damage(write(tmp_path), lambda content: content.update({key: value}))
    with pytest.raises(DataUnavailableError, match=re.escape(f"{MANIFEST}: is damaged ({words}")):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("digest", "abc"), ("size", -1), ("size", "1"), ("url", "http://[x"), ("url", "https://a/" + "b" * 2000)],
)
def test_a_manifest_with_a_wrong_file_is_named_with_its_key(key: str, value: Any, tmp_path: Path) -> None:
    damage(write(tmp_path), lambda content: content["files"][shard_name(3)].update({key: value}))
    with pytest.raises(DataUnavailableError, match=rf"is damaged \(files\.client-00003\.safetensors\.{key}: "):
        read_manifest(tmp_path)


def test_a_manifest_without_one_client_is_refused_because_later_clients_would_train_on_others_samples(
    tmp_path: Path,
) -> None:
    damage(write(tmp_path / "out"), lambda content: content["files"].pop(shard_name(1)))
    words = "it lacks client-00001.safetensors, one of its 8 clients"
    with pytest.raises(DataUnavailableError, match=words):
        publish_bundle(tmp_path / "out", tmp_path / "bundle")
    with pytest.raises(DataUnavailableError, match=words):
        inspect_target(str(tmp_path / "out"), (), (), None)


def test_the_commands_print_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards, bundle = str(tmp_path / "shards"), tmp_path / "bundle.zip"
    assert cli.run(["data", "partition", str(FEDAVG), "--out", shards]) == 0
    assert f"{shards}: 8 files for 8 clients" in capsys.readouterr().out
    assert cli.run(["data", "publish", shards, "--out", str(bundle)]) == 0
    printed = capsys.readouterr().out
    assert "Google Drive" in printed
    assert f"{hashlib.sha256(bundle.read_bytes()).hexdigest()}  bundle.zip" in printed
    assert cli.run(["data", "publish", shards, "--out", str(tmp_path / "www"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["kind"], facts["files"], facts["sha256"]) == ("folder", 9, "")
    assert cli.run(["data", "partition", str(FEDAVG), "--out", str(tmp_path / "json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["clients"] == 8


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["publish", "empty", "--out", "b"], 5),
        (["publish", "empty", "--out", "b.tgz"], 4),
        (["publish", "empty", "--out", "b.tbz2"], 4),
        (["publish", "empty", "--out", "b.TGZ"], 4),
        (["partition", "no.yaml", "--out", "b"], 4),
    ],
)
def test_errors_have_documented_codes(
    arguments: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert cli.run(["data", *arguments]) == code
    assert issubclass(DataUnavailableError, FedquiltError)


OWN = """
name: own
rounds: 1
data: {delivery: own, clients: 2, form: {shape: [3], classes: 2}, holdout: 0.25}
model: {name: mlp}
algorithm: {name: fedavg}
participation: {per_round: 2, quorum: 2}
"""


@pytest.mark.parametrize("command", [("data", "inspect"), ("data", "partition"), ("central",)])
@pytest.mark.parametrize("own", [OWN, OWN.replace("form: {shape: [3], classes: 2}", "set: digits")])
def test_samples_that_stay_on_their_boards_are_not_here(
    command: tuple[str, ...], own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.yaml").write_text(own)
    options = [] if command[-1] == "inspect" else ["--out", str(tmp_path / "out")]
    assert cli.run([*command, str(tmp_path / "own.yaml"), *options]) == 4
    assert "the clients' samples never leave their boards" in capsys.readouterr().err


def test_the_resolved_experiment_of_own_samples_can_be_read_again(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(OWN)
    experiment = load_experiment(tmp_path / "own.yaml")
    (tmp_path / "again.yaml").write_text(dump_experiment(experiment))
    assert load_experiment(tmp_path / "again.yaml") == experiment
