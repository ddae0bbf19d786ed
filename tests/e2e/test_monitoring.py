"""The status page publishes the metrics of the dashboard, and a real Prometheus reads them with our configuration."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml
from tests.support.dashboard import (
    DASHBOARD,
    MONITORING,
    OTHER_SCORES,
    PANELS,
    QUERIES,
    ask_all_coordinators,
    name_metrics,
)

from fedquilt_server.simulate.mosquitto import free_port
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.snapshot import BoardStatus, Snapshot, StatusStore
from fedquilt_server.web.server import PageServer

ASKED = [ask_all_coordinators(query) for query in QUERIES]


@pytest.fixture(scope="module")
def page() -> Iterator[PageServer]:
    """The status page of a run with one round and one board."""
    zeros = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
    row = RoundResult.model_validate(
        {**zeros, "accuracy": 0.5, "personal_accuracy": 0.75, "loss": 1.25, "scores": OTHER_SCORES}
    )
    measured = {"power": 4.5, "power_source": "sensor", "joules": 90.0, "memory_own": 1 << 19, "load": 0.5}
    known = {"agent": "pi", "memory_used": 1 << 20, "temperature": 51.5, "last_seen": 1.0}
    boards = [BoardStatus.model_validate({**known, **measured})]
    store = StatusStore(Snapshot(name="x", run="x-1", broker_connected=True, round=3, history=[row], boards=boards))
    with PageServer(store) as server:
        yield server


@pytest.fixture(scope="module")
def prometheus(page: PageServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A Prometheus that has read the page several times."""
    if shutil.which("prometheus") is None:
        pytest.skip("Prometheus is not installed: sudo apt-get install prometheus")
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    job["static_configs"][0]["targets"][0] = page.url.removeprefix("http://").rstrip("/")
    config["global"]["scrape_interval"] = "1s"
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    options = [f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={folder}/data", "--log.level=error"]
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", *options]
    with subprocess.Popen(command) as process, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        try:
            await_samples(client, 3)
            yield client
        finally:
            process.terminate()


def ask(client: httpx.Client, expression: str) -> list[Any]:
    try:
        answer = client.get("/api/v1/query", params={"query": expression})
    except httpx.TransportError:
        return []  # it is starting
    found: list[Any] = answer.json()["data"]["result"] if answer.is_success else []
    return found


def await_samples(client: httpx.Client, count: int) -> None:
    end = time.monotonic() + 60
    while not any(int(one["value"][1]) >= count for one in ask(client, "count_over_time(fedquilt_round[1m])")):
        assert time.monotonic() < end, "Prometheus has not asked the page"
        time.sleep(0.2)


def test_no_panel_covers_another_one() -> None:
    places = [panel["gridPos"] for panel in PANELS]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_every_query_asks_the_data_source_that_is_provisioned() -> None:
    (source,) = yaml.safe_load((MONITORING / "grafana" / "datasource.yml").read_text())["datasources"]
    asked = {target["datasource"]["uid"] for panel in PANELS for target in panel["targets"]}
    assert asked == {source["uid"]}


def test_every_query_asks_the_chosen_coordinators_only() -> None:
    (variable,) = DASHBOARD["templating"]["list"]
    assert (variable["name"], variable["definition"]) == ("instance", "label_values(fedquilt_round, instance)")
    assert (variable["multi"], variable["includeAll"]) == (True, True)
    selectors = {query: re.findall(r"\{([^}]*)\}", query) for query in QUERIES}
    assert [query for query, found in selectors.items() if len(found) != 1] == []
    assert [query for query, (found,) in selectors.items() if 'instance=~"$instance"' not in found] == []
    assert [query for query in QUERIES if re.match("sum|count", query) and "by (instance" not in query] == []


def test_the_dashboard_shows_the_scores_of_all_learning_tasks() -> None:
    shown: dict[str, set[str]] = {"stat": set(), "timeseries": set()}
    for panel in PANELS:
        shown[panel["type"]] |= name_metrics(target["expr"] for target in panel["targets"])
    wanted = {f"fedquilt_{name}" for name in ("accuracy", *OTHER_SCORES)}
    assert {kind: wanted - names for kind, names in shown.items()} == {"stat": set(), "timeseries": set()}


def test_the_page_publishes_the_metrics_of_the_dashboard(page: PageServer) -> None:
    lines = httpx.get(f"{page.url.rstrip('/')}/metrics", timeout=60).text.splitlines()
    samples = [line for line in lines if line and not line.startswith("#")]
    published = {re.split(r"[{ ]", line)[0]: float(line.rpartition(" ")[2]) for line in samples}
    wanted = name_metrics(QUERIES)
    assert len(wanted) >= 18
    assert {name for name in wanted if math.isnan(published.get(name, math.nan))} == set()
    assert (published["fedquilt_accuracy"], published["fedquilt_loss"]) == (0.5, 1.25)


def test_prometheus_answers_every_query_of_the_dashboard(prometheus: httpx.Client) -> None:
    answers = {expression: [one["value"][1] for one in ask(prometheus, expression)] for expression in ASKED}
    assert {expression for expression, values in answers.items() if not values or "NaN" in values} == set()


def test_prometheus_accepts_our_configuration() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("Prometheus is not installed: sudo apt-get install prometheus")
    command = ["promtool", "check", "config", str(MONITORING / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_has_the_numbers_of_the_page(prometheus: httpx.Client) -> None:
    said = {name: float(ask(prometheus, name)[0]["value"][1]) for name in ("fedquilt_accuracy", "fedquilt_loss")}
    assert said == {"fedquilt_accuracy": 0.5, "fedquilt_loss": 1.25}
