"""The tables of docs/scale.md, made from the results of tree.py, site_relays.py, population.py and connections.py."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from resume import read_lines
from tree_model import Cost, Fit, Line, MemoryFit, fit_all, fit_memory
from tree_predict import PACKET_BYTES, Federation, costs_of_trained, exceeded_limits, predict, predict_case, total

from fedquilt_common.flood_control.limits import MOST_AGENTS
from fedquilt_common.wire.message_base import MAX_CLIENTS
from fedquilt_common.wire.messages import MOST_MEMBERS
from fedquilt_common.wire.number_ranges import NUMBERS
from fedquilt_common.wire.parsing import MAX_MESSAGE

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
PAGE: Final = ROOT / "docs" / "scale.md"
BLOCK: Final = r"(<!-- table: {} -->\n).*?(<!-- end -->)"
ROLES: Final = ("broker", "coordinator", "agent", "worker")
PREDICTED: Final = tuple((clients, size) for clients in (10_000, 100_000, 1_000_000) for size in (0.01, 1.0, 45.0))
FAN_OUTS: Final = (None, 100, 1000)
HOSTED: Final = 10_000
"""Clients of an agent in a simulation."""
SIMULATED_SECONDS: Final = 600
TELEMETRY_SECONDS, PING_SECONDS = 5.0, 30.0
"""Seconds between two messages of an idle board, and between two pings."""


def make_tables(measured: Line, sites: Line, population: Line, connections: Line) -> dict[str, str]:
    """Return the tables by name, as Markdown.

    Args:
        measured: the last line of tree.jsonl.
        sites: the last line of site_relays.jsonl.
        population: the last line of population.jsonl.
        connections: the last line of connections.jsonl.
    """
    cases: Sequence[Line] = measured["cases"]
    fits, memory = fit_all(cases, sites["cases"]), fit_memory(cases)
    costs = predicted_costs(measured, sites)
    return {
        "origin": origin(
            {"tree": measured, "site_relays": sites, "population": population, "connections": connections}
        ),
        "measured": measured_table(cases),
        "sites": sites_table(sites["cases"]),
        "costs": costs_table(fits),
        "sums": sums_table(measured["sums"]),
        "held out": held_out_table(cases, {part: fit.cost for part, fit in fits.items()}),
        "memory": memory_table(memory, population["rows"]),
        "predictions": predictions_table(costs, memory),
        "steps": steps_table(costs),
        "simulated": simulated_table(costs, memory),
        "population": population_table(population["rows"]),
        "manifests": manifests_table(population["manifests"]),
        "boards": boards_table(connections["rows"]),
        "limits": limits_table(),
    }


def predicted_costs(measured: Line, sites: Line, *_: Line) -> dict[str, Cost]:
    """Return the costs of the predictions; takes what ``latest`` returns."""
    return costs_of_trained(fit_all(measured["cases"], sites["cases"]), measured["sums"])


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines: list[Sequence[object]] = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def short(value: float) -> str:
    """Return a number with two or three digits that count."""
    if value >= 100:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}" if value >= 1 else f"{value:.2g}"


def percent(value: float) -> str:
    """Return a share in percent."""
    return f"{100 * value:.0f} %"


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds."""
    return f"{short(1e3 * seconds)} ms"


def microseconds(seconds: float) -> str:
    """Return a time in microseconds."""
    return f"{short(1e6 * seconds)} us"


def megabytes(size: float) -> str:
    """Return a size in MB (10**6 bytes)."""
    return f"{short(size / 1e6)} MB"


def origin(lines: Mapping[str, Line]) -> str:
    """Return which command has measured what, when and where."""
    head = ("result", "command", "commit", "date", "cores", "memory", "load before")
    return table(head, [origin_row(name, line) for name, line in lines.items()])


def origin_row(name: str, line: Line) -> list[object]:
    """Return a row of a result."""
    link, on = f"[{name}.jsonl](../benchmarks/results/{name}.jsonl)", line["machine"]
    memory = f"{on['memory_gb']:.0f} GB"
    return [link, f"`{line['command']}`", line["commit"], line["at"][:10], on["cores"], memory, on["load_before"]]


def measured_table(cases: Sequence[Line]) -> str:
    """Return the measured cases."""
    head = ("agents", "clients", "model", "relays", "round", "broker", "coordinator", "agents' processes", "training",
            "coordinator's memory", "largest agent", "sent", "received", "coordinator writes",
            "load before")  # fmt: skip
    return table(head, [measured_row(case) for case in cases if not case["held_out"]])


