"""The commands ``fedquilt demo`` and ``simulate``.

They import neither the coordinator nor its page, which are processes of their own: the first process starts sooner.
"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Final

import typer

from fedquilt_common.command_app import CommandApp
from fedquilt_common.errors import ExperimentError, RunFolderError
from fedquilt_common.experiment_file import load_experiment, parse_experiment
from fedquilt_common.process.signals import StopSignal
from fedquilt_server.run_options import (
    DemoOut,
    ExperimentFile,
    JsonResult,
    KeepReplies,
    LingerOption,
    Out,
    Set,
    print_control,
    print_remarks,
)
from fedquilt_server.runs.result_files import read_result
from fedquilt_server.simulate.plan import SimulationPlan, make_plan, new_run_folder
from fedquilt_server.simulate.simulate import run_with_progress
from fedquilt_server.sinks.opening import Mlflow, Sinks, TensorBoard, open_sinks
from fedquilt_server.status.console import print_message
from fedquilt_server.status.recorded import recorded_snapshot
from fedquilt_server.status.summary import print_summary
from fedquilt_server.web.access import choose_access

app = CommandApp()

DEMO_LINGER: Final = 20.0
Broker = Annotated[str | None, typer.Option(help="URL of a broker to use; by default the command starts a Mosquitto.")]


@app.command()
def demo(
    out: DemoOut = None,
    broker: Broker = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the status page; 0 chooses a free one.")] = 0,
    json_: JsonResult = False,
) -> None:
    """Train on handwritten digits over real MQTT on this machine: FedAvg, 8 clients on 2 agents, 20 rounds."""
    text = resources.files("fedquilt_server").joinpath("demo.yaml").read_text(encoding="utf-8")
    experiment = parse_experiment(text, "demo.yaml")
    linger = DEMO_LINGER if sys.stderr.isatty() else 0.0  # in a terminal, a person may open the page
    _simulate(make_plan(experiment, out or new_run_folder("demo"), broker, port, linger), json_, Sinks())


@app.command()
def simulate(
    experiment: ExperimentFile,
    out: Out = None,
    set_: Set = None,
    broker: Broker = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the status page; 0 chooses a free one.")] = 0,
    linger: LingerOption = 0.0,
    keep_replies: KeepReplies = False,
    limits: Annotated[
        bool, typer.Option(help="Enforce fleet.N.memory and fleet.N.cpus, if you may create control groups.")
    ] = True,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run the agents on the nodes of an existing Ray cluster: HOST:PORT, or auto for this machine's.",
            show_default="on this machine",
        ),
    ] = None,
    ray_state: Annotated[
        Path | None,
        typer.Option(
            help="Folder that all nodes of the Ray cluster share, for what clients keep.",
            show_default="a folder of each node",
        ),
    ] = None,
    tensorboard: TensorBoard = None,
    mlflow: Mlflow = None,
    json_: JsonResult = False,
) -> None:
    """Run an experiment on this machine: broker, coordinator and agents as processes that restart if they die.

    Run the same command again to resume an interrupted run.
    """
    loaded = load_experiment(experiment, set_ or ())
    if ray is not None and loaded.data.delivery == "local":
        loaded = load_experiment(experiment, [*(set_ or ()), "data.delivery=broker"])
        print_message("data.delivery: broker, so that the nodes of the Ray cluster need no data set")
    plan = make_plan(loaded, out or Path("runs") / loaded.name, broker, port, linger)
    plan = replace(plan, keep_replies=keep_replies, limits=limits)
    if ray is not None:
        from fedquilt_server.ray_cluster.hosts import host_on_ray

        print_message(f"Checking the Ray cluster ({ray}) and its nodes")
        plan = host_on_ray(plan, ray, ray_state)
    elif ray_state is not None:
        raise ExperimentError("--ray-state needs --ray; remove it, or give the address of a Ray cluster")
    with open_sinks(tensorboard, mlflow, loaded) as sinks:
        _simulate(plan, json_, sinks)


def _simulate(plan: SimulationPlan, as_json: bool, sinks: Sinks) -> None:
    stop = StopSignal()
    print_control(plan.page_url, choose_access("127.0.0.1", plan.folder, public=False))
    try:
        done = run_with_progress(plan, stop, sinks.show)
    finally:
        with contextlib.suppress(RunFolderError):  # there is no result yet
            sinks.show(recorded_snapshot(read_result(plan.folder), plan.experiment.rounds))
    if done is None:
        print_message(f"Interrupted. Run the same command again to resume; the run folder is {plan.folder}")
        raise typer.Exit(stop.exit_code)
    if as_json:
        shown = {**json.loads(done.result.model_dump_json()), "restarts": done.restarts}
        typer.echo(json.dumps(shown, indent=2))
        rounds, speed = done.result.final["rounds"], float(done.result.final["rounds_per_second"])
        print_message(f"{rounds} rounds, {speed:.3g} a second. The run folder is {plan.folder}")
        print_remarks(done.result)
    else:
        print_summary(done.result, plan.folder, done.restarts)


@app.callback()
def group() -> None:
    """Run federations on this machine."""


def run(arguments: list[str]) -> None:
    """Run one command with its arguments."""
    app(arguments, prog_name="fedquilt")
