"""Announce a federation's broker with mDNS, so that the boards find it at any address (RFC 6762, RFC 6763)."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fedquilt_common.errors import FederationError, PackageMissingError, how_to_install
from fedquilt_common.process.child import die_with_parent
from fedquilt_server.provisioning.names import broker_name, hostname_of
from fedquilt_server.provisioning.record import FederationRecord

if TYPE_CHECKING:
    from zeroconf import ServiceInfo

log = logging.getLogger(__name__)

SERVICE: Final = "_fedquilt._tcp.local."
"""Type of the announced service."""
CHECK_SECONDS: Final = 10.0
"""Pause between two looks at this machine's addresses."""
_STEP_SECONDS: Final = 0.5


def keep_announced(
    record: FederationRecord, addresses: Callable[[], list[str]], stop: Callable[[], bool], interfaces: Any = None
) -> None:
    """Announce the broker at this machine's addresses until ``stop`` returns True; changed addresses are announced.

    Args:
        record: the federation.
        addresses: returns this machine's IPv4 addresses.
        stop: whether to end.
        interfaces: addresses of the interfaces to announce on; None: all of them.

    Raises:
        PackageMissingError: the package zeroconf is not installed.
        FederationError: this machine has no address, or another machine announces the federation.
    """
    while not stop():
        current = addresses()
        if not current:
            raise FederationError("this machine has no address in a network: connect it, and run the command again")
        with _announced(record, current, interfaces):
            log.info("announcing %s at %s", broker_name(record.name), ", ".join(current))
            _wait_for_change(current, addresses, stop)


def _wait_for_change(shown: list[str], addresses: Callable[[], list[str]], stop: Callable[[], bool]) -> None:
    while not stop() and addresses() == shown:
        end = time.monotonic() + CHECK_SECONDS
        while time.monotonic() < end and not stop():
            time.sleep(_STEP_SECONDS)


@contextmanager
def _announced(record: FederationRecord, addresses: Sequence[str], interfaces: Any) -> Iterator[None]:
    """Answer questions for the broker's name during the ``with`` block."""
    try:
        from zeroconf import InterfaceChoice, NonUniqueNameException, Zeroconf
    except ModuleNotFoundError:
        raise PackageMissingError(f"announcing a broker needs zeroconf: {how_to_install('mdns')}") from None
    responder = Zeroconf(interfaces=interfaces or InterfaceChoice.All)
    try:
        responder.register_service(service_of(record, addresses))
        yield
    except NonUniqueNameException:
        raise FederationError(
            f"another machine announces the broker of the federation {record.name!r}: stop it there, or give this "
            "federation another name"
        ) from None
    finally:
        responder.unregister_all_services()
        responder.close()


def service_of(record: FederationRecord, addresses: Sequence[str]) -> ServiceInfo:
    """Return the announcement: the service, and an address record for the broker's name."""
    from zeroconf import ServiceInfo

    return ServiceInfo(
        SERVICE,
        f"{hostname_of(record.name)}.{SERVICE}",
        port=record.port,
        server=f"{broker_name(record.name)}.",
        parsed_addresses=list(addresses),
        properties={"federation": record.name},
    )


@contextmanager
def announcer(folder: Path) -> Iterator[None]:
    """Run ``fedquilt federation announce`` as a process during the ``with`` block."""
    command = [sys.executable, "-m", "fedquilt_common.cli", "federation", "announce", "--folder", str(folder)]
    prepare = partial(die_with_parent, os.getpid())
    child = subprocess.Popen(command, start_new_session=True, preexec_fn=prepare)  # noqa: S603 - our own program
    try:
        yield
    finally:
        child.terminate()
        child.wait()
