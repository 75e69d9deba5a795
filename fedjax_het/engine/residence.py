"""Where what grows with a federation lies between rounds."""

from typing import NamedTuple

AUTO = "auto"
CLIENT_STATES = (AUTO, "device", "host", "disk")
EXAMPLES = (AUTO, "device", "stream")


class Residence(NamedTuple):
    """client_states: on the device, in host memory, or in a file.

    examples: on the device, or in host memory, or wherever their arrays map to, from where each round's are copied.
    """

    client_states: str
    examples: str

    def __str__(self) -> str:
        return f"client states: {self.client_states}, examples: {self.examples}"


RESIDENT = Residence("device", "device")
