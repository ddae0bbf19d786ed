"""``fedquilt bench``: rounds without training, and what payloads cost on narrow links."""

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
bench_app = typer.Typer(no_args_is_help=True, help="Measure rounds without training, and narrow links.")
app.add_typer(bench_app, name="bench")

MOST = 10**12
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Spreading = Annotated[int, typer.Option(help="Spreading factor, 7 to 12.")]
Bandwidth = Annotated[float, typer.Option(help="Bandwidth in kHz.")]
Coding = Annotated[str, typer.Option(help="Coding rate, 4/5 to 4/8.")]
Preamble = Annotated[int, typer.Option(min=1, max=65_535, help="Preamble in symbols.")]
Payload = Annotated[int, typer.Option(min=1, max=251, help="Bytes of a packet that are of use; 4 more number it.")]
Pause = Annotated[float, typer.Option(help="Seconds between a packet and the next.")]
Loss = Annotated[float, typer.Option(help="Part of the packets that are lost and sent again.")]


@app.callback()
def group() -> None:
    """Keep ``bench`` a sub-command."""


@bench_app.command("round")
def bench_round(
    agents: Annotated[int, typer.Option(min=1, max=1000, help="Agent processes.")] = 4,
    clients: Annotated[int | None, typer.Option(min=1, max=100_000, help="Clients in all; one an agent.")] = None,
    megabytes: Annotated[float, typer.Option(help="Size of the model in millions of bytes.")] = 45.0,
    rounds: Annotated[int, typer.Option(min=1, max=10_000, help="Rounds to run.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Keep the run folder here.")] = None,
    json_: Json = False,
) -> None:
    """Rounds without training, through the real broker, coordinator and agents: each client adds a constant."""
    from fedquilt_server.tools.bench import bench_rounds

    if not 0.0001 <= megabytes <= 4096:
        raise ExperimentError(f"--megabytes {megabytes:g}: choose a size from 0.0001 to 4096")
    if clients is not None and clients < agents:
        raise ExperimentError(f"--agents {agents} --clients {clients}: each agent needs at least one client")
    found = bench_rounds(agents, clients or agents, megabytes, rounds, out)
    if json_:
        typer.echo(json.dumps(found.as_json(), indent=2))
    else:
        found.print()


@bench_app.command("link")
def bench_link(
    size: Annotated[
        int | None, typer.Option("--bytes", min=1, max=MOST, help="A payload; else those of three algorithms.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, max=MOST, help="Public samples, for FedMD and CFedAKD.")] = 100,
    classes: Annotated[int, typer.Option(min=1, max=10**6, help="Classes, for FedMD and CFedAKD.")] = 6,
    parameters: Annotated[int, typer.Option(min=1, max=MOST, help="Parameters of a model, for FedAvg.")] = 65_536,
    spreading: Spreading = 12,
    bandwidth: Bandwidth = 125.0,
    coding: Coding = "4/5",
    preamble: Preamble = 7,
    payload: Payload = 60,
    pause: Pause = 3.0,
    loss: Loss = 0.0,
    json_: Json = False,
) -> None:
    """Air time of payloads over LoRa, one way and for one client."""
    radio = _radio(spreading, bandwidth, coding, preamble, payload, pause, loss)
    sizes = {"payload": size} if size else _payloads(samples, classes, parameters)
    _show({name: radio.described(one) for name, one in sizes.items()}, json_, "one way, one client")


def _payloads(samples: int, classes: int, parameters: int) -> dict[str, int]:
    """Bytes that each algorithm sends, numbers only."""
    labels = samples * classes
    return {"fedavg": 4 * parameters, "fedmd": 4 * labels, "cfedakd": labels + 8 * classes}


def _radio(
    spreading: int, bandwidth: float, coding: str, preamble: int, payload: int, pause: float, loss: float
) -> Lora:
    rates = {f"4/{4 + number}": number for number in range(1, 5)}
    if coding not in rates:
        raise ExperimentError(f"--coding {coding}: must be one of {', '.join(rates)}")
    return Lora(spreading, 1000 * bandwidth, rates[coding], preamble, payload, pause=pause, loss=loss)


@bench_app.command("route")
def bench_route(
    nodes: Annotated[Path, typer.Argument(help="Positions in metres, a line x,y for each node (CSV).")],
    start: Annotated[str, typer.Option(help="Where the drone sets out, in metres.")] = "0,0",
    speed: Annotated[float, typer.Option(help="Metres a second.")] = 10.0,
    size: Annotated[int, typer.Option("--bytes", min=1, max=MOST, help="Payload in each direction.")] = 648,
    spreading: Spreading = 12,
    bandwidth: Bandwidth = 125.0,
    coding: Coding = "4/5",
    preamble: Preamble = 7,
    payload: Payload = 60,
    pause: Pause = 3.0,
    loss: Loss = 0.0,
    plot: Annotated[Path | None, typer.Option(help="Draw the way into this .svg or .png file.")] = None,
    json_: Json = False,
) -> None:
    """A drone's way past all nodes, where it collects labels, and back along it, where it hands out what was agreed."""
    from fedquilt_server.tools import route

    if not 0.001 <= speed <= 1000:
        raise ExperimentError(f"--speed {speed:g}: must be from 0.001 to 1000 metres a second")
    radio = _radio(spreading, bandwidth, coding, preamble, payload, pause, loss)
    found = route.plan_route(route.read_point(start), route.read_nodes(nodes))
    exchange = radio.seconds(size)
    total = found.seconds(speed, exchange)
    said: dict[str, Any] = {
        "distance": found.distance, "seconds": total, "flight_seconds": found.distance / speed,
        "exchange_seconds": total - found.distance / speed, "order": list(found.order), "bytes": size,
    }  # fmt: skip
    if plot is not None:
        route.plot(found, plot)
    if json_:
        typer.echo(json.dumps(said, indent=2))
    else:
        flight, radio_time = said["flight_seconds"] / 60, said["exchange_seconds"] / 60
        typer.echo(f"{found.distance:,.0f} m out and back, {total / 60:.1f} min in all:")
        typer.echo(f"{flight:.1f} min of flight, {radio_time:.1f} min of radio")
        typer.echo(f"nodes in order: {' '.join(map(str, found.order))}")


def _show(found: dict[str, dict[str, float]], as_json: bool, title: str) -> None:
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    table = Table(title=title)
    for name in ("", "bytes", "packets", "minutes", "on the air", "bits/s"):
        table.add_column(name, justify="right" if name else "left")
    for name, row in found.items():
        table.add_row(
            name, f"{row['bytes']:,.0f}", f"{row['packets']:,.0f}", f"{row['seconds'] / 60:,.1f}",
            f"{row['air_seconds'] / 60:,.1f}", f"{row['bits_per_second']:.0f}",
        )  # fmt: skip
    Console().print(table)


def run(arguments: list[str]) -> None:
    """Entry of ``fedquilt bench``."""
    app(arguments, prog_name="fedquilt")
