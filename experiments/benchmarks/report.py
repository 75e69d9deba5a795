"""Results of a benchmark: records for a file, and a table with remarks for the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from .harness import BenchmarkRules, Measurement
from .peers import MATMUL, OURS
from .peers.matmul import FLOP
from .workloads import Workload

Measurements = Mapping[str, Measurement]
DEFAULT_RULES = BenchmarkRules(cores=1)  # a trial has fewer rounds than these


def to_records(work: Workload, measurements: Measurements) -> list[dict[str, Any]]:
    """One record per contender that was timed and computed the same result, the fastest first."""
    return [
        {
            "work": work.name,
            "peer": measurement.contender,
            "seconds_median": measurement.median,
            "seconds_min": min(measurement.seconds),
            "seconds_max": max(measurement.seconds),
            "rounds": len(measurement.seconds),
            "startup_seconds": measurement.startup_seconds,
            "cached_startup_seconds": measurement.cached_startup_seconds,
            "peak_rss_mb": measurement.peak_rss_mb,
            "versions": measurement.versions,
        }
        for measurement in _sort_timed(measurements)
        if measurement.is_comparable
    ]


def make_table(work: Workload, measurements: Measurements, rules: BenchmarkRules) -> Table:
    """A table of the timed contenders, the fastest first. The ratio is of medians, relative to fedjax_het."""
    rate = _best_matmul_rate(measurements)
    measured = f"its float32 matmul: {rate / 1e9:.0f} GFLOP/s" if rate else "its float32 matmul was not measured"
    title = (
        f"{work.name}: {work.num_clients} clients x {work.num_examples} examples, {work.num_steps} steps and "
        f"{work.flop() / 1e9:.3g} GFLOP per round\n{rules.rounds} rounds after {rules.warmup}; {rules.cores} cores, "
        f"{measured}"
    )
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    shown.add_column("contender", no_wrap=True)
    times = "median\ns", "min\ns", "max\ns", "ratio", "start\ns", "cached\nstart"
    for name in (*times, "peak\nMB", "of\nmatmul"):
        shown.add_column(name, justify="right")
    ours = measurements[OURS]
    for measurement in _sort_timed(measurements):
        shown.add_row(
            measurement.contender + ("" if measurement.is_comparable else " (!)"),
            *(f"{seconds:.3f}" for seconds in (measurement.median, min(measurement.seconds), max(measurement.seconds))),
            f"{measurement.median / ours.median:.2f}" if ours.is_timed else "",
            f"{measurement.startup_seconds:.1f}",
            "" if measurement.cached_startup_seconds is None else f"{measurement.cached_startup_seconds:.1f}",
            f"{measurement.peak_rss_mb:.0f}",
            f"{work.flop() / measurement.median / rate:.1%}" if rate else "",
            style="bold" if measurement is ours else None,
        )
    return shown


def make_remarks(measurements: Measurements, rules: BenchmarkRules) -> list[str]:
    """Remarks on contenders that are missing from the table, and on results that cannot be compared."""
    remarks = []
    for name, measurement in measurements.items():
        if measurement.skipped:
            remarks.append(f"{name}: skipped, {measurement.skipped}")
        if measurement.crashed:
            remarks.append(f"{name}: crashed, after {len(measurement.seconds)} timed rounds:\n{measurement.crashed}")
        if measurement.gap is not None and not measurement.gap.is_small:
            remarks.append(
                f"{name} (!): not comparable, its first round had another result; relative differences to fedjax_het: "
                + ", ".join(f"{quantity} {gap:.1e}" for quantity, gap in measurement.gap._asdict().items())
            )
    if rules.rounds < DEFAULT_RULES.rounds or rules.warmup < DEFAULT_RULES.warmup:
        remarks.append(
            f"fewer than {DEFAULT_RULES.rounds} rounds after {DEFAULT_RULES.warmup}: a trial, not a comparison"
        )
    return remarks


def _sort_timed(measurements: Measurements) -> list[Measurement]:
    timed = [measurement for name, measurement in measurements.items() if name != MATMUL and measurement.is_timed]
    return sorted(timed, key=lambda measurement: measurement.median)


def _best_matmul_rate(measurements: Measurements) -> float | None:
    """The best rate of the run in FLOP per second."""
    measurement = measurements.get(MATMUL)
    return FLOP / min(measurement.seconds) if measurement and measurement.is_timed else None
