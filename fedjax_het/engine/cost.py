"""What a run costs, known before its first round."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jax.stages import Compiled

from fedjax_het import tree
from fedjax_het.engine.evaluation import BATCH, held_out, of_own
from fedjax_het.engine.residence import RESIDENT, Residence
from fedjax_het.engine.round import Transcript
from fedjax_het.engine.runs import runs_at_once
from fedjax_het.engine.wiring import Wired


class Facts(NamedTuple):
    num_clients: int
    cohort_size: int
    num_parameters: int
    steps_per_client: tuple[int, int]  # (fewest, most) in a round
    bytes_down: int  # a client a round
    bytes_up: int
    compile_seconds: float  # rounds and evaluation
    held_bytes: Mapping[str, int]  # what must be on each device, by what it is
    peak_bytes: int  # what is there at the most: that, and what the programs need on their way


def facts(wired: Wired, held_bytes: Mapping[str, int], peak_bytes: int, compile_seconds: float) -> Facts:
    job, state, said = wired.job, wired.shapes.state, wired.shapes.said
    steps = np.asarray(job.algorithm.local_update.num_steps(np.asarray(job.federation.data.train.count)))
    own = tree.num_entries(state.clients.personal.get("params", {})) // job.num_clients
    down, up = bytes_a_client(said)
    return Facts(
        num_clients=job.num_clients,
        cohort_size=job.cohort_size,
        num_parameters=tree.num_entries(state.server.shared["params"]) + own,
        steps_per_client=(int(steps.min()), int(steps.max())),
        bytes_down=down,
        bytes_up=up,
        compile_seconds=compile_seconds,
        held_bytes=held_bytes,
        peak_bytes=peak_bytes,
    )


def bytes_a_client(said: Transcript) -> tuple[int, int]:
    """(down, up): bytes that cross the wire for one client in a round, from the records themselves."""
    cohort_size = said.uploads.num_examples.shape[0]
    down = tree.num_bytes(said.received) + tree.num_bytes(said.replies) // cohort_size
    return down, tree.num_bytes((said.answers, said.uploads)) // cohort_size


# ---- memory of a device ----------------------------------------------------------------------------------------------
UPDATES = "updates of a cohort"


def held(wired: Wired, residence: Residence) -> dict[str, int]:
    """Bytes that must be on each device, by what they are, from shapes alone: nothing has been compiled.

    Off the device, client states are there three cohorts at a time (of the round before, of this one, of the next),
    examples and index tables two.
    """
    job, state, said = wired.job, wired.shapes.state, wired.shapes.said
    layout, data, seeds = wired.layout, job.federation.data, job.num_runs
    slots = layout.padded(job.cohort_size)
    a_client, tables = tree.num_bytes(state.clients) // job.num_clients, (data.train, data.valid)
    sizes = {"server's state": seeds * tree.num_bytes((state.server, state.tally))}
    if residence.client_states == "device":
        sizes["client states"] = seeds * layout.at_rest(job.num_clients) * a_client // layout.num_devices
    else:
        sizes["client states of 3 cohorts"] = 3 * seeds * slots * a_client // layout.num_devices
    if residence.examples == "device":
        sizes["examples"] = tree.num_bytes(data.examples)
    else:
        an_example = sum(x.dtype.itemsize * math.prod(x.shape[1:]) for x in data.examples)
        sizes["examples of 2 cohorts"] = 2 * job.most_examples * an_example
    if residence == RESIDENT:
        tested = held_out(job.federation, BATCH)[0], of_own(job.federation, job.personal_on_test)
        sizes["index tables"] = tree.num_bytes((tables, tested))
    else:
        sizes["index tables of 2 cohorts"] = 2 * seeds * slots * tree.num_bytes(tables) // job.num_clients
    if job.algorithm.aggregator.summand is None:
        sizes[UPDATES] = seeds * tree.num_bytes(said.uploads.update) // layout.num_devices
    return sizes


def training_bytes(wired: Wired) -> int:
    """Bytes of one client's model and one batch of inputs, of every run that trains at a time: each step needs both."""
    job, state = wired.job, wired.shapes.state
    inputs = job.federation.data.examples.inputs
    batch = 4 * job.algorithm.local_update.batch_size * math.prod(inputs.shape[1:])
    model = tree.num_bytes(state.server.shared) + tree.num_bytes(state.clients.personal) // job.num_clients
    return runs_at_once(len(job.algorithms), job.num_seeds) * (model + batch)


def lying(held_bytes: Mapping[str, int]) -> int:
    """What of it is there before a round begins: all but the updates."""
    return sum(size for name, size in held_bytes.items() if name != UPDATES)


def extra_bytes(program: Compiled) -> int:
    """What a program needs besides its arguments: temporaries, and results that take no argument's place."""
    memory = program.memory_analysis()
    return int(memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes)


def megabytes(size: int) -> str:
    """As messages give it."""
    return f"{size / 1e6:,.1f}"
