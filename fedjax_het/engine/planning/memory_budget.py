"""Choice of layout and offloading to fit a run into a memory budget, before anything runs."""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from pathlib import Path

import jax
import numpy as np

from fedjax_het import tree
from fedjax_het._internal.machine_memory import describe_bytes, physical_memory
from fedjax_het._internal.target_platform import target_platform
from fedjax_het.engine.execution import cost
from fedjax_het.engine.execution.cost import format_megabytes
from fedjax_het.engine.execution.executor import Executor
from fedjax_het.engine.execution.run_spec import ALL_ON_DEVICE, AUTO, OffloadPolicy, RunSpec
from fedjax_het.engine.execution.trace import TracedRound, trace_round
from fedjax_het.engine.parallel.compilation import use_program_cache
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.engine.planning import autotune
from fedjax_het.engine.planning.autotune import Candidate, LayoutChoice
from fedjax_het.engine.storage.records import nearest_existing_folder
from fedjax_het.errors import InputError, MemoryBudgetError
from fedjax_het.models._conv_impl import find_conv_candidates

_ON_DEVICES = " Several processes keep everything on their devices."


def build_executor(
    spec: RunSpec, layout: Layout | str, requested_offload: OffloadPolicy, budget: int | None, folder: Path
) -> tuple[Executor, LayoutChoice | None]:
    """Compile a run so that it fits in memory, with everything on the device if possible.

    Args:
        spec: The run.
        layout: The layout; "auto" selects the fastest that fits, on accelerators with the fastest convolution.
        requested_offload: The location of client states and examples; "auto" leaves the device only if memory is short.
        budget: Bytes per device; None: the memory of the device.
        folder: The folder for client states on disk.

    Returns:
        (The executor, the choice of layout and convolution; None if nothing was timed.)

    Raises:
        InputError: Nothing fits; the message lists the memory of each alternative. Without a budget: the run clearly
            exceeds the memory of the devices.
    """
    use_program_cache()
    requested_offload = _check_offload(requested_offload)
    given = layout if isinstance(layout, Layout) else None
    convs = () if given else _conv_candidates(spec)
    layouts = [given] if given else autotune.candidates(spec.cohort_size, convs)
    first, refusals = trace_round(spec, layouts[0]), []
    capacity = device_capacity(spec, layouts[0])
    limit = capacity if budget is None else min(budget, capacity)

    def build(candidate: Candidate) -> Executor:
        layout = candidate.layout
        # Convolutions with conv="auto" are traced as the first candidate.
        is_first = layout is layouts[0] and candidate.conv in (None, *convs[:1])
        traced = first if is_first else trace_round(candidate.adapt(spec), layout)
        executor = Executor(traced, offload, folder, is_tentative=given is None)
        # `peak_bytes` compiles the evaluation, which without a budget only the chosen layout needs.
        peak = executor.round_bytes if budget is None else executor.peak_bytes
        if peak > (device_capacity(spec, layout) if budget is None else limit):
            held = cost.resident_bytes(traced, offload)
            raise MemoryBudgetError(
                _describe_plan(layout, offload, held | {"temporary arrays": peak - cost.bytes_before_round(held)})
            )
        return executor

    for offload in _offload_policies(first, requested_offload, budget, folder):
        held = cost.resident_bytes(first, offload) | {"a client in training": cost.training_bytes(first)}
        try:
            if sum(held.values()) > limit:
                raise MemoryBudgetError(_describe_plan(layouts[0], offload, held))
            if given:
                executor, choice = build(Candidate(given)), None
            else:
                smaller = autotune.smaller_layouts(layouts, spec.cohort_size)
                executor, choice = _build_fastest(layouts, smaller, convs, build, spec.rounds)
            if (peak := executor.peak_bytes) > device_capacity(spec, executor.traced.layout):
                raise MemoryBudgetError(_describe_plan(executor.traced.layout, offload, {"with evaluation": peak}))
            return executor, choice
        except MemoryBudgetError as error:
            refusals.append(str(error))
    if budget is None or capacity < budget:
        raise InputError(
            f"memory: this run needs more than the {describe_bytes(capacity)} of a device. In MB: {refusals[-1]}. Use "
            "a smaller model, batch_size or cohort_size, or fewer seeds; on accelerators, memory_budget streams data "
            "that does not fit."
        )
    raise InputError(_explain_budget(budget, refusals))