def measured_row(case: Line) -> list[str]:
    """Return a row of a measured case."""
    times = (case["median_seconds"], *(case["processor_seconds"][role] for role in ROLES))
    peaks = [case["peak_bytes"][role] for role in ("coordinator", "agent")]
    sizes = (*peaks, case["bytes_down"], case["bytes_up"], case["disk_bytes"]["coordinator"])
    load = str(case["machine"]["load_before"])
    return [*case_cells(case), *(f"{short(one)} s" for one in times), *map(megabytes, sizes), load]


def sites_table(cases: Sequence[Line]) -> str:
    """Return the measured relays of sites."""
    head = ("boards", "clients", "model", "round", "relay", "relay's memory", "fitted to it")
    return table(head, [
        [case["agents"], case["clients"], f"{case['megabytes']:g} MB", f"{short(case['median_seconds'])} s",
         f"{short(case['processor_seconds']['relay'])} s", megabytes(case["peak_bytes"]),
         "no" if case["held_out"] else "yes"] for case in cases
    ])  # fmt: skip


def case_cells(case: Line) -> list[str]:
    """Return the cells that name a case."""
    relays = "yes" if case["relay"] else "no"
    return [str(case["agents"]), f"{case['clients']:,}", f"{case['megabytes']:g} MB", relays]


def costs_table(fits: Mapping[str, Fit]) -> str:
    """Return the fitted costs, in milliseconds of a processor."""
    head = ("part", "a round", "a reply", "an MB", "an agent", "an MB of sums", "R2", "worst case", "held out")
    rows = [
        [part, *(milliseconds(value) if value else "-" for value in vars(fit.cost).values()),
         f"{fit.r2:.3f}", percent(fit.worst), percent(fit.held_out)]
        for part, fit in fits.items()
    ]  # fmt: skip
    return table(head, rows)


def sums_table(sums: Sequence[Line]) -> str:
    """Return what sums of constant and noisy updates cost, for each MB of the model."""
    head = (
        "updates",
        "bytes, per byte of the model",
        "add a reply, per MB",
        "write the sum, per MB",
        "read it, per MB",
    )
    keys = ("reply_seconds", "write_seconds", "read_seconds")
    rows = [[short(one["sum_bytes_per_model_byte"]), *(milliseconds(one[key]) for key in keys)] for one in sums]
    return table(head, [[one["updates"], *row] for one, row in zip(sums, rows, strict=True)])


def held_out_table(cases: Sequence[Line], costs: Mapping[str, Cost]) -> str:
    """Return measured and predicted processor seconds of the cases that no fit has used."""
    head = ("agents", "clients", "model", "relays", "broker", "coordinator", "agents' processes", "training", "all",
            "error", "round")  # fmt: skip
    return table(head, [held_out_row(case, costs) for case in cases if case["held_out"]])


def held_out_row(case: Line, costs: Mapping[str, Cost]) -> list[str]:
    """Return a row of a case that was held out."""
    found, predicted = case["processor_seconds"], predict_case(case, costs)
    pairs = [*((found[role], predicted[role]) for role in ROLES), (total(found), total(predicted))]
    error = f"{100 * (total(predicted) / total(found) - 1):+.0f} %"
    pairs.append((case["median_seconds"], total(predicted) / case["machine"]["cores"]))
    texts = [f"{short(a)} / {short(b)} s" for a, b in pairs]
    return [*case_cells(case), *texts[:-1], error, texts[-1]]


def memory_table(memory: MemoryFit, rows: Sequence[Line]) -> str:
    """Return what the coordinator's memory consists of."""
    first, last = rows[0], rows[-1]
    more = last["peak_bytes"]["coordinator"] - first["peak_bytes"]["coordinator"]
    known = more / (last["clients"] - first["clients"])
    return table(("the coordinator's memory", "bytes"), [
        ("at least, without samples", megabytes(memory.fixed)),
        ("for each client that replies in a round", f"{short(memory.client / 1e3)} kB"),
        ("for each byte of the model", short(memory.model_byte)),
        ("for each client that is only known, with two samples", short(known)),
        ("largest error of a measured round", percent(memory.worst)),
    ])  # fmt: skip


def predictions_table(costs: Mapping[str, Cost], memory: MemoryFit) -> str:
    """Return predicted rounds with and without trees."""
    head = ("clients", "model", "fan-out", "machines", "round", "slowest part", "processor seconds",
            "coordinator's memory", "center's line, out / in", "a place's line, out / in",
            "limits exceeded")  # fmt: skip
    plans = [Federation(clients, size, fan_out) for clients, size in PREDICTED for fan_out in FAN_OUTS]
    return table(head, [prediction_row(plan, costs, memory) for plan in plans])


