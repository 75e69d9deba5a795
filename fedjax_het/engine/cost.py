"""What a run costs, known before its first round."""

from typing import Any, NamedTuple

import numpy as np

from fedjax_het import tree
from fedjax_het.algorithm import Algorithm
from fedjax_het.data.federation import Federation
from fedjax_het.engine.round import Transcript
from fedjax_het.types import State


class Facts(NamedTuple):
    num_clients: int
    cohort_size: int
    num_parameters: int
    steps_per_client: tuple[int, int]  # (fewest, most) in a round
    bytes_down: int  # a client a round
    bytes_up: int
    compile_seconds: float
    peak_bytes: int  # arguments, results and temporaries of the rounds' program


def facts(
    algorithm: Algorithm, federation: Federation, shapes: tuple[State, Any, Transcript], compiled: Any, seconds: float
) -> Facts:
    """`shapes` of a round, `compiled`: the rounds' program, `seconds`: what both programs took to compile."""
    state, _, said = shapes
    steps = np.asarray(algorithm.local_update.num_steps(np.asarray(federation.data.train.count)))
    own = tree.num_entries(state.clients.personal.get("params", {})) // federation.num_clients
    down, up = bytes_a_client(said)
    return Facts(
        num_clients=federation.num_clients,
        cohort_size=said.uploads.num_examples.shape[0],
        num_parameters=tree.num_entries(state.server.shared["params"]) + own,
        steps_per_client=(int(steps.min()), int(steps.max())),
        bytes_down=down,
        bytes_up=up,
        compile_seconds=seconds,
        peak_bytes=peak_bytes(compiled.memory_analysis()),
    )


def bytes_a_client(said: Transcript) -> tuple[int, int]:
    """(down, up): bytes that cross the wire for one client in a round, from the records themselves."""
    cohort_size = said.uploads.num_examples.shape[0]
    down = tree.num_bytes(said.received) + tree.num_bytes(said.replies) // cohort_size
    return down, tree.num_bytes((said.answers, said.uploads)) // cohort_size


def peak_bytes(memory: Any) -> int:
    """Arguments, results and temporaries of a compiled program, those donated counted once."""
    parts = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return int(parts - memory.alias_size_in_bytes)