def device_capacity(spec: RunSpec, layout: Layout) -> float:
    """The memory of one device of the layout in bytes; infinity if unknown.

    On CPUs: an equal share of the machine's memory and swap, plus the part of the examples that takes none of it:
    they are mapped from a file, or the devices share one copy.
    """
    if target_platform() != "cpu":
        return layout.device_memory
    examples = spec.federation.data.examples
    part = 1.0 if isinstance(examples.inputs, np.memmap) else 1 - 1 / layout.num_devices
    return layout.device_memory + part * tree.num_bytes(examples)


def _explain_budget(budget: int, refusals: list[str]) -> str:
    return (
        f"memory_budget: {format_megabytes(budget)} MB per device is too small. In MB:\n  "
        + "\n  ".join(refusals)
        + "\nUse a smaller cohort_size, batch_size or model, fewer seeds, layout 'auto' or chunked(1), or raise it."
        + (_ON_DEVICES if jax.process_count() > 1 else "")
    )


def _check_offload(requested_offload: OffloadPolicy) -> OffloadPolicy:
    """Raise InputError for offloading with multiple processes, which is not supported."""
    if jax.process_count() == 1:
        return requested_offload
    for name, choice in requested_offload._asdict().items():
        if choice not in (AUTO, "device"):
            raise InputError(f"{name}: '{choice}' is for a single process.{_ON_DEVICES} Use auto or device.")
    return ALL_ON_DEVICE


def _conv_candidates(spec: RunSpec) -> tuple[str, ...]:
    inputs = jax.eval_shape(lambda inputs: spec.federation.prepare(inputs[:1]), spec.federation.examples.inputs)
    return find_conv_candidates(spec.model, inputs)


def _build_fastest(
    layouts: Sequence[Layout], smaller: Iterable[Layout], convs: Sequence[str], build, rounds: int
) -> tuple[Executor, LayoutChoice]:
    """The fastest candidate; if all are too large, the fastest for the first smaller layout that fits."""
    refusals = []
    for group in chain([layouts], ([layout] for layout in smaller)):
        try:
            return autotune.find_fastest(autotune.pair_up(group, convs), build, rounds)
        except MemoryBudgetError as error:
            refusals.append(error)
    raise refusals[-1]


def _offload_policies(
    first: TracedRound, requested_offload: OffloadPolicy, budget: int | None, folder: Path
) -> Iterator[OffloadPolicy]:
    """The allowed policies, likely fastest first."""
    store = "host" if 2 * _stored_bytes(first) < physical_memory() else "disk"
    choices = ("device", store), ("device", "stream")
    allowed = (names if given == AUTO else (given,) for names, given in zip(choices, requested_offload, strict=True))
    for offload in map(OffloadPolicy._make, product(*allowed)):
        _check_room(first, offload, folder)
        yield offload
        if budget is None:
            return


# ---- the host --------------------------------------------------------------------------------------------------------
def _stored_bytes(first: TracedRound) -> int:
    """Bytes of all client states that can differ from the initial state."""
    spec = first.spec
    num_touched = min(spec.num_clients, spec.rounds * spec.cohort_size)
    return spec.num_runs * num_touched * tree.num_bytes(first.shapes.state.clients) // spec.num_clients


def _check_room(first: TracedRound, offload: OffloadPolicy, folder: Path) -> None:
    size = _stored_bytes(first)
    if offload.client_states == "host" and size > physical_memory():
        raise InputError(
            f"client_states: 'host' may need {format_megabytes(size)} MB, but this machine has "
            f"{format_megabytes(physical_memory())} MB of memory. Use 'disk'."
        )
    if offload.client_states == "disk" and size > (free := shutil.disk_usage(nearest_existing_folder(folder)).free):
        raise InputError(
            f"client_states: 'disk' may need {format_megabytes(size)} MB, but {folder} has {format_megabytes(free)} MB "
            "free. Choose another folder, a smaller model or fewer rounds."
        )


def _describe_plan(layout: Layout, offload: OffloadPolicy, sizes: Mapping[str, int]) -> str:
    parts = ", ".join(f"{name} {format_megabytes(size)}" for name, size in sizes.items())
    return f"{format_megabytes(sum(sizes.values()))} with {offload}, {layout}: {parts}"
