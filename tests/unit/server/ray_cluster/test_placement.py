"""Where the agents of a run on a cluster are: the file, and what the page shows of it."""

from __future__ import annotations

from pathlib import Path

from fedquilt_server.status.agent_list import AgentList
from fedquilt_server.status.placement import Placement, PlacementReader, PlacementRecord, Relocation
from fedquilt_server.web.cells import format_cells

HOME = Placement(agent="a-0", clients=[0, 1], state="running", node="77", name="box (77)", cpus=0.5, memory=1 << 30)


def test_a_reader_gets_what_is_new(tmp_path: Path) -> None:
    reader = PlacementReader(tmp_path)
    assert (reader.record, reader.take_news()) == (None, [])
    first, second = (Relocation(at=at, agent="a-0", text="its node died") for at in (1.0, 2.0))
    PlacementRecord(relocations=[first]).save(tmp_path)
    assert reader.refresh()
    assert reader.take_news() == [first]
    assert not reader.refresh()
    assert PlacementReader(tmp_path).take_news() == [], "a coordinator that restarts has reported it"
    PlacementRecord(relocations=[first, second], placements=[HOME]).save(tmp_path)
    assert reader.refresh()
    assert reader.take_news() == [second]
    (tmp_path / "placement.json").write_text("{damaged")
    assert not reader.refresh()
    assert reader.record is not None
    assert reader.record.placements == [HOME]


def test_the_page_shows_agents_with_a_node_and_without() -> None:
    agents = AgentList()
    agents.place([HOME, Placement(agent="a-1", gpus=2, moves=1)])
    cells = {board.agent: format_cells(board)["placement"] for board in agents.boards()}
    assert cells == {
        "a-0": "on box (77); 0.5 processors, 1.0 GiB",
        "a-1": "waiting for a node; 2 GPUs; moved 1 time",
    }
