"""The errors that fedquilt raises. The class names the fact; the message states the place and what to do.

The command line prints the message without a traceback and exits with ``exit_code`` (``EXIT_CODES``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

EXIT_CODES: Final[dict[int, str]] = {
    0: "done, even for `fedquilt` or a group such as `fedquilt bench` alone, which print their help",
    1: "unforeseen error, or the address of the status page is in use",
    2: "the command line is not valid",
    3: "no broker: it does not answer, it refused the connection or the coordinator's presence, it cannot start or it "
    "ended, or there is no mosquitto to start; for `watch`, also: no status page answers",
    4: "the experiment or another file that you wrote is missing or not valid, an option or a name is not valid, or "
    "the model cannot be cut",
    5: "a data set is missing or damaged, or its download failed",
    6: "the folder is missing, in use, damaged, not writable, not an agent's state folder where it should be one, or "
    "holds another run (for `simulate`, also a finished one); "
    "the disk is full; or another coordinator works in the federation",
    7: "the run failed before its last round, or a replay differs from the recorded run",
    8: (
        "a federation's folder of identities is missing or damaged, has no such board, or cannot have it as asked: its "
        "name or kind is not valid, or another board hosts the client; for `upgrade`, also: fedquilt's playbooks are "
        "missing"
    ),
    9: "an image or a card cannot be written, reads back differently, or has no wheelhouse that suits the board",
    10: "a check of `fedquilt doctor` failed",
    11: "Ansible is missing, or it did not upgrade every board",
    12: "a data set cannot be downloaded by a program: the message has the steps, such as a licence to accept",
    13: "no Ray cluster answers, it has no room for the fleet, or fedquilt is missing or has another version on a node",
    129: "the terminal was closed; to resume, run the same command with the same folder, `coordinator` with `--resume`",
    130: "interrupted; to resume, run the same command with the same folder, `coordinator` with `--resume`",
    143: "terminated; to resume, run the same command with the same folder, `coordinator` with `--resume`",
}
"""Meaning of each exit code of ``fedquilt``."""


class FedquiltError(Exception):
    """Base class of the errors that a person can act on."""

    exit_code = 1


class BrokerUnreachableError(FedquiltError):
    """No MQTT broker answers at the address, or it refuses the connection or the coordinator's presence."""

    exit_code = 3


class PageUnreachableError(FedquiltError):
    """No status page answers at the address, or it refuses to show the run."""

    exit_code = 3


class BrokerMissingError(FedquiltError):
    """This machine has no mosquitto program to start."""

    exit_code = 3


class BrokerFailedError(FedquiltError):
    """The broker that this command runs cannot start, or ended by itself."""

    exit_code = 3


class ExperimentError(FedquiltError):
    """The experiment, another file that its owner wrote, or an option is not valid."""

    exit_code = 4


class DataUnavailableError(FedquiltError):
    """A data set's files are missing or have unexpected contents."""

    exit_code = 5


class DownloadError(DataUnavailableError):
    """A server refuses a file or does not answer, or the downloaded file is not the expected one."""


class DownloadTooLargeError(DownloadError):
    """A server's file is larger than any that is expected; the rest of it is not downloaded."""


class FolderInUseError(FedquiltError):
    """Another process uses the folder."""

    exit_code = 6


class FederationInUseError(FedquiltError):
    """Another coordinator works in the federation, which carries one run at a time."""

    exit_code = 6


class RunFolderError(FedquiltError):
    """The run folder cannot be used: it is missing, holds another run, or is damaged."""

    exit_code = 6


class RunFailedError(FedquiltError):
    """The run ended before its last round."""

    exit_code = 7


class AlgorithmError(RunFailedError):
    """The algorithm's own code raised an error, or yielded or returned what cannot be used. A restart repeats it."""


class ProtocolError(FedquiltError):
    """A received message violates the protocol. It is the sender's fault, and never fatal to the receiver."""


class ProtocolVersionError(ProtocolError):
    """A message has a newer protocol version than this program supports."""


class PayloadError(ProtocolError):
    """A payload's size, digest, shape, dtype or numbers are not valid."""


class SpoiledSumError(PayloadError):
    """What clients sent for a masked sum does not fit together, so the round must start again with new masks.

    Attributes:
        clients: those that spoiled it; empty if they are not known.
    """

    def __init__(self, message: str, clients: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.clients = tuple(clients)


class DamagedTransferError(PayloadError):
    """Bytes were lost or changed on the way; the same payload may arrive intact if it is sent again."""


class UnknownNameError(FedquiltError):
    """No algorithm, model or data set has this name."""

    exit_code = 4


class ForbiddenImportError(FedquiltError):
    """The experiment names a ``package:factory`` whose package is not allowed on this machine."""

    exit_code = 4


class TrainingDivergedError(FedquiltError):
    """The loss is no longer a finite number, so training stops."""

    exit_code = 7


class PrivacyBudgetError(FedquiltError):
    """Training would spend more privacy than the budget of the client's samples allows."""

    exit_code = 7


class NoGlobalModelError(FedquiltError):
    """The algorithm has no model for all clients: each client keeps its own."""

    exit_code = 4


class PackageMissingError(FedquiltError, ImportError):
    """A Python package that is not installed is needed."""


def how_to_install(extra: str, version: str = "") -> str:
    """Return what to do about a missing package: ``run `pip install 'fedquilt[images]'` ``.

    Args:
        extra: the extra of fedquilt that has the package.
        version: the version of fedquilt that is needed; empty: any.
    """
    return f"run `pip install 'fedquilt[{extra}]{f'=={version}' if version else ''}'`"


def how_to_install_on_boards(extra: str) -> str:
    """Return what to do about a package that is missing on this machine, which may be a board or a container."""
    return (
        f"{how_to_install(extra)} on this machine. If it is a board with a wheelhouse's release, run `make wheelhouse` "
        "and `fedquilt upgrade` on the workstation; if it is a container, build the image again"
    )


class SliceError(FedquiltError):
    """An index set or a sub-model does not fit the model."""

    exit_code = 4


class UncuttableModelError(FedquiltError):
    """The model's channels cannot be traced, so no sub-model can be cut from it."""

    exit_code = 4


class UnsupportedPrecisionError(FedquiltError):
    """The model cannot be trained in the requested precision on this device."""

    exit_code = 7


class FederationError(FedquiltError):
    """A federation's folder is missing or damaged, or has no such board."""

    exit_code = 8


class UpgradeFailedError(FedquiltError):
    """Ansible is missing, or it did not upgrade every board."""

    exit_code = 11


class ImageError(FedquiltError):
    """A disk image or a device cannot be written, lacks its wheels, or does not hold what was written."""

    exit_code = 9


class RayClusterError(FedquiltError):
    """No Ray cluster answers at the address, or it cannot host the fleet."""

    exit_code = 13


class RayNodeError(RayClusterError):
    """Nodes of the Ray cluster cannot host agents: fedquilt is missing there, or has another version."""


class ManualStepsError(FedquiltError):
    """A data set cannot be downloaded by a program: a person has to accept a licence, to register or to build it."""

    exit_code = 12


class NotFiniteError(PayloadError):
    """Numbers that are to be summed are infinite, or not numbers."""


class SumOverflowError(PayloadError):
    """A sum is beyond the largest number that can be represented."""


class RepeatedMemberError(PayloadError):
    """A partial sum has a client more than once."""


class MissingMemberError(PayloadError):
    """A partial sum lists a client whose reply it leaves out."""


class SumMismatchError(PayloadError):
    """A partial sum is not that of the clients and weights that it lists."""