def prediction_row(plan: Federation, costs: Mapping[str, Cost], memory: MemoryFit) -> list[str]:
    """Return a row of a predicted round."""
    found = predict(plan, costs)
    center, place = (traffic(use.level.children, use.level.down, use.level.up)
                     for use in (found.levels[-1], found.levels[0]))  # fmt: skip
    peak = memory.peak(plan.clients, plan.megabytes)
    return [
        f"{plan.clients:,}", f"{plan.megabytes:g} MB", "no tree" if plan.fan_out is None else f"{plan.fan_out:,}",
        f"{found.machines:,}", f"{short(found.seconds)} s", slowest(plan, costs), short(found.processor_seconds),
        f"{short(peak / 1e9)} GB", center, place if len(found.levels) > 1 else "-",
        ", ".join(exceeded_limits(plan)) or "none",
    ]  # fmt: skip


def traffic(children: int, down: float, up: float) -> str:
    """Return what a machine sends and receives in a round."""
    return " / ".join(f"{short(children * size / 1e3)} GB" for size in (down, up))


def slowest(plan: Federation, costs: Mapping[str, Cost]) -> str:
    """Return the bottleneck of a predicted round, and its share of the seconds."""
    found = predict(plan, costs)
    use = found.bottleneck
    where = "" if use.bottleneck == use.level.name else f" of {use.level.name}"
    return f"{use.bottleneck}{where}, {percent(use.seconds / found.seconds)}"


def steps_of(clients: int, size: float, costs: Mapping[str, Cost]) -> list[tuple[str, Federation, Mapping[str, Cost]]]:
    """Return what removes one bottleneck after another: a text, the federation and the costs."""
    now = Federation(clients, size)
    own = replace(now, whole_manifest=False)
    tree = replace(own, fan_out=100)
    batch = {**costs, "coordinator of sums": replace(costs["coordinator of sums"], reply=0.0)}
    return [
        ("as the program is, all boards at one broker", now, costs),
        ("each board receives its own tasks only", own, costs),
        ("a tree with fan-out 100", tree, costs),
        ("the coordinator records a sum at once, not each member", tree, batch),
        ("fan-out 32", replace(tree, fan_out=32), batch),
        ("lines of 10 Gbit/s", replace(tree, fan_out=32, line=1250.0), batch),
    ]


def steps_table(costs: Mapping[str, Cost], clients: int = 1_000_000) -> str:
    """Return the bottleneck at each step, for each size of the model."""
    sizes = sorted({size for _, size in PREDICTED})
    head = ("step", *(f"{size:g} MB: {what}" for size in sizes for what in ("round", "slowest part")))
    columns = [steps_of(clients, size, costs) for size in sizes]
    return table(head, [steps_row(number, step) for number, step in enumerate(zip(*columns, strict=True), 1)])


def steps_row(number: int, step: Sequence[tuple[str, Federation, Mapping[str, Cost]]]) -> list[str]:
    """Return a row of a step, which has the same text for each size of the model."""
    cells = [(f"{short(predict(plan, costs).seconds)} s", slowest(plan, costs)) for _, plan, costs in step]
    return [f"{number}. {step[0][0]}", *(text for pair in cells for text in pair)]


def simulated_table(costs: Mapping[str, Cost], memory: MemoryFit) -> str:
    """Return what a round of simulated clients costs whose agents add their replies up."""
    head = ("clients", "model", "agents", "agents and their training processes", "coordinator", "coordinator's memory",
            "cores for a round in 10 minutes")  # fmt: skip
    return table(head, [simulated_row(clients, size, costs, memory) for clients, size in PREDICTED])


