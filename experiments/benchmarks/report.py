"""What a contest says: records for a file, a table and remarks for the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from .harness import BenchmarkRules
from .measurement import Measurement
from .peers import MATMUL, OURS
from .peers.matmul import FLOP
from .workloads import Workload

Standings = Mapping[str, Measurement]
FEWEST = BenchmarkRules(cores=1)  # fewer rounds than these defaults are for trying out


def to_records(work: Workload, standings: Standings) -> list[dict[str, Any]]:
    """One for everybody who was timed, fastest first; who computed something else is left out."""
    return [
        {
            "work": work.name,
            "peer": standing.contender,
            "seconds_median": standing.median,
            "seconds_min": min(standing.seconds),
            "seconds_max": max(standing.seconds),
            "rounds": len(standing.seconds),
            "startup_seconds": standing.startup_seconds,
            "peak_rss_mb": standing.peak_rss_mb,
            "versions": standing.versions,
        }
        for standing in _timed(standings)
        if standing.is_comparable
    ]


def make_table(work: Workload, standings: Standings, rules: BenchmarkRules) -> Table:
    """Fastest first. The ratio is of medians: this one's over ours."""
    rate = _matmul_rate(standings)
    measured = f"its float32 matmul: {rate / 1e9:.0f} GFLOP/s" if rate else "its float32 matmul was not measured"
    title = (
        f"{work.name}: {work.num_clients} clients x {work.num_examples} examples, {work.num_steps} steps and "
        f"{work.flop() / 1e9:.3g} GFLOP a round\n{rules.rounds} rounds after {rules.warmup}; {rules.cores} cores, "
        f"{measured}"
    )
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    shown.add_column("contender", no_wrap=True)
    for name in ("median\ns", "min\ns", "max\ns", "ratio", "start\ns", "peak\nMB", "GFLOP\n/s", "of\nmatmul"):
        shown.add_column(name, justify="right")
    ours = standings[OURS]
    for standing in _timed(standings):
        flops = work.flop() / standing.median
        shown.add_row(
            standing.contender + ("" if standing.is_comparable else " (!)"),
            *(f"{seconds:.3f}" for seconds in (standing.median, min(standing.seconds), max(standing.seconds))),
            f"{standing.median / ours.median:.2f}" if ours.is_timed else "",
            f"{standing.startup_seconds:.1f}",
            f"{standing.peak_rss_mb:.0f}",
            f"{flops / 1e9:.1f}",
            f"{flops / rate:.1%}" if rate else "",
            style="bold" if standing is ours else None,
        )
    return shown


def make_remarks(standings: Standings, rules: BenchmarkRules) -> list[str]:
    """Who is missing from the table and why, and what in it is to be taken with care."""
    said = []
    for name, standing in standings.items():
        if standing.skipped:
            said.append(f"{name}: skipped, {standing.skipped}")
        if standing.crashed:
            said.append(f"{name}: crashed, after {len(standing.seconds)} timed rounds:\n{standing.crashed}")
        if not standing.is_comparable:
            said.append(
                f"{name} (!): not comparable, its first round ended elsewhere: relative to ours, "
                + ", ".join(f"{what} {gap:.1e}" for what, gap in standing.gap._asdict().items())
            )
    if rules.rounds < FEWEST.rounds or rules.warmup < FEWEST.warmup:
        said.append(f"fewer than {FEWEST.rounds} rounds after {FEWEST.warmup}: for trying out, not for comparing")
    return said


def _timed(standings: Standings) -> list[Measurement]:
    timed = [standing for name, standing in standings.items() if name != MATMUL and standing.is_timed]
    return sorted(timed, key=lambda standing: standing.median)


def _matmul_rate(standings: Standings) -> float | None:
    """FLOP a second, the best of the run."""
    standing = standings.get(MATMUL)
    return FLOP / min(standing.seconds) if standing and standing.is_timed else None
