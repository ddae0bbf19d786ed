"""A simulation whose page's port is in use ends before it starts a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedquilt_common.experiment.experiment import Experiment
from fedquilt_server.simulate import plan as plan_module
from fedquilt_server.simulate.plan import PAGE_HOST, make_plan
from fedquilt_server.status.page_listener import PortInUseError, open_listener

EXPERIMENT = Experiment.model_validate(
    {"name": "a", "data": {"set": "digits", "clients": 2}, "model": {"name": "mlp"}, "algorithm": {"name": "fedavg"}}
)


def test_a_port_in_use_is_an_error_and_a_free_one_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "PORT_SECONDS", 0.0)
    with open_listener(PAGE_HOST, 0) as other:
        port: int = other.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"cannot use port {port} .* Choose another port") as failure:
            make_plan(EXPERIMENT, tmp_path / "run", port=port)
    assert failure.value.exit_code == 1
    assert make_plan(EXPERIMENT, tmp_path / "run", port=port).page_port == port
