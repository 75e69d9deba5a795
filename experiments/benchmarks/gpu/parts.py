"""The parts of `experiments.benchmarks.gpu`, and the processes that measure them."""

import collections
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ... import ROOT, module_command, module_environment
from ...distributed import cpu_devices
from ..harness import Benchmark, BenchmarkRules
from ..peers import OURS
from ..workloads import LAYERED, Workload
from . import tasks
from .tasks import Record, Setting

PEERS = ("torch_lean", "torch_graph", "torch_vmap")
_CHUNKED_ABOVE, _CHUNK = 100, 100  # from more than so many clients on, convolutions take this many at a time
_FLAGS = {
    "loops in command buffers": "--xla_gpu_graph_min_graph_size=1 --xla_gpu_enable_command_buffer="
    "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,CONDITIONAL,WHILE",
    "no command buffers": "--xla_gpu_enable_command_buffer=",
    "no Triton products": "--xla_gpu_enable_triton_gemm=false",
}
_RESUME = "tests/experiments/training/test_resume.py::test_a_killed_run_with_convolutions_resumes_bit_for_bit"
_TESTS = {
    "laws and conformance": (
        "tests/algorithms/test_fedprox_fedbn_scaffold_harmofl_fedld_laws.py",
        "tests/algorithms/test_conformance.py",
        "tests/algorithms/test_conformance_clients.py",
    ),
    "golden numbers": ("tests/golden",),
    "models": ("tests/models",),
    "aggregators and layouts": (
        "tests/server",
        "tests/engine/parallel/test_layout.py",
        "tests/engine/test_simulation.py",
    ),
}


Variant = tuple[str, str]
"""(layout, conv)."""


class TaskFailedError(RuntimeError):
    """Raised if a process ends with an error, or is ended because its time is over (`is_late`)."""

    def __init__(self, text: str, is_late: bool):
        super().__init__(text)
        self.is_late = is_late


class Piece(NamedTuple):
    """Records that are measured together; run: (names of the missing records, seconds allowed) -> the records."""

    part: str
    names: list[str]
    seconds: float  # at most
    run: Callable[[list[str], float], Iterator[Record]]


