"""The process of one contender: python -m experiments.benchmarks.peers.worker CONTENDER WORK --cores=2

It answers each line of standard input with a line of JSON: `round` with the seconds of a round, `weights FILE` after
writing the server's model there, `memory` with the peak memory of this process and its children and the contender's
further measurements. Its first line says that it is ready, or which package is missing. Between answers it waits in a
blocking read and computes nothing.
"""

import argparse
import gc
import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ..workloads import WORKLOADS
from . import CONTENDERS, PRECISIONS, Contender, ContenderSettings, UnusableError


def main() -> None:
    gc.set_threshold(100_000)  # for all contenders, as in the command of fedjax_het
    arguments = _parse_arguments()
    answers = separate_answers()
    entry = CONTENDERS[arguments.contender]
    absent = [name for name in entry.packages if installed_version(name) is None]
    if absent:
        send_answer(answers, missing=absent)
        return
    work = WORKLOADS[arguments.work].resized(arguments.clients, arguments.examples)
    if work.base not in entry.works:
        send_answer(answers, unusable=f"it is written for {', '.join(entry.works)} alone")
        return
    try:
        module = importlib.import_module(f"{__package__}.{entry.module}")
        settings = ContenderSettings(arguments.cores, arguments.layout, arguments.precision)
        contender = module.prepare(work, settings)
    except UnusableError as error:
        send_answer(answers, unusable=str(error))
        return
    send_answer(answers, versions={name: installed_version(name) for name in entry.packages})
    try:
        for line in sys.stdin:
            send_answer(answers, **_execute(contender, *line.split()))
    finally:
        contender.close()


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One contender of the benchmark, driven through standard input.")
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("work", choices=WORKLOADS)
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--layout", default="")
    parser.add_argument("--precision", default="float32", choices=PRECISIONS)
    parser.add_argument("--clients", type=int, default=0)
    parser.add_argument("--examples", type=int, default=0)
    return parser.parse_args()


def separate_answers() -> TextIO:
    """Return a stream for answers, and send everything else that is printed to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def send_answer(answers: TextIO, **words: Any) -> None:
    answers.write(json.dumps(words) + "\n")


def _execute(contender: Contender, order: str, *operands: str) -> dict[str, Any]:
    if order == "weights":
        np.savez(operands[0], *contender.weights())
        return {}
    if order == "memory":
        return {"peak_rss_mb": measure_peak_rss_mb(), "facts": contender.facts()}
    before = time.perf_counter()
    contender.round()
    return {"seconds": time.perf_counter() - before}


def installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def measure_peak_rss_mb() -> float:
    """The summed peak resident memory of this process and its descendants; shared pages count in each."""
    peaks = [_peak_kib(pid) for pid in _process_tree(os.getpid())]
    known = [peak for peak in peaks if peak is not None]
    return sum(known) / 1024 if known else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _peak_kib(pid: int) -> int | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0])
    except (OSError, IndexError):
        return None


def _process_tree(pid: int) -> Iterator[int]:
    yield pid
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = listed.read_text().split()
        except OSError:
            continue
        for child in children:
            yield from _process_tree(int(child))


if __name__ == "__main__":
    main()
