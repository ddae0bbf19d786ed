"""Sends results to an MLflow tracking server. Only this module imports the package."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Final

# A server that is away must not hold the thread for minutes: the feeder tries again anyway.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from fedquilt_server.status.results import RunStatus

TAG: Final = "fedquilt.run"
ROUND: Final = "round"
"""Metric with the number of the last round, from which a resumed run continues."""
MOST_METRICS: Final = 1000
"""Most metrics that a server accepts in one request."""
MOST_PARAMETERS: Final = 100
LONGEST_PARAMETER: Final = 500
_STATUS: Final[Mapping[RunStatus, str]] = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class MlflowSink:
    """One run of an MLflow experiment: found again by its tag if it was begun before.

    Args:
        uri: the tracking server.
        experiment: name of the MLflow experiment.
        run: the run's identifier.
        parameters: the settings of the run by dotted key.

    Raises:
        MlflowException: the server does not answer, or refuses.
    """

    def __init__(self, uri: str, experiment: str, run: str, parameters: Mapping[str, Any]) -> None:
        self._client = MlflowClient(uri)
        place = self._find_experiment(experiment)
        found = self._client.search_runs([place], f"tags.`{TAG}` = '{run}'")
        if found:
            self._id, metrics = found[0].info.run_id, found[0].data.metrics
            self._client.update_run(self._id, "RUNNING")
        else:
            self._id, metrics = self._begin(place, run, parameters), {}
        self.last_round = int(metrics.get(ROUND, 0))

    def _find_experiment(self, name: str) -> str:
        known = self._client.get_experiment_by_name(name)
        return str(known.experiment_id if known else self._client.create_experiment(name))

    def _begin(self, place: str, run: str, parameters: Mapping[str, Any]) -> str:
        begun = str(self._client.create_run(place, run_name=run, tags={TAG: run}).info.run_id)
        params = [Param(key, str(value)[:LONGEST_PARAMETER]) for key, value in parameters.items()]
        for start in range(0, len(params), MOST_PARAMETERS):
            self._client.log_batch(begun, params=params[start : start + MOST_PARAMETERS])
        return begun

    def write(self, round: int, scalars: Mapping[str, float]) -> None:
        """Send the numbers of a round; the round's number goes last, so a round that is cut off is sent again.

        Raises:
            MlflowException: the server does not answer, or refuses.
        """
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, round) for name, value in {**scalars, ROUND: float(round)}.items()]
        for start in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[start : start + MOST_METRICS])

    def end(self, status: RunStatus) -> None:
        """Send how the run has ended.

        Raises:
            MlflowException: the server does not answer, or refuses.
        """
        self._client.set_terminated(self._id, _STATUS.get(status, "FINISHED"))
