"""The command ``fedquilt sweep``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import typer

from fedquilt_common.broker_options import BrokerCaOption, BrokerCertOption, BrokerKeyOption, ServedFederationOption
from fedquilt_common.command_app import CommandApp
from fedquilt_common.errors import ExperimentError, RunFailedError
from fedquilt_common.experiment_file import parse_override
from fedquilt_common.plurals import counted
from fedquilt_common.process.signals import StopSignal
from fedquilt_common.wide_tables import print_whole
from fedquilt_common.wire.broker_url import BROKER_PASSWORD, parse_broker_url
from fedquilt_server.status.console import print_message
from fedquilt_server.sweep.manifest import SweepManifest
from fedquilt_server.sweep.options import (
    SweepBrokerOption,
    SweepFileArgument,
    SweepInventoryOption,
    SweepJobsOption,
    SweepJsonOption,
    SweepOutOption,
    SweepPortOption,
    SweepSetOption,
    SweepVaryOption,
)
from fedquilt_server.sweep.plan import SweepPlan, plan_sweep
from fedquilt_server.sweep.progress import SweepProgress, shorten
from fedquilt_server.sweep.run_process import BoardsBroker, RunHost
from fedquilt_server.sweep.scores import group_cases, make_table, manifest_with_scores
from fedquilt_server.sweep.sweep_file import parse_axes, read_source, vary
from fedquilt_server.sweep.sweeper import default_jobs, run_sweep

app = CommandApp()


@app.callback()
def group() -> None:
    """Group the command, so that typer keeps its name."""


@app.command()
def sweep(
    file: SweepFileArgument,
    vary_: SweepVaryOption = None,
    set_: SweepSetOption = None,
    out: SweepOutOption = None,
    jobs: SweepJobsOption = None,
    broker: SweepBrokerOption = None,
    federation: ServedFederationOption = "default",
    ca: BrokerCaOption = "",
    cert: BrokerCertOption = "",
    key: BrokerKeyOption = "",
    inventory: SweepInventoryOption = None,
    port: SweepPortOption = 0,
    json_: SweepJsonOption = False,
) -> None:
    """Run an experiment in many variations, each in a folder of its own below the sweep's folder.

    Run the same command again to skip what is finished, resume what was interrupted and retry what failed.
    """
    plan = _make_plan(file, vary_ or (), set_ or (), out)
    host = RunHost(_boards_broker(broker, federation, ca, cert, key, inventory), port)
    at_once = _check_jobs(jobs, plan, host)
    stop = StopSignal()
    manifest = run_sweep(plan, host, at_once, SweepProgress(name_pages=broker is not None), stop)
    if json_:
        typer.echo(json.dumps(manifest_with_scores(plan.folder, manifest), indent=2))
    else:
        print_whole(make_table(manifest, group_cases(plan.folder, manifest)))
    _leave(plan, manifest, stop)


def _make_plan(file: Path, axes: list[str] | tuple[()], changes: list[str] | tuple[()], out: Path | None) -> SweepPlan:
    source = vary(read_source(file), parse_axes(axes), "--vary ")
    return plan_sweep(source, [parse_override(text) for text in changes], out)


def _boards_broker(
    url: str | None, federation: str, ca: str, cert: str, key: str, inventory: Path | None
) -> BoardsBroker | None:
    if url is None:
        if ca or cert or key or inventory or federation != "default":
            raise ExperimentError("--federation, --ca, --cert, --key and --inventory need --broker: add it")
        return None
    address = parse_broker_url(url).with_files(ca, cert, key).with_password(os.environ.get(BROKER_PASSWORD, ""))
    return BoardsBroker(address, federation, inventory)


def _check_jobs(jobs: int | None, plan: SweepPlan, host: RunHost) -> int:
    """Return the number of runs at once.

    Raises:
        ExperimentError: runs at once would share the boards, or the port of the status page.
    """
    alone = "--broker" if host.boards else "--port" if host.port else ""
    if not alone:
        return jobs or default_jobs([run.experiment for run in plan.runs])
    if jobs is not None and jobs > 1:
        why = "boards take part in one run at a time" if host.boards else "two pages cannot share a port"
        raise ExperimentError(f"--jobs {jobs} with {alone}: {why}; leave one of the two out")
    return 1


def _leave(plan: SweepPlan, manifest: SweepManifest, stop: StopSignal) -> None:
    """Print where the runs are; exit with an error if some are not finished."""
    open_ = [run for run in manifest.runs if run.status != "finished"]
    all_runs = counted(len(manifest.runs), "run")
    if stop() and open_:
        count = len(manifest.runs) - len(open_)
        print_message(
            f"Interrupted after {count} of {all_runs}. Run the same command again to resume; "
            f"the folder is {plan.folder}"
        )
        raise typer.Exit(stop.exit_code)
    if open_:
        lines = [f"  {run.label}: {shorten(run.reason)} (folder {plan.folder / run.folder})" for run in open_]
        raise RunFailedError(
            f"Not finished: {len(open_)} of {all_runs}. Repair what failed and run the same command again, which "
            "continues only these:\n" + "\n".join(lines)
        )
    print_message(f"{all_runs}. The folder is {plan.folder}")


def run(arguments: list[str]) -> None:
    """Run ``fedquilt sweep`` with these arguments."""
    app(arguments, prog_name="fedquilt")
