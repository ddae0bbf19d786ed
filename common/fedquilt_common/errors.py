"""Every error that fedquilt raises on purpose: its name states the fact, its text the place and what to do next.

The command line turns each into one message and its ``exit_code``, without a traceback.
"""

from __future__ import annotations

from typing import Final

EXIT_CODES: Final[dict[int, str]] = {
    0: "done; also `fedquilt` alone and a group alone, such as `fedquilt bench`, which print their help",
    1: "unforeseen error, or the address of the status page is in use",
    2: "the command line is not valid",
    3: "no broker: it does not answer, it refused the connection, or there is no mosquitto to start",
    4: "the experiment, an option or a name in it is not valid, or the model cannot be cut",
    5: "a data set is missing or damaged",
    6: "the folder is in use, damaged, or holds another run (for `simulate`, also a finished one)",
    7: "the run failed before its last round",
    8: "a federation's folder of identities is missing or damaged, or has no such board",
    9: "an image or a card cannot be written, or reads back differently",
    10: "a check of `fedquilt doctor` failed",
    130: "interrupted; to resume, run the same command with the same folder",
    143: "terminated; to resume, run the same command with the same folder",
}
"""Meaning of each exit code of ``fedquilt``."""


class FedquiltError(Exception):
    """Base class: something a person can act on."""

    exit_code = 1


class BrokerUnreachableError(FedquiltError):
    """No MQTT broker answered at the address, or it refused us."""

    exit_code = 3


class BrokerMissingError(FedquiltError):
    """There is no mosquitto program on this machine to start."""

    exit_code = 3


class ExperimentError(FedquiltError):
    """The experiment file, or a ``--set``, does not describe a run that can be made."""

    exit_code = 4


class DataUnavailableError(FedquiltError):
    """A data set's files are missing, or are not what they should be."""

    exit_code = 5


class FolderInUseError(FedquiltError):
    """Another process works in the folder."""

    exit_code = 6


class RunFolderError(FedquiltError):
    """The run folder cannot be used: it holds another run, or is damaged."""

    exit_code = 6


class RunFailedError(FedquiltError):
    """The run ended before its last round."""

    exit_code = 7


class ProtocolError(FedquiltError):
    """What came over the wire breaks the protocol; the sender's fault, never fatal to the receiver."""


class ProtocolVersionError(ProtocolError):
    """A message from a newer protocol than this program speaks."""


class PayloadError(ProtocolError):
    """A payload whose size, digest, shape, dtype or numbers are not what was announced."""


class DamagedTransferError(PayloadError):
    """Bytes were cut or changed on the way; the same payload sent again may be whole."""


class UnknownNameError(FedquiltError):
    """An algorithm, model or data set that fedquilt does not know."""

    exit_code = 4


class ForbiddenImportError(FedquiltError):
    """The experiment names a ``package:factory`` whose package the board's owner has not allowed."""

    exit_code = 4


class TrainingDivergedError(FedquiltError):
    """The loss is no longer a finite number, so training on makes no sense."""

    exit_code = 7


class NoGlobalModelError(FedquiltError):
    """The algorithm has no model for all clients: each client keeps its own."""

    exit_code = 4


class PackageMissingError(FedquiltError, ImportError):
    """A Python package that is not installed is needed."""


class SliceError(FedquiltError):
    """An index set or a sub-model that is not one of this model's."""

    exit_code = 4


class UncuttableModelError(FedquiltError):
    """A model whose channels cannot be followed, so that no sub-model can be cut from it."""

    exit_code = 4


class UnsupportedPrecisionError(FedquiltError):
    """A model that cannot be trained in the precision asked for on this device."""

    exit_code = 7


class FederationError(FedquiltError):
    """A federation's folder of identities is missing or damaged, or has no such board."""

    exit_code = 8


class ImageError(FedquiltError):
    """A disk image or a device that cannot be written, or that was not written as it should be."""

    exit_code = 9
