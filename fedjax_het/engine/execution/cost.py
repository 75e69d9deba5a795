"""Cost of a run in steps, communication and memory, known before its first round."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_het import tree
from fedjax_het.algorithm import Algorithm
from fedjax_het.engine.execution.run_spec import OffloadPolicy
from fedjax_het.engine.execution.trace import TracedRound
from fedjax_het.engine.parallel.runs import Executable
from fedjax_het.engine.round.participation import POLL_BYTES
from fedjax_het.engine.round.records import RoundMessages
from fedjax_het.engine.round.update_plan import is_stacked
from fedjax_het.engine.round.uplink import count_bits
from fedjax_het.problem import Problem
from fedjax_het.types import Array, ClientData, ModelPart, Variables


class RunCost(NamedTuple):
    """The cost of a run."""

    num_clients: int
    cohort_size: int  # slots per round
    mean_cohort_size: float  # mean number of participating clients per round
    num_parameters: int  # trained by a client
    num_frozen: int  # parameters that clients do not train
    steps_per_client: tuple[int, int]  # (minimum, maximum) per round over all runs
    bytes_down: int  # per client and round; mean over clients if they train parts of the model
    bytes_up: int
    bits_up: float  # bytes_up before rounding up to bytes; see `uplink.count_bits`
    compile_seconds: float  # rounds and evaluation
    held_bytes: Mapping[str, int]  # required on each device: {name: bytes}
    peak_bytes: int  # peak per device: held_bytes and temporary arrays of the programs
    bytes_polled: int = 0  # sent per polled client; each also receives bytes_down, whether it trains or not
    bytes_opening: int = 0  # sent by each client in the opening rounds, in which it also receives bytes_down


def run_cost(traced: TracedRound, held_bytes: Mapping[str, int], peak_bytes: int, compile_seconds: float) -> RunCost:
    """Collect the cost of a traced round, given the results of its compilation."""
    spec, state, messages = traced.spec, traced.shapes.state, traced.shapes.messages
    federation = spec.federation
    counts = np.asarray((federation.phases or federation.data).train.count)
    steps = np.stack([algorithm.local_update.num_steps(counts) for algorithm in spec.sweep.algorithms])
    personal, _ = tree.partition_like(state.clients.personal, state.server.shared)
    own = tree.num_entries(personal.get("params", {})) // spec.num_clients
    down, bits_up = traffic_per_client(
        spec.algorithm, traced.round.problem, federation.data, spec.num_clients, messages
    )
    return RunCost(
        num_clients=spec.num_clients,
        cohort_size=spec.cohort_size,
        mean_cohort_size=spec.participation.expected_size(spec.num_clients),
        num_parameters=tree.num_entries(state.server.shared["params"]) + own,
        num_frozen=tree.num_entries([leaves.get("params", {}) for leaves in (state.server.frozen, state.server.base)]),
        steps_per_client=(int(steps.min()), int(steps.max())),
        bytes_down=down,
        bytes_up=math.ceil(bits_up / 8),
        bits_up=bits_up,
        compile_seconds=compile_seconds,
        held_bytes=held_bytes,
        peak_bytes=peak_bytes,
        bytes_polled=POLL_BYTES if spec.participation.poll else 0,
        bytes_opening=_answer_bytes(messages) if spec.algorithm.survey_first else 0,
    )


def traffic_per_client(
    algorithm: Algorithm, problem: Problem, data: ClientData, num_clients: int, messages: RoundMessages
) -> tuple[int, float]:
    """(Bytes received, bits sent) per client and round, after all stages of the uplink, with answers to its survey.

    If clients train parts of the model, these are means over all clients, and a client receives and sends the entries
    of its part. Masks are not counted: the server knows the parts.
    Without a server, a client sends its model to every client that hears it; all are taken to be present.
    """
    cohort_size = messages.uploads.num_examples.shape[0]
    upload = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), messages.uploads)
    answers = 0 if algorithm.survey_first else 8 * _answer_bytes(messages)
    if algorithm.mixing:
        up = answers + count_bits(algorithm.uplink, upload)
        memories = (algorithm.memory[name].init for name in algorithm.mixing.carried)
        up += sum(8 * tree.num_bytes(jax.eval_shape(init, upload.update)) for init in memories)
        up *= algorithm.mixing.count_messages(num_clients)
        return math.ceil(up / 8), up
    received = messages.received
    if algorithm.models and not algorithm.models.are_all_sent:
        received = received._replace(shared=jax.eval_shape(lambda stack: tree.take(stack, 0), received.shared))
    parts = {name: summary.own_part for name, summary in algorithm.published.items() if summary.own_part}
    needed = {name: jax.eval_shape(part, received.published[name]) for name, part in parts.items()}
    received = received._replace(published={**received.published, **needed})
    replies, count_parts = tree.num_bytes(messages.replies) // cohort_size, algorithm.local_update.count_parts
    if count_parts is None:
        return tree.num_bytes(received) + replies, answers + count_bits(algorithm.uplink, upload)
    upload = upload._replace(reports={name: leaf for name, leaf in upload.reports.items() if name != "mask"})
    parts, down, up = count_parts(problem, data, num_clients), 0, 0.0
    for count, part in parts:
        down += count * tree.num_bytes(received._replace(shared=_cut(received.shared, part)))
        up += count * count_bits(algorithm.uplink, upload, _cut(upload.update, part))
    total = sum(count for count, _ in parts)
    return math.ceil(down / total) + replies, answers + up / total


def _answer_bytes(messages: RoundMessages) -> int:
    """The bytes of a client's answers to the survey."""
    return tree.num_bytes(messages.answers) // messages.uploads.num_examples.shape[0]