class Plan(NamedTuple):
    """The platform and the sizes of the measurements."""

    platform: str
    is_tiny: bool
    layout: str
    conv: str

    @property
    def precisions(self) -> tuple[str, ...]:
        return ("tf32", "float32", "bfloat16") if self.platform == "cuda" else ("float32",)

    @property
    def environment(self) -> dict[str, str]:
        chosen = "cuda,cpu" if self.platform == "cuda" else "cpu"
        return {"JAX_PLATFORMS": chosen, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

    def setting(self, model: str, clients: int, cohort: int, examples: int, epochs: int, precision: str) -> Setting:
        if self.is_tiny:
            clients, cohort, examples = min(clients, 4), min(cohort, 2), 20 if model in LAYERED else 2
        return Setting(model, clients, cohort, examples, epochs, precision, 0.125 if self.is_tiny else 1.0)


# ---- the parts -------------------------------------------------------------------------------------------------------
def variants(plan: Plan) -> Iterator[Piece]:
    """Variants on w1 and w2 with 100 clients per round, what "auto" takes, and the promising ones in all precisions."""
    few = [("vmapped", "lax"), ("vmapped", "im2col"), ("vmapped", "shifts"), ("chunked(1)", "lax")]
    more = [("chunked(10)", "lax"), ("chunked(10)", "im2col"), ("chunked(10)", "shifts"), ("auto", "timed")]
    for i, precision in enumerate(plan.precisions):
        for model in ("w2",) if plan.is_tiny else ("w1", "w2"):
            setting = plan.setting(model, 100, 100, LAYERED[model].num_examples, 1, precision)
            chosen = [few[2], more[-1]] if plan.is_tiny else few + more if i == 0 else few
            yield _rounds_piece("variants", setting, chosen, 240)


def peers(plan: Plan) -> Iterator[Piece]:
    """Rounds beside PyTorch: 100 clients first, then fewer and more; float32 products with 100 clients only."""
    rounds = [(clients, plan.precisions[0]) for clients in (100, 10, 1000)]
    rounds += [(100, precision) for precision in plan.precisions[1:2]]
    for clients, precision in rounds[: 1 if plan.is_tiny else None]:
        for base, work in list(LAYERED.items())[1 if plan.is_tiny else 0 :]:
            sized = work.resized(min(clients, 3), 20) if plan.is_tiny else work.resized(clients)
            is_chunked = clients > _CHUNKED_ABOVE and work.convolutions
            rules = BenchmarkRules(
                rounds=2 if plan.is_tiny else 3 if clients > _CHUNKED_ABOVE else 7,
                warmup=1,
                cores=cpu_devices.count_cores(),
                layout=plan.layout or (f"chunked({_CHUNK})" if is_chunked else "vmapped"),
                conv=plan.conv,
                precision=precision,
                answer_timeout=120,
                is_rated=False,
            )
            yield _peers_piece(sized, rules, f"{base}, {sized.num_clients} clients, {precision}", 60 + clients / 5)


def _peers_piece(work: Workload, rules: BenchmarkRules, label: str, seconds: float) -> Piece:
    def run(names: list[str], limit: float) -> Iterator[Record]:
        measurements = Benchmark(work, PEERS, rules, report=lambda text: print(text, end="", flush=True)).run()
        ours = measurements[OURS]
        for name, each in measurements.items():
            record = {"name": f"{label}: {name}", "precision": rules.precision}
            if not each.is_timed:
                yield record | {"error": each.skipped or each.crashed[-300:] or "no round ended"}
                continue
            times = {"times_ours": each.median / ours.median if ours.is_timed else None}
            facts = {"start_s": each.startup_seconds, **each.facts, "is_comparable": each.is_comparable}
            gaps = {f"gap_{what}": size for what, size in each.gap._asdict().items()} if each.gap else {}
            yield record | tasks.spread(each.seconds) | times | facts | gaps

    return Piece("peers", [f"{label}: {name}" for name in (OURS, *PEERS)], seconds, run)


def resnet(plan: Plan) -> Iterator[Piece]:
    """10 of 100 clients, 500 images of 32 pixels, batch 50, 5 epochs, with either stem (reports do not say which)."""
    variants_of = {
        "resnet18": [("chunked(1)", "lax"), ("vmapped", "lax"), ("vmapped", "im2col"), ("chunked(1)", "im2col")],
        "resnet18_imagenet": [("chunked(1)", "lax"), ("vmapped", "lax")],
    }
    for precision in [p for p in ("tf32", "bfloat16", "float32") if p in plan.precisions]:
        for model, chosen in variants_of.items():
            setting = plan.setting(model, 100, 10, 500, 5, precision)
            is_short = plan.is_tiny or precision == "float32"
            yield _rounds_piece("resnet", setting, chosen[:1] if is_short else chosen, 420, num=3)


def tutorial(plan: Plan) -> Iterator[Piece]:
    """100 clients x 500 images, batch 50, 5 epochs per round; five rounds in one call."""
    for precision in plan.precisions:
        setting = plan.setting("w2", 100, 100, 500, 5, precision)
        yield _rounds_piece("tutorial", setting, [(plan.layout or "vmapped", plan.conv)], 120, num=3, block=5)


def flags(plan: Plan) -> Iterator[Piece]:
    for base, work in list(LAYERED.items())[2 if plan.is_tiny else 0 :]:
        setting = plan.setting(base, 100, 100, work.num_examples, 1, plan.precisions[0])
        for about, text in {"as it is": "", **_FLAGS}.items():
            chosen = [(plan.layout or "vmapped", plan.conv)]
            yield _rounds_piece("flags", setting, chosen, 90, label=f", {about}", flags=text)


def _rounds_piece(
    part: str,
    setting: Setting,
    chosen: Sequence[Variant],
    seconds: float,
    label: str = "",
    flags: str = "",
    **repeats: int,
) -> Piece:
    """Compute these rounds in several ways in one process; label: added to names; repeats: see `tasks.rounds`."""
    sizes = f"{setting.model}, {setting.cohort_size} of {setting.num_clients} x {setting.num_examples}"
    named = {f"{sizes}, {setting.precision}: {layout}, {conv}{label}": (layout, conv) for layout, conv in chosen}

    def run(names: list[str], limit: float) -> Iterator[Record]:
        arguments = {"setting": setting, "variants": [(name, *named[name]) for name in names], **repeats}
        for record in run_task(tasks.rounds, arguments, limit, flags):
            yield {"precision": setting.precision, "model": setting.model} | record

    return Piece(part, list(named), seconds, run)


def aggregators(plan: Plan) -> Iterator[Piece]:
    counts, entries = ((2, 3), 10_000) if plan.is_tiny else ((10, 100, 1000), 100_000_000)
    for count in counts:
        name = f"{count} clients"
        arguments = {"names": {name: count}, "entries": entries, "repeats": 2 if plan.is_tiny else 7}
        yield _task_piece("aggregators", name, tasks.aggregators, arguments, 120)


def profile(plan: Plan) -> Iterator[Piece]:
    chosen = [("w3", 100, "vmapped"), ("w2", 100, "vmapped"), ("w1", 100, "vmapped")]
    chosen += [("resnet18", 10, "chunked(1)"), ("resnet18", 10, "vmapped")]
    for model, cohort, layout in chosen[: 1 if plan.is_tiny else None]:
        examples = LAYERED[model].num_examples if model in LAYERED else 500
        setting = plan.setting(model, cohort, cohort, examples, 1, plan.precisions[0])
        name = f"{model}, {setting.cohort_size} clients, {setting.precision}, {layout}"
        arguments = {"name": name, "setting": setting, "layout": layout, "conv": plan.conv}
        yield _task_piece("profile", name, tasks.profile, arguments, 150)


def _task_piece(part: str, name: str, task: tasks.Task, arguments: Mapping[str, Any], seconds: float) -> Piece:
    return Piece(part, [name], seconds, lambda names, limit: run_task(task, arguments, limit))


def resume(plan: Plan) -> Iterator[Piece]:
    """A killed run of FedLD on a network with convolutions, by default and with deterministic programs only."""
    for name, text in {"FedLD": "", "FedLD, deterministic": "--xla_gpu_deterministic_ops=true"}.items():
        yield _tests_piece("resume", name, [_RESUME, "-m", "slow"], text)


def tests(plan: Plan) -> Iterator[Piece]:
    """Tests with float32 products, compiled without autotuning."""
    for name, paths in _TESTS.items():
        chosen = ["tests/test_tree.py"] if plan.is_tiny else ["-n", "4", *paths]
        precision = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}
        yield _tests_piece("tests", name, chosen, "--xla_gpu_autotune_level=0", precision)


