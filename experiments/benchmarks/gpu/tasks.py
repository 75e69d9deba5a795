"""The measurements of `experiments.benchmarks.gpu`, each in a process of its own.

    python -m experiments.benchmarks.gpu.tasks TASK '{"argument": ...}'

A task writes one line of JSON per figure as soon as it is known; other output goes to standard error.
"""

import collections
import gc
import gzip
import json
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

import jax

from fedjax_het import algorithms, engine, models
from fedjax_het.engine.parallel.layout import vmapped
from fedjax_het.engine.planning import autotune
from fedjax_het.types import Model

from ...configuration.build import read_layout
from ..aggregators import measure as measure_edits
from ..figure_file import Record
from ..peers import ours
from ..peers.worker import installed_version, send_answer, separate_answers
from ..workloads import LAYERED, NUM_CLASSES, W2

Task = Callable[..., Iterator[Record]]
_STEMS = {"resnet18": "small", "resnet18_imagenet": "imagenet"}
PACKAGES = ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "flax", "optax", "numpy", "torch")
PACKAGES += ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cublas")


class Setting(NamedTuple):
    """The sizes of a round, apart from how it is computed."""

    model: str  # a workload's network, or a ResNet-18 with group norm, named by its stem: resnet18, resnet18_imagenet
    num_clients: int
    cohort_size: int
    num_examples: int  # per client
    epochs: int
    precision: str
    width: float = 1.0  # of a ResNet's channels


def build_model(setting: Setting, conv: str) -> Model:
    if setting.model in LAYERED:
        return ours.build_model(LAYERED[setting.model], conv)
    stem = _STEMS[setting.model]
    return models.resnet18(NUM_CLASSES, norm="group", stem=stem, width=setting.width, conv=conv)


def build_simulation(setting: Setting, layout: str, conv: str, block: int) -> engine.Simulation:
    """FedAvg on synthetic examples; a ResNet takes the images and batches of w2."""
    work = LAYERED.get(setting.model, W2).resized(setting.num_clients, setting.num_examples)
    return engine.Simulation(
        algorithms.fedavg(learning_rate=work.learning_rate, batch_size=work.batch_size, epochs=setting.epochs),
        ours.with_matmul_precision(setting.precision)(build_model(setting, conv)),
        ours.build_federation(work),
        rounds=1_000_000,
        evaluate_every=block,
        cohort_size=setting.cohort_size,
        layout=read_layout(layout),
    )


# ---- tasks -----------------------------------------------------------------------------------------------------------
def describe_device() -> Iterator[Record]:
    device = jax.devices()[0]
    versions = {name: version for name in PACKAGES if (version := installed_version(name))}
    yield {
        "device": device.device_kind,
        "backend": jax.default_backend(),
        "count": jax.device_count(),
        "python": platform.python_version(),
        "versions": versions,
    }


def rounds(
    setting: list, variants: list[tuple[str, str, str]], num: int = 5, seconds: float = 6.0, block: int = 1
) -> Iterator[Record]:
    """Seconds per round of each variant (name, layout, conv), from `num` calls of `block` rounds or `seconds`."""
    for name, layout, conv in variants:
        before = ours.measure_peak_device_mb() or 0
        try:
            simulation = build_simulation(Setting(*setting), layout, conv, block)
            choice = simulation.choice
            facts, times = simulation.cost, autotune.time_rounds(simulation.executor, num, seconds, block)
        except jax.errors.JaxRuntimeError as error:  # mostly for want of memory; other variants may fit
            yield {"name": name, "error": str(error).strip().splitlines()[0][:300]}
            continue
        peak = ours.measure_peak_device_mb() or 0
        yield {
            "name": name,
            "layout": str(simulation.layout),
            "conv": choice.conv if choice else conv,
            **({"reason": choice.reason} if choice else {}),
            **spread(times),
            "compile_s": facts.compile_seconds,
            "planned_mb": facts.peak_bytes / 1e6,
            "peak_device_mb": peak if peak > before else None,  # otherwise the peak is that of an earlier variant
        }
        del simulation
        gc.collect()


def spread(times: list[float]) -> Record:
    return {"median_s": median(times), "min_s": min(times), "max_s": max(times), "rounds": len(times)}


def aggregators(names: Mapping[str, int], entries: int, repeats: int) -> Iterator[Record]:
    """The cost of editing updates relative to their mean, for {name: clients}; see `benchmarks.aggregators`."""
    ours.with_matmul_precision("float32")
    for name, num_clients in names.items():
        rows, rate = measure_edits(num_clients, entries, vmapped, ("float32", "bfloat16"), repeats)
        for row in rows:
            of = {"name": f"{name} {row.aggregator}", "clients": num_clients, "entries": entries}
            times = {"median_s": row.seconds, "min_s": row.minimum, "max_s": row.maximum}
            rest = {"gb_per_s": row.gigabytes_per_second, "passes_beyond_mean": row.excess_time}
            yield of | times | rest | {"temporary_mb": row.temporary_mb, "float64_product_tflops": rate / 1e12}
        yield {"name": name, "is_done": True}


def profile(name: str, setting: list, layout: str, conv: str, most: int = 12) -> Iterator[Record]:
    """The kernels that take most of a round's time, and the time in which none runs."""
    simulation = build_simulation(Setting(*setting), layout, conv, 1)
    state, _ = simulation.advance(simulation.start(), 1)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            simulation.advance(state, 1)
        file = next(Path(folder).rglob("*.trace.json.gz"))
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    yield {"name": name, "layout": layout, "conv": conv} | summarize_kernels(events, most)


def summarize_kernels(events: list[Record], most: int) -> Record:
    """Times of the events on the GPU's streams in a trace in ms; no kernels if there are none."""
    processes = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    on_streams = [
        e
        for e in events
        if e.get("ph") == "X"
        and processes.get(e["pid"], "").startswith("/device:")
        and "Stream" in threads.get((e["pid"], e["tid"]), "")
    ]
    if not on_streams:
        return {"kernels": []}
    total, count = collections.Counter(), collections.Counter()
    for event in on_streams:
        total[event["name"]] += event["dur"] / 1e3
        count[event["name"]] += 1
    begun, ended = min(e["ts"] for e in on_streams), max(e["ts"] + e["dur"] for e in on_streams)
    return {
        "span_ms": (ended - begun) / 1e3,
        "busy_ms": _busy_microseconds(on_streams) / 1e3,
        "launches": len(on_streams),
        "kernels": [{"name": kernel[:80], "ms": ms, "times": count[kernel]} for kernel, ms in total.most_common(most)],
    }


def _busy_microseconds(events: list[Record]) -> float:
    """Microseconds in which at least one event was running."""
    covered, until = 0.0, float("-inf")
    for event in sorted(events, key=lambda e: e["ts"]):
        end = event["ts"] + event["dur"]
        covered += max(0.0, end - max(event["ts"], until))
        until = max(until, end)
    return covered


TASKS: Mapping[str, Task] = MappingProxyType(
    {each.__name__: each for each in (describe_device, rounds, aggregators, profile)}
)


def main(name: str, arguments: str) -> None:
    answers = separate_answers()
    for record in TASKS[name](**json.loads(arguments)):
        send_answer(answers, **record)


if __name__ == "__main__":
    main(*sys.argv[1:])
