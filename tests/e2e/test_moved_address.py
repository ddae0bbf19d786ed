"""The workstation gets another address: a real agent finds the real broker again, without a new card."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("zeroconf", reason="zeroconf is not installed: pip install 'fedquilt[mdns]'")
SCRIPT = """\
set -e
mount --bind /dev/null /etc/resolv.conf # else the broker waits 10 s for the name of each address
ip link set lo up
ip link add lan type veth peer name other
ip link set other up
ip link set lan up multicast on
ip address add 10.5.0.1/24 dev lan
ip route add default via 10.5.0.254 dev lan
fedquilt() { "$PYTHON" -c "$PROGRAM" "$@"; }
fedquilt federation init --name lab --mdns
fedquilt provision kitchen --kind pi4
fedquilt federation broker --announce 2> broker.log &
broker=$!
fedquilt agent --config federation/boards/kitchen/agent.yaml --state state 2> agent.log &
agent=$!
until grep -q "connected to the broker" agent.log; do sleep 0.1; done
ip address delete 10.5.0.1/24 dev lan
ip address add 10.5.0.77/24 dev lan
ip route replace default via 10.5.0.254 dev lan
until grep -q "from 10.5.0.77" broker.log; do sleep 0.1; done
until [ "$(grep -c "connected to the broker" agent.log)" -ge 2 ]; do sleep 0.1; done
kill $agent $broker
wait
"""


PROGRAM = "from fedquilt_common.wire import mqtt; mqtt._KEEPALIVE = 6; from fedquilt_common.cli import main; main()"
"""The command; it notices a dead connection after seconds instead of a minute."""


def namespaces() -> str:
    """Return why this machine cannot make network namespaces; empty if it can."""
    if not all(map(shutil.which, ("unshare", "ip"))):
        return "unshare or ip is not installed: sudo apt-get install util-linux iproute2"
    trial = "mount --bind /dev/null /etc/resolv.conf && ip link add lan type veth peer name other"
    done = subprocess.run(["unshare", "--net", "--mount", "sh", "-c", trial], capture_output=True, check=False)
    return "" if done.returncode == 0 else "network namespaces need root"


@pytest.mark.skipif(bool(namespaces()), reason=namespaces())
def test_an_agent_finds_the_broker_at_its_new_address(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable, "PROGRAM": PROGRAM}
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", SCRIPT],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "broker.log").read_text()
    assert "New connection from 10.5.0.1:" in log
    assert "New connection from 10.5.0.77:" in log