def _cut(whole: Variables, part: ModelPart) -> Variables:
    """The shapes of the leaves, with the parameters of a part alone; axes of the server's models come first."""

    def cut(path: str, leaf: Array) -> jax.ShapeDtypeStruct:
        shape = part.get(path, leaf.shape)
        return jax.ShapeDtypeStruct((*leaf.shape[: leaf.ndim - len(shape)], *shape), leaf.dtype)

    leaves = tree.leaves_by_path(whole).items()
    return tree.from_paths(
        {path: cut(path, leaf) for path, leaf in leaves if path in part or not tree.is_parameter(path)}
    )


# ---- memory of a device ----------------------------------------------------------------------------------------------
UPDATES = "updates of a cohort"


def resident_bytes(traced: TracedRound, offload: OffloadPolicy) -> dict[str, int]:
    """The bytes required on each device, from shapes only, before compilation.

    The device holds the index tables of two cohorts, the current and the next one. With streaming, it also holds the
    examples of two cohorts, and the client states of three: of the previous, current and next round.

    Args:
        traced: The round.
        offload: The location of client states and examples.

    Returns:
        {name: bytes}.
    """
    spec, state, messages = traced.spec, traced.shapes.state, traced.shapes.messages
    layout, data, seeds = traced.layout, spec.federation.data, spec.num_runs
    slots = layout.round_up(spec.cohort_size)
    bytes_per_state, tables = tree.num_bytes(state.clients) // spec.num_clients, (data.train, data.valid)
    sizes = {"server's state": seeds * tree.num_bytes((state.server, state.counters))}
    if offload.client_states == "device":
        rows = layout.count_client_rows(spec.num_clients)
        sizes["client states"] = seeds * rows * bytes_per_state // layout.num_devices
        if not spec.participation.is_everyone or rows != slots:
            sizes["client states of 2 cohorts"] = 2 * seeds * slots * bytes_per_state // layout.num_devices
    else:
        sizes["client states of 3 cohorts"] = 3 * seeds * slots * bytes_per_state // layout.num_devices
    if offload.examples == "device":
        sizes["examples"] = tree.num_bytes(data.examples[:2])
    else:
        bytes_per_example = sum(x.dtype.itemsize * math.prod(x.shape[1:]) for x in data.examples[:2])
        sizes["examples of 2 cohorts"] = 2 * spec.max_examples() * bytes_per_example
    if data.examples.public:
        sizes["public examples"] = tree.num_bytes(data.examples.public)
    sizes["index tables of 2 cohorts"] = 2 * seeds * slots * tree.num_bytes(tables) // spec.num_clients
    if is_stacked(spec.algorithm):
        sizes[UPDATES] = seeds * tree.num_bytes(messages.uploads.update) // layout.num_devices
    return sizes


def training_bytes(traced: TracedRound) -> int:
    """Bytes of one client's model and one batch of inputs, times the number of runs that train at the same time."""
    spec, state = traced.spec, traced.shapes.state
    inputs = spec.federation.data.examples.inputs
    batch = 4 * spec.algorithm.local_update.batch_size * math.prod(inputs.shape[1:])
    model = tree.num_bytes(state.server.shared) + tree.num_bytes(state.clients.personal) // spec.num_clients
    return spec.runs_at_once * (model + batch)


def bytes_before_round(held_bytes: Mapping[str, int]) -> int:
    """The bytes on a device before a round begins: all except the updates."""
    return sum(size for name, size in held_bytes.items() if name != UPDATES)


def temporary_bytes(program: Executable) -> int:
    """The bytes of a program besides its arguments: temporary arrays, and results without donated memory."""
    memory: Any = program.memory_analysis()
    return int(memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes)


def format_megabytes(size: int) -> str:
    """Format bytes as MB for messages: "1,234.5"."""
    return f"{size / 1e6:,.1f}"
