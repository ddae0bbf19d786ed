"""The commands ``fedquilt bench``: rounds without training, air time over LoRa, and a drone's route."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import ValidationError
from rich.table import Table

from fedquilt_common.command_app import CommandApp
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.sections import FleetLine
from fedquilt_common.process.signals import StopSignal
from fedquilt_common.rejections import list_problems
from fedquilt_common.terminal import make_console
from fedquilt_server.status.console import print_message
from fedquilt_server.tools.lora import Lora

app = CommandApp()
bench_app = CommandApp(help="Measure rounds without training, and estimate transfers over narrow links.")
app.add_typer(bench_app, name="bench")

MOST = 10**12
_OPTIONS: Final = {
    "rate": "--pause or --payload", "loss": "--loss", "mtu": "--payload", "window": "--window",
    "timeout": "--timeout", "period": "--training", "open": "--radius",
}  # fmt: skip
"""Keys of a fleet line's link, and the options from which they follow."""
JsonMeasurement = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Spreading = Annotated[int, typer.Option(help="Spreading factor, 7 to 12.")]
Bandwidth = Annotated[float, typer.Option(help="Bandwidth in kHz.")]
Coding = Annotated[str, typer.Option(help="Coding rate, 4/5 to 4/8.")]
Preamble = Annotated[int, typer.Option(min=1, max=65_535, help="Preamble in symbols.")]
Payload = Annotated[int, typer.Option(min=1, max=251, help="Payload bytes per packet; 4 more bytes hold its number.")]
Pause = Annotated[float, typer.Option(help="Pause after each packet in seconds.")]
PacketLoss = Annotated[float, typer.Option(help="Share of packets and acknowledgements that are lost, 0 to 0.99.")]
PacketWindow = Annotated[
    int,
    typer.Option(min=1, max=1000, help="Packets that are sent before the sender waits for their acknowledgements."),
]
Timeout = Annotated[float, typer.Option(help="Seconds until packets without an acknowledgement are sent again.")]


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
    relay: Annotated[
        bool, typer.Option("--relay", help="With agents that add the replies of their clients up before they travel.")
    ] = False,
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
    if secure and relay:
        raise ExperimentError("--secure --relay: masked replies cannot be added up by an agent; give one of the two")
    stop = StopSignal()
    result = bench_rounds(
        agents, clients or agents, megabytes, rounds, out, secure=secure, relay=relay, should_stop=stop
    )
    if result is None:
        print_message("Interrupted. Its rounds so far are not printed")
        raise typer.Exit(stop.exit_code)
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
    window: PacketWindow = 3,
    timeout: Timeout = 3.0,
    json_: JsonMeasurement = False,
) -> None:
    """Estimate how long payloads take over LoRa, one way and for one client."""
    radio = _make_radio(spreading, bandwidth, coding, preamble, payload, pause, loss, window, timeout)
    sizes = {"payload": size} if size else _payload_sizes(samples, classes, parameters)
    _print_transfers({name: radio.describe(count) for name, count in sizes.items()}, json_, "one way, one client")


def _payload_sizes(samples: int, classes: int, parameters: int) -> dict[str, int]:
    """Return the bytes that each algorithm sends, numbers only."""
    labels = samples * classes
    return {"fedavg": 4 * parameters, "fedmd": 4 * labels, "cfedakd": labels + 8 * classes}


def _make_radio(
    spreading: int, bandwidth: float, coding: str, preamble: int, payload: int, pause: float, loss: float,
    window: int, timeout: float,
) -> Lora:  # fmt: skip
    rates = {f"4/{4 + number}": number for number in range(1, 5)}
    if coding not in rates:
        raise ExperimentError(f"--coding {coding}: must be one of {', '.join(rates)}")
    return Lora(
        spreading, 1000 * bandwidth, rates[coding], preamble, payload, pause=pause, loss=loss, window=window,
        timeout=timeout,
    )  # fmt: skip


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
    window: PacketWindow = 3,
    timeout: Timeout = 3.0,
    radius: Annotated[float, typer.Option(help="Metres within which the drone reaches a node.")] = 50.0,
    training: Annotated[float, typer.Option(help="Seconds that a board trains between two flights.")] = 0.0,
    watts: Annotated[
        str | None,
        typer.Option(help="Watts of a board: idle, added in an exchange, and in all while training: 1.4,0.4,3.7."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the route into this .svg or .png file.")] = None,
    json_: JsonMeasurement = False,
) -> None:
    """Plan a drone's route past all nodes and back.

    On the way out, the drone collects soft labels. On the way back, it delivers the consensus. The output has a line of
    an experiment's fleet for each node, whose link is open while the drone is near.
    """
    from fedquilt_server.tools import flight, route

    radio = _make_radio(spreading, bandwidth, coding, preamble, payload, pause, loss, window, timeout)
    plan = route.plan_route(route.read_point(start), route.read_nodes(nodes))
    trip = flight.Flight(plan, speed, radio.seconds(size), radius, training)
    joules = trip.joules(flight.read_watts(watts)) if watts is not None else None
    unhindered = dataclasses.replace(radio, loss=0.0)  # the link itself repeats what is lost
    rate = float(f"{size / unhindered.seconds(size):.4g}")
    link = {"rate": rate, "loss": loss, "mtu": payload, "window": window, "timeout": timeout}
    report: dict[str, Any] = {
        **trip.describe(), "joules": joules, "order": list(plan.order), "bytes": size,
        "fleet": trip.fleet_lines(link),
    }  # fmt: skip
    for line in report["fleet"]:
        _check_fleet_line(line)
    if plot is not None:
        route.plot(plan, plot)
    typer.echo(json.dumps(report, indent=2) if json_ else _describe_flight(report))


def _check_fleet_line(line: dict[str, Any]) -> None:
    """Check that an experiment takes a line of the fleet.

    Raises:
        ExperimentError: it does not; the error names the option that leads to the line.
    """
    try:
        FleetLine.model_validate_json(json.dumps(line))
    except ValidationError as error:
        problem = list_problems(error)[0]
        last = problem.path.split(".")[-1]
        key = last if last in _OPTIONS else "open"
        raise ExperimentError(
            f"{_OPTIONS[key]}: no experiment takes the line of {line['kind']}, with link.{key} = {problem.value}: "
            f"{problem.why}; choose another number"
        ) from None


def _describe_flight(report: dict[str, Any]) -> str:
    """Return the sentences and the fleet lines that ``fedquilt bench route`` prints."""
    flown, radio, training = (report[f"{part}_seconds"] / 60 for part in ("flight", "exchange", "training"))
    lines = [
        f"{report['distance']:,.0f} m out and back, {report['seconds'] / 60:.1f} min in total:",
        f"{flown:.1f} min of flight, {radio:.1f} min of radio, {training:.1f} min of training",
        *([] if report["joules"] is None else [f"{report['joules']:,.0f} J for each board"]),
        f"nodes in the order of the visits: {' '.join(map(str, report['order']))}",
        "fleet:",
    ]
    return "\n".join([*lines, *(f"  - {json.dumps(line)}" for line in report["fleet"])])


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
    make_console().print(table)


def run(arguments: list[str]) -> None:
    """Run ``fedquilt bench`` with these arguments."""
    app(arguments, prog_name="fedquilt")