def _tests_piece(
    part: str, name: str, arguments: list[str], flags: str, environment: Mapping[str, str] = MappingProxyType({})
) -> Piece:
    return Piece(part, [name], 240, lambda names, limit: _run_tests(name, arguments, flags, limit, environment))


PARTS = {
    part.__name__: part for part in (variants, resnet, peers, tutorial, aggregators, resume, profile, flags, tests)
}


# ---- other processes -------------------------------------------------------------------------------------------------
def run_task(task: tasks.Task, arguments: Mapping[str, Any], seconds: float, flags: str = "") -> Iterator[Record]:
    command = module_command("benchmarks.gpu.tasks", task.__name__, json.dumps(arguments))
    yield from map(json.loads, read_lines(command, seconds, flags))


def _run_tests(
    name: str, arguments: list[str], flags: str, seconds: float, environment: Mapping[str, str]
) -> Iterator[Record]:
    """Run pytest, and yield one record of passed, failed and skipped tests, also if time is over."""
    command = [sys.executable, "-m", "pytest", "-vv", "-n", "0", "--tb=short", "-p", "no:cacheprovider", *arguments]
    statuses, tail, ended, begun = {}, [], "", time.monotonic()
    try:
        for line in read_lines(command, seconds, flags, environment):
            tail = [*tail[-15:], line.rstrip()]
            if match := re.search(r"(PASSED|FAILED|ERROR|SKIPPED)", line):
                test = re.search(r"tests/\S+(?: \S*\])?", line)
                statuses[test[0] if test else line.strip()] = match[1]
    except TaskFailedError as error:
        has_failures = {"FAILED", "ERROR"} & set(statuses.values())
        ended = str(error) if error.is_late or not has_failures else ""
    num_tests = collections.Counter(statuses.values())
    failed = [test for test, status in statuses.items() if status in ("FAILED", "ERROR")]
    counts = {"passed": num_tests["PASSED"], "failed": len(failed), "skipped": num_tests["SKIPPED"]}
    ended = ended or ("" if statuses else "no test ran")
    record = {"name": name, **counts, "seconds": time.monotonic() - begun, "failures": failed}
    yield record | ({"error": ended} if ended else {}) | ({"output": tail} if failed else {})


def read_lines(
    command: list[str], seconds: float, flags: str = "", environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[str]:
    """Yield the lines that a process prints. Raises TaskFailedError at the end if it fails or takes too long."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    whole = {**module_environment(), **environment, "PYTHONUNBUFFERED": "1", "XLA_FLAGS": flags}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=whole, cwd=ROOT, start_new_session=True
        )
        late = threading.Event()
        timer = threading.Timer(seconds, lambda: (late.set(), _kill(process)))
        timer.start()
        try:
            yield from process.stdout or ()
            process.wait()
        finally:
            timer.cancel()
            _kill(process)
            process.wait()
        if process.returncode:
            log.seek(0)
            words = f"took more than {seconds:.0f} s" if late.is_set() else log.read()[-600:].strip() or "no output"
            raise TaskFailedError(words, late.is_set())


def _kill(process: subprocess.Popen) -> None:
    """Kill a process and all processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
