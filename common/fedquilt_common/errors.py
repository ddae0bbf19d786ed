"""Every error fedquilt raises on purpose; the name says the fact, the text says where and what to do next.

The command line turns each into one message and its ``exit_code`` (the table is in README.md); no traceback.
"""

from __future__ import annotations


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
