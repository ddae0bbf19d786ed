"""``fedquilt memory``: the owner of a board lists and exports the private memory of its clients."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedquilt_client.owner_lists import add_texts, make_table
from fedquilt_client.records import StoredReply
from fedquilt_client.store import AgentStore
from fedquilt_common.cli import run
from fedquilt_common.wide_tables import print_whole
from fedquilt_common.wire.codec import FileArrays, write_arrays
from fedquilt_common.wire.messages import RunMessage


def keep(folder: Path, name: str, client: int, round: int, *, memory: bool = True) -> None:
    agent = AgentStore(folder)
    store = agent.open_run(RunMessage(run=name, experiment={"algorithm": {"name": "fedper"}}))
    drafts = store.drafts(1)
    drafts.reply.write_text("reply")
    head = {"fc2.weight": np.full((2, 3), round, np.float32), "fc2.bias": np.zeros(2, np.float32)}
    digest = write_arrays(drafts.memory, head).digest
    reply = StoredReply(name, client, round, 0, "task", f"reply-{round}.0-x", "0" * 64, 5)
    store.commit(reply, drafts, (round - 1, 0), memory=digest if memory else None)
    agent.release()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    for number in (1, 2):
        keep(folder, "first-run", 3, number)
    keep(folder, "first-run", 10, 2)
    keep(folder, "first-run", 4, 2, memory=False)
    keep(folder, "second-run", 3, 7)
    return folder


def test_list(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", "list", "--state", str(state), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    found = [(row["run"], row["algorithm"], row["client"], row["round"]) for row in rows]
    assert found == [("first-run", "fedper", 3, 2), ("first-run", "fedper", 10, 2), ("second-run", "fedper", 3, 7)]
    assert rows[0]["arrays"] == {"fc2.weight": [2, 3], "fc2.bias": [2]}
    assert rows[0]["bytes"] > 32
    assert run(["memory", "list", "--state", str(state), "--run", "second-run"]) == 0
    table = capsys.readouterr().out
    assert "second-run" in table
    assert "fc2.weight, fc2.bias" in table.replace("fc2.bias, fc2.weight", "fc2.weight, fc2.bias")
    assert "first-run" not in table


def test_names_that_a_coordinator_chose_are_literal(capsys: pytest.CaptureFixture[str]) -> None:
    table = make_table(("run",), ())
    add_texts(table, "[/x]\x1b[2J[red]r")
    print_whole(table)
    assert "[/x] [2J[red]r" in capsys.readouterr().out


def test_export(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "own.safetensors"
    assert (
        run(["memory", "export", "--state", str(state), "--client", "3", "--run", "first-run", "--out", str(out)]) == 0
    )
    assert "2 arrays" in capsys.readouterr().out
    found = FileArrays(out)
    assert found["fc2.weight"].tolist() == [[2.0] * 3] * 2
    assert found.metadata == {"run": "first-run", "algorithm": "fedper", "client": "3", "round": "2"}


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["--client", "3"], 4, "several runs; give --run one of: first-run, second-run"),
        (["--client", "4"], 4, "client 4 has no private memory here"),
        (["--client", "3", "--run", "third"], 4, "client 3 has no private memory here"),
        (["--client", "10", "--id", "pi"], 4, "give either --state FOLDER, or --id NAME"),
    ],
)
def test_what_cannot_be_exported(
    words: list[str], code: int, reason: str, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["memory", "export", "--state", str(state), "--out", str(tmp_path / "own"), *words]) == code
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "own").exists()


def test_a_file_that_is_there_is_not_overwritten(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own").write_text("precious")
    words = ["memory", "export", "--state", str(state), "--client", "10", "--out", str(tmp_path / "own")]
    assert run(words) == 4
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "own").read_text() == "precious"


def test_a_folder_of_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", "list", "--state", str(tmp_path)]) == 6
    assert "is not the state folder of an agent" in capsys.readouterr().err


def test_the_agents_name_leads_to_its_folder(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(state.parent))
    (state.parent / "fedquilt").mkdir()
    state.rename(state.parent / "fedquilt" / "pi-1")
    assert run(["memory", "list", "--id", "pi-1", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 3


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"memories": [[1]]}', '{"memories": [["a", 0, "m"]]}'])
def test_a_damaged_record_hides_nobody_elses(text: str, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = state / "runs" / "first-run" / "clients" / "10" / "committed.json"
    place.write_text(text)
    assert run(["memory", "list", "--state", str(state), "--json"]) == 6
    output = capsys.readouterr()
    assert [(row["run"], row["client"]) for row in json.loads(output.out)] == [("first-run", 3), ("second-run", 3)]
    assert f"{place} is damaged: " in output.err
    assert "so the private memory of client 10 is unknown" in output.err
    out = state.parent / "own"
    words = ["memory", "export", "--state", str(state), "--run", "first-run", "--out", str(out), "--client"]
    assert run([*words, "3"]) == 0
    assert run([*words[:-3], "--out", str(state.parent / "other"), "--client", "10"]) == 6


def test_a_damaged_memory_is_named(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file,) = (state / "runs" / "first-run" / "clients" / "10").glob("memory-*")
    whole = file.read_bytes()
    for content in (b"", whole[:20], whole[:-1] + b"x"):
        file.write_bytes(content)
        assert run(["memory", "list", "--state", str(state), "--json"]) == 6
        output = capsys.readouterr()
        assert len(json.loads(output.out)) == 2
        assert f"{file}, of client 10: is damaged" in output.err
        words = ["memory", "export", "--state", str(state), "--client", "10", "--out", str(state.parent / "own")]
        assert run(words) == 6
        assert not (state.parent / "own").exists()


def test_a_missing_memory_is_named_as_missing(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file,) = (state / "runs" / "first-run" / "clients" / "10").glob("memory-*")
    file.unlink()
    assert run(["memory", "list", "--state", str(state), "--json"]) == 6
    assert f"{file}, of client 10: is missing" in capsys.readouterr().err


def test_what_else_lies_in_a_state_folder_does_no_harm(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (state / "runs" / "notes.txt").write_text("mine")
    (state / "runs" / "old" / "drafts").mkdir(parents=True)  # of a worker that was cancelled when its run ended
    (state / "runs" / "first-run" / "clients" / "backup").mkdir()
    (state / "runs" / "first-run" / "clients" / "backup" / "committed.json").write_text("{}")
    assert run(["memory", "list", "--state", str(state), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 3
    (state / "runs" / "first-run" / "run.json").write_text("garbage")
    assert run(["memory", "list", "--state", str(state), "--json"]) == 6
    assert "first-run/run.json: cannot be read" in capsys.readouterr().err