def simulated_row(clients: int, size: float, costs: Mapping[str, Cost], memory: MemoryFit) -> list[str]:
    """Return a row of a simulated round."""
    agents = max(4, clients // HOSTED)
    sizes = {"clients": clients, "megabytes": size, "bytes_up": 1e6 * size * agents, "bytes_down": 1e6 * size}
    found = predict_case({"agents": agents, "relay": True, **sizes}, costs)
    hosts = found["agent"] + found["worker"]
    return [
        f"{clients:,}", f"{size:g} MB", str(agents), f"{short(hosts)} s", f"{short(found['coordinator'])} s",
        f"{short(memory.peak(clients, size) / 1e9)} GB", short(max(1.0, hosts / SIMULATED_SECONDS)),
    ]  # fmt: skip


def population_table(rows: Sequence[Line]) -> str:
    """Return what known clients cost."""
    head = ("clients", "first round after", "further rounds", "coordinator, a round", "coordinator's memory",
            "an agent's memory", "a training process's memory", "journal")  # fmt: skip
    return table(head, [population_row(row) for row in rows])


def population_row(row: Line) -> list[str]:
    """Return a row of a number of clients."""
    times = (row["first_round_seconds"], row["round_seconds"], row["processor_seconds"]["coordinator"])
    peaks = [megabytes(row["peak_bytes"][role]) for role in ("coordinator", "agent", "worker")]
    journal = f"{short(row['journal_bytes'] / 1e3)} kB"
    return [f"{row['clients']:,}", *(f"{short(one)} s" for one in times), *peaks, journal]


def manifests_table(rows: Sequence[Line]) -> str:
    """Return the sizes of manifests."""
    head = ("clients asked", "first round", "later rounds", "a board reads it in")
    return table(head, [
        [f"{row['asked']:,}", *(f"{short(row[key] / 1e3)} kB" for key in ("first_bytes", "later_bytes")),
         milliseconds(row["later_read_seconds"])] for row in rows
    ])  # fmt: skip


def boards_table(rows: Sequence[Line]) -> str:
    """Return what a connected board costs, and for how many idle boards one core lasts."""
    columns = [board_cells(row) for row in rows]
    head = ("what", *(f"{row['boards']:,} boards" for row in rows))
    return table(head, [[name, *(column[name] for column in columns)] for name in columns[0]])


def board_cells(row: Line) -> dict[str, str]:
    """Return what a connected board costs, by name."""
    ping, message = row["broker_seconds_per_ping"], row["broker_seconds_per_message"]
    told, idle = row["coordinator_seconds_per_telemetry"], row["coordinator_idle_share"] / row["boards"]
    models = {f"broker, a model of {one['bytes'] / 1e6:g} MB to a board": milliseconds(one["processor_seconds"])
              for one in row["broker_models"]}  # fmt: skip
    return {
        "broker, memory of a board": f"{short(row['broker_bytes_per_board'] / 1e3)} kB",
        "broker, highest memory": megabytes(row["broker_models"][-1]["peak_bytes"]),
        "broker, a ping": microseconds(ping),
        "broker, a message to the coordinator": microseconds(message),
        **models,
        "coordinator, memory of a board": f"{short(row['coordinator_bytes_per_board'] / 1e3)} kB",
        "coordinator, a message of telemetry": microseconds(told),
        "coordinator, a second of a silent board": microseconds(idle),
        "idle boards that take one core of the broker": short(1 / (ping / PING_SECONDS + message / TELEMETRY_SECONDS)),
        "idle boards that take one core of the coordinator": short(1 / (told / TELEMETRY_SECONDS + idle)),
    }


def limits_table() -> str:
    """Return the limits of the program and of its broker, and how many clients fit a manifest."""
    asked = Federation(1, 1.0).manifest
    return table(("limit", "value", "where"), [
        ("clients of an experiment, and of an agent", f"{MAX_CLIENTS:,}", "`data.clients`, `MAX_CLIENTS`"),
        ("numbers of clients", f"below {NUMBERS:,}", "`NUMBERS`"),
        ("boards that are connected at a time", f"{MOST_AGENTS:,}", "`MOST_AGENTS`"),
        ("members of a partial sum", f"{MOST_MEMBERS:,}", "`MOST_MEMBERS`"),
        *((name, f"{size:,} bytes: {short(size / asked)} clients asked", f"`{where}`") for name, size, where in (
            ("a manifest, or another control message", MAX_MESSAGE, "MAX_MESSAGE"),
            ("a packet of Mosquitto 2.1 with its defaults", PACKET_BYTES, "max_packet_size"))),
    ])  # fmt: skip


def write_tables(page: Path, tables: Mapping[str, str]) -> None:
    """Replace the tables of a page.

    Raises:
        ValueError: the page has no place for a table, or several.
    """
    text = page.read_text(encoding="utf-8")
    for name, content in tables.items():
        text, count = re.subn(BLOCK.format(re.escape(name)), rf"\g<1>\n{content}\n\n\g<2>", text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"{page} has {count} places for a table, instead of one: <!-- table: {name} -->")
    page.write_text(text, encoding="utf-8")


def latest() -> list[Any]:
    """Return the last line of each result."""
    names = ("tree", "site_relays", "population", "connections")
    return [read_lines(RESULTS / f"{name}.jsonl")[-1] for name in names]
