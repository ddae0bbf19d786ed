"""What all control messages have in common: their base classes, and the types of their fields."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from fedquilt_common.terminal_text import printable
from fedquilt_common.wire.number_ranges import NUMBERS, pack_numbers, unpack_numbers
from fedquilt_common.wire.texts import LONGEST_TEXT
from fedquilt_common.wire.topics import NAME_PATTERN

PROTOCOL: Final = 1

DIGEST_PATTERN: Final = "[0-9a-f]{32}(?:[0-9a-f]{32})?"
"""Regular expression of a digest in hex: an XXH3 of 128 bits, or a SHA-256."""
Digest = Annotated[str, Field(pattern=f"^{DIGEST_PATTERN}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""A digest of what comes from elsewhere, or is compared with other machines' own: never an XXH3."""
Name = Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]
MAX_CLIENTS: Final = 400_000
"""Most clients of one agent."""
Workers = Annotated[int, Field(ge=1, le=1024)]
"""Training processes that an agent runs at a time."""
Client = Annotated[int, Field(ge=0, lt=NUMBERS)]
"""A client's number."""


def _unpack(packed: Any) -> Any:
    return unpack_numbers(packed, MAX_CLIENTS) if isinstance(packed, list | tuple) else packed


Clients = Annotated[list[Client], BeforeValidator(_unpack), PlainSerializer(pack_numbers, when_used="json")]
"""Numbers of clients; in JSON, a pair [first, last] stands for many consecutive ones."""
Number = Annotated[int, Field(ge=0, lt=1_000_000_000)]
Big = Annotated[int, Field(ge=0, lt=2**63)]
Text = Annotated[str, Field(max_length=LONGEST_TEXT), AfterValidator(printable)]
"""One line: a board could otherwise write a line that looks like the coordinator's own."""
ClientKey = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,5})$")]
"""A client's number as a key of a JSON object."""
Reading = Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False)]
"""What a sensor shows."""
Amount = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
"""A number that is never negative, such as an energy."""
Word = Annotated[str, Field(pattern=r"^([a-z][a-z-]{0,31})?$")]
"""One of a few words, or empty. A newer version may add words, so a receiver accepts those that it does not have."""


class MessagePart(BaseModel):
    """Base of messages and their parts. Unknown keys are ignored, so that a newer version can add keys."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class WireMessage(MessagePart):
    """Base of the control messages."""

    v: int = PROTOCOL

    def encode(self) -> bytes:
        """Encode the message as compact JSON, defaults included."""
        return self.model_dump_json().encode()
