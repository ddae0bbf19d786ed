"""A tree of brokers: a central Mosquitto, and one at each site behind a line that can be cut and counts bytes."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.line import Line, line
from tests.support.peers import HOST

from fedquilt_server.provisioning.federation import Federation, make_federation
from fedquilt_server.simulate.mosquitto import find_mosquitto, free_port, wait_listening

_ADDRESS = re.compile("^address .*$", re.MULTILINE)
_RESTART = re.compile("^restart_timeout .*$", re.MULTILINE)


@dataclass
class BrokerTree:
    """The brokers, while they run.

    Attributes:
        federation: its folder has the configurations of all brokers.
        lines: the line of each site.
    """

    federation: Federation
    lines: dict[str, Line] = field(default_factory=dict)
    _brokers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, site: str = "") -> None:
        """Start the broker of a site, or the central one."""
        folder, port = self._folder(site), self._port(site)
        self._brokers[site] = subprocess.Popen([str(find_mosquitto()), "-c", str(folder / "mosquitto.conf")])
        wait_listening(HOST, port, timeout=60)

    def kill(self, site: str = "") -> None:
        """Kill a broker: what it has not written is lost."""
        self._brokers[site].kill()
        self._brokers.pop(site).wait()

    def lay_line(self, site: str, made: Line) -> None:
        """Let a site's bridge connect through a line, and try again after a second."""
        self.lines[site] = made
        path = self._folder(site) / "mosquitto.conf"
        text = _ADDRESS.sub(f"address localhost:{made.port}", path.read_text())
        path.write_text(_RESTART.sub("restart_timeout 1", text))

    def stop(self) -> None:
        """End all brokers."""
        for site in list(self._brokers):
            self.kill(site)

    def _folder(self, site: str) -> Path:
        return self.federation.site_folder(site) if site else self.federation.broker_folder

    def _port(self, site: str) -> int:
        return self.federation.record.sites[site].port if site else self.federation.record.port


@contextlib.contextmanager
def broker_tree(
    folder: Path,
    sites: Mapping[str, Sequence[str]],
    relays: Collection[str] = (),
    clients: Mapping[str, str] | None = None,
) -> Iterator[BrokerTree]:
    """Run a central broker, and one for each site.

    Args:
        folder: of the new federation ``lab``.
        sites: the boards behind each site; those of the name "" use the central broker.
        relays: the sites with a relay.
        clients: those of some boards; each other board has the next free one.
    """
    federation = make_federation(folder, "lab", ["localhost"], free_port())
    tree = BrokerTree(federation)
    with contextlib.ExitStack() as stack:
        stack.callback(tree.stop)
        for site, boards in sites.items():
            if site:
                federation.add_site(site, ["localhost"], free_port(), relay=site in relays)
            for board in boards:
                federation.provision(board, "pi4", (clients or {}).get(board, ""), site=site)
        tree.start()
        for site in filter(None, sites):
            tree.lay_line(site, stack.enter_context(line(federation.record.port)))
            tree.start(site)
        yield tree
