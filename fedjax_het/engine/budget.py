"""Where things go so that they fit, decided before anything runs."""

import shutil
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

import jax

from fedjax_het import tree
from fedjax_het.engine import cost, tuning
from fedjax_het.engine.cost import megabytes
from fedjax_het.engine.job import Job
from fedjax_het.engine.layout import Layout
from fedjax_het.engine.records import existing
from fedjax_het.engine.residence import AUTO, RESIDENT, Residence
from fedjax_het.engine.resident import Resident
from fedjax_het.engine.streamed import Streamed
from fedjax_het.engine.tuning import Choice, Runner
from fedjax_het.engine.wiring import Wired, wired
from fedjax_het.errors import InputError, TooLarge
from fedjax_het.memory import describe_bytes, physical_memory

_ON_DEVICES = " Several {} keep everything on their devices."


def settled(
    job: Job, layout: Layout | str, wishes: Residence, budget: int | None, folder: Path
) -> tuple[Runner, Choice | None]:
    """Compile the job where it fits: all on the device if that can be, in the quickest layout if `layout` is "auto".

    budget: bytes on each device; None is what it has.   wishes: "auto" leaves the device only for want of memory.
    folder: where client states go that are to lie on the disk.
    Raises InputError where nothing fits, with what everything takes; without a budget, where it clearly exceeds the
    memory of the devices.
    """
    wishes = _checked(wishes, len(job.algorithms))
    layouts = tuning.candidates(job.cohort_size) if layout == AUTO else [layout]
    first, refusals = wired(job, layouts[0]), []
    capacity = device_capacity(job, layouts[0])
    limit = capacity if budget is None else min(budget, capacity)

    def build(layout: Layout) -> Runner:
        its = first if layout is layouts[0] else wired(job, layout)
        runner = built(its, residence, folder)
        # To read `peak_bytes` compiles the evaluation, which without a budget only the layout that is taken needs.
        peak = runner.round_bytes if budget is None else runner.peak_bytes
        if peak > (device_capacity(job, layout) if budget is None else limit):
            held = cost.held(its, residence)
            raise TooLarge(_plan(layout, residence, held | {"on the way": peak - cost.lying(held)}))
        return runner

    for residence in _residences(first, wishes, budget, folder):
        held = cost.held(first, residence) | {"a client in training": cost.training_bytes(first)}
        try:
            if sum(held.values()) > limit:
                raise TooLarge(_plan(layouts[0], residence, held))
            runner, choice = (build(layout), None) if layout != AUTO else _quickest(layouts, build, job)
            if (peak := runner.peak_bytes) > device_capacity(job, runner.wired.layout):
                raise TooLarge(_plan(runner.wired.layout, residence, {"with evaluation": peak}))
            return runner, choice
        except TooLarge as error:
            refusals.append(str(error))
    if budget is None or capacity < budget:
        raise InputError(_exceeds_memory(capacity, refusals[-1]))
    raise InputError(_nothing_fits(budget, refusals))


def device_capacity(job: Job, layout: Layout) -> float:
    """The bytes that one device of the layout can hold at the most; infinity where that is not known.

    On CPUs: an equal part of the machine's memory and swap, and the examples, which JAX shares with NumPy or which are
    mapped from a file.
    """
    is_shared = jax.default_backend() == "cpu"
    return layout.device_memory + (tree.num_bytes(job.federation.data.examples) if is_shared else 0)


def _exceeds_memory(capacity: float, plan: str) -> str:
    return (
        f"memory: this run takes more than the {describe_bytes(capacity)} that a device has. In MB: {plan}. Take a "
        "smaller model, batch_size or cohort_size, or fewer seeds; on accelerators memory_budget streams what may wait."
    )


def _nothing_fits(budget: int, refusals: list[str]) -> str:
    return (
        f"memory_budget: {megabytes(budget)} MB on each device are too little. In MB:\n  "
        + "\n  ".join(refusals)
        + "\nTake a smaller cohort_size, batch_size or model, fewer seeds, layout 'auto' or chunked(1), or raise it."
        + (_ON_DEVICES.format("processes") if jax.process_count() > 1 else "")
    )


def _checked(wishes: Residence, num_algorithms: int) -> Residence:
    """Raises InputError for what several processes cannot do, nor several algorithms."""
    if jax.process_count() == 1 and num_algorithms == 1:
        return wishes
    one, several = ("algorithm", "algorithms") if num_algorithms > 1 else ("process", "processes")
    for name, wish in wishes._asdict().items():
        if wish not in (AUTO, "device"):
            rule = _ON_DEVICES.format(several)
            raise InputError(f"{name}: '{wish}' is for a single {one}.{rule} Write auto or device.")
    return RESIDENT


def built(wired: Wired, residence: Residence, folder: Path) -> Runner:
    """Compiled to run with things where they are to be."""
    return Resident(wired) if residence == RESIDENT else Streamed(wired, residence, folder)


def _quickest(layouts: list[Layout], build, job: Job) -> tuple[Runner, Choice]:
    """The candidates; if all are too large, the first that fits of those with fewer clients at a time."""
    try:
        return tuning.quickest(layouts, build, job.rounds)
    except TooLarge as error:
        too_large = error
    for layout in tuning.smaller(layouts, job.cohort_size):
        try:
            return tuning.quickest([layout], build, job.rounds)
        except TooLarge as error:
            too_large = error
    raise too_large


def _residences(first: Wired, wishes: Residence, budget: int | None, folder: Path) -> Iterator[Residence]:
    """What the wishes allow, the quickest first."""
    for client_states, examples in product(
        ("device", _roomy(first)) if wishes.client_states == AUTO else (wishes.client_states,),
        ("device", "stream") if wishes.examples == AUTO else (wishes.examples,),
    ):
        residence = Residence(client_states, examples)
        _check_room(first, residence, folder)
        yield residence
        if budget is None:
            return


# ---- the host --------------------------------------------------------------------------------------------------------
def _stored_bytes(first: Wired) -> int:
    """Of all client states that could ever differ from the first."""
    job = first.job
    num_touched = min(job.num_clients, job.rounds * job.cohort_size)
    return job.num_runs * num_touched * tree.num_bytes(first.shapes.state.clients) // job.num_clients


def _roomy(first: Wired) -> str:
    return "host" if 2 * _stored_bytes(first) < physical_memory() else "disk"


def _check_room(first: Wired, residence: Residence, folder: Path) -> None:
    size = _stored_bytes(first)
    if residence.client_states == "host" and size > physical_memory():
        raise InputError(
            f"client_states: 'host' could come to {megabytes(size)} MB, and this machine has "
            f"{megabytes(physical_memory())} of memory. Take 'disk'."
        )
    if residence.client_states == "disk" and size > (free := shutil.disk_usage(existing(folder)).free):
        raise InputError(
            f"client_states: 'disk' could come to {megabytes(size)} MB, and {folder} has {megabytes(free)} "
            "free. Choose another place, a smaller model or fewer rounds."
        )


def _plan(layout: Layout, residence: Residence, sizes: Mapping[str, int]) -> str:
    parts = ", ".join(f"{name} {megabytes(size)}" for name, size in sizes.items())
    return f"{megabytes(sum(sizes.values()))} with {residence}, {layout}: {parts}"
