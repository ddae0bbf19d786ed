"""The commands ``fedquilt bench``: rounds without training, air time over LoRa, and a drone's route."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedquilt_common.errors import ExperimentError
from fedquilt_server.tools.lora import Lora

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
bench_app = typer.Typer(
    no_args_is_help=True, help="Measure rounds without training, and estimate transfers over narrow links."
)
app.add_typer(bench_app, name="bench")

MOST = 10**12
JsonMeasurement = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Spreading = Annotated[int, typer.Option(help="Spreading factor, 7 to 12.")]
Bandwidth = Annotated[float, typer.Option(help="Bandwidth in kHz.")]
Coding = Annotated[str, typer.Option(help="Coding rate, 4/5 to 4/8.")]
Preamble = Annotated[int, typer.Option(min=1, max=65_535, help="Preamble in symbols.")]
Payload = Annotated[int, typer.Option(min=1, max=251, help="Payload bytes per packet; 4 more bytes hold its number.")]
Pause = Annotated[float, typer.Option(help="Pause after each packet in seconds.")]
PacketLoss = Annotated[float, typer.Option(help="Share of packets that are lost and sent again, from 0 to 0.99.")]


@app.callback()
def group() -> None:
    """Group the commands, so that typer keeps ``bench`` as a sub-command."""


@bench_app.command("round")
def bench_round(
    agents: Annotated[int, typer.Option(min=1, max=1000, help="Number of agent processes.")] = 4,
    clients: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Number of clients of all agents together; default: one per agent."),
    ] = None,
    megabytes: Annotated[float, typer.Option(help="Model size in millions of bytes.")] = 45.0,
    rounds: Annotated[int, typer.Option(min=1, max=10_000, help="Number of rounds.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Run folder to keep; default: a temporary one.")] = None,
    secure: Annotated[bool, typer.Option("--secure", help="With secure aggregation, of 3 clients or more.")] = False,
    json_: JsonMeasurement = False,
) -> None:
    """Run rounds without training on a real broker, coordinator and agents. Each client only adds a constant."""
    from fedquilt_server.tools.bench import bench_rounds

    if not 0.0001 <= megabytes <= 4096:
        raise ExperimentError(f"--megabytes {megabytes:g}: choose a size from 0.0001 to 4096")
    if clients is not None and clients < agents:
        raise ExperimentError(f"--agents {agents} --clients {clients}: each agent needs at least one client")
    if secure and (clients or agents) < 3:
        raise ExperimentError(f"--clients {clients or agents}: with --secure, choose 3 clients or more")
    result = bench_rounds(agents, clients or agents, megabytes, rounds, out, secure=secure)
    if json_:
        typer.echo(json.dumps(result.as_json(), indent=2))
    else:
        result.print()


@bench_app.command("link")
def bench_link(
    size: Annotated[
        int | None,
        typer.Option("--bytes", min=1, max=MOST, help="Payload in bytes; default: the payloads of three algorithms."),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1, max=MOST, help="Number of public samples, for FedMD and CFedAKD.")
    ] = 100,
    classes: Annotated[int, typer.Option(min=1, max=10**6, help="Number of classes, for FedMD and CFedAKD.")] = 6,
    parameters: Annotated[int, typer.Option(min=1, max=MOST, help="Number of model parameters, for FedAvg.")] = 65_536,
    spreading: Spreading = 12,
    bandwidth: Bandwidth = 125.0,
    coding: Coding = "4/5",
    preamble: Preamble = 7,
    payload: Payload = 60,
    pause: Pause = 3.0,
    loss: PacketLoss = 0.0,
    json_: JsonMeasurement = False,
) -> None:
    """Estimate how long payloads take over LoRa, one way and for one client."""
    radio = _make_radio(spreading, bandwidth, coding, preamble, payload, pause, loss)
    sizes = {"payload": size} if size else _payload_sizes(samples, classes, parameters)
    _print_transfers({name: radio.describe(count) for name, count in sizes.items()}, json_, "one way, one client")


def _payload_sizes(samples: int, classes: int, parameters: int) -> dict[str, int]:
    """Return the bytes that each algorithm sends, numbers only."""
    labels = samples * classes
    return {"fedavg": 4 * parameters, "fedmd": 4 * labels, "cfedakd": labels + 8 * classes}


def _make_radio(
    spreading: int, bandwidth: float, coding: str, preamble: int, payload: int, pause: float, loss: float
) -> Lora:
    rates = {f"4/{4 + number}": number for number in range(1, 5)}
    if coding not in rates:
        raise ExperimentError(f"--coding {coding}: must be one of {', '.join(rates)}")
    return Lora(spreading, 1000 * bandwidth, rates[coding], preamble, payload, pause=pause, loss=loss)


@bench_app.command("route")
def bench_route(
    nodes: Annotated[Path, typer.Argument(help="CSV file with the positions in metres: one line x,y per node.")],
    start: Annotated[str, typer.Option(help="Start of the drone: x,y in metres.")] = "0,0",
    speed: Annotated[float, typer.Option(help="Speed of the drone in metres per second.")] = 10.0,
    size: Annotated[
        int, typer.Option("--bytes", min=1, max=MOST, help="Payload per node in each direction, in bytes.")
    ] = 648,
    spreading: Spreading = 12,
    bandwidth: Bandwidth = 125.0,
    coding: Coding = "4/5",
    preamble: Preamble = 7,
    payload: Payload = 60,
    pause: Pause = 3.0,
    loss: PacketLoss = 0.0,
    plot: Annotated[Path | None, typer.Option(help="Draw the route into this .svg or .png file.")] = None,
    json_: JsonMeasurement = False,
) -> None:
    """Plan a drone's route past all nodes and back.

    On the way out, the drone collects soft labels. On the way back, it delivers the consensus.
    """
    from fedquilt_server.tools import route

    if not 0.001 <= speed <= 1000:
        raise ExperimentError(f"--speed {speed:g}: must be from 0.001 to 1000 metres per second")
    radio = _make_radio(spreading, bandwidth, coding, preamble, payload, pause, loss)
    plan = route.plan_route(route.read_point(start), route.read_nodes(nodes))
    total = plan.seconds(speed, radio.seconds(size))
    report: dict[str, Any] = {
        "distance": plan.distance, "seconds": total, "flight_seconds": plan.distance / speed,
        "exchange_seconds": total - plan.distance / speed, "order": list(plan.order), "bytes": size,
    }  # fmt: skip
    if plot is not None:
        route.plot(plan, plot)
    if json_:
        typer.echo(json.dumps(report, indent=2))
    else:
        flight, radio_time = report["flight_seconds"] / 60, report["exchange_seconds"] / 60
        typer.echo(f"{plan.distance:,.0f} m out and back, {total / 60:.1f} min in total:")
        typer.echo(f"{flight:.1f} min of flight, {radio_time:.1f} min of radio")
        typer.echo(f"nodes in the order of the visits: {' '.join(map(str, plan.order))}")


def _print_transfers(rows: dict[str, dict[str, float]], as_json: bool, title: str) -> None:
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(title=title)
    for name in ("", "bytes", "packets", "minutes", "air minutes", "bits/s"):
        table.add_column(name, justify="right" if name else "left")
    for name, row in rows.items():
        table.add_row(
            name, f"{row['bytes']:,.0f}", f"{row['packets']:,.0f}", f"{row['seconds'] / 60:,.1f}",
            f"{row['air_seconds'] / 60:,.1f}", f"{row['bits_per_second']:.0f}",
        )  # fmt: skip
    Console().print(table)


def run(arguments: list[str]) -> None:
    """Run ``fedquilt bench`` with these arguments."""
    app(arguments, prog_name="fedquilt")
