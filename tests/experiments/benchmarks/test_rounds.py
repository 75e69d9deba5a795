"""The benchmark of rounds: its workloads, its errors, its tables, and tiny workloads from beginning to end."""

import importlib.util
import json
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from experiments.benchmarks import report, rounds
from experiments.benchmarks.harness import Benchmark, BenchmarkRules, Measurement
from experiments.benchmarks.peers import CONTENDERS, MATMUL, OURS, PEERS, ours
from experiments.benchmarks.workloads import W1, W2, W3, W4, W4_SMALL, W5, W6, W7, WORKLOADS
from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.labels import are_tokens, cross_entropies
from fedjax_het.types import Context
from tests.shared import ROOT

KEYS = {
    "work",
    "peer",
    "seconds_median",
    "seconds_min",
    "seconds_max",
    "rounds",
    "startup_seconds",
    "cached_startup_seconds",
    "peak_rss_mb",
    "versions",
}
TINY = W2.resized(num_clients=3, num_examples=70)  # the last batch is partial, and cores do not divide the clients


# ---- works -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("work", "giga", "steps"),
    [
        (W1, 434, 120),
        (W2, 16, 100),
        (W3, 3, 5000),
        (W4, 348, 8),
        (W4_SMALL, 666, 8),
        (W5, 191, 50),
        (W6, 377, 50),
        (W7, 407, 20),
    ],
)
def test_the_stated_flop_and_steps_follow_from_the_shapes(work, giga, steps):
    assert round(work.flop() / 1e9) == giga and work.num_steps == steps


def test_w1_has_the_documented_layers():
    kernels = [weights.shape for weights in W1.initial()[::2]]
    assert kernels == [(5, 5, 1, 32), (5, 5, 32, 64), (7 * 7 * 64, 512), (512, 10)]


def test_workloads_are_deterministic_and_give_every_example_to_one_client():
    first, second = TINY.examples(), TINY.examples()
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert np.array_equal(np.sort(first.clients.ravel()), np.arange(3 * 70))
    assert all(np.array_equal(a, b) for a, b in zip(TINY.initial(), W2.initial(), strict=True))


def test_a_resized_workload_has_a_name_of_its_own():
    assert W2.resized().name == "w2" and TINY.name == "w2-3x70" and W2.resized(num_clients=10).name == "w2"


# ---- what is refused -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--work=w33"], "--work: 'w33' is unknown. Did you mean 'w3'?"),
        (["--work=w1", "--peers=torch_lan"], "Did you mean 'torch_lean'?"),
        (["--work=none"], "--work: 'none' is unknown"),
        (["--work=w1", "--peers="], "--peers: '' is unknown"),
        (["--work=w1", "--rounds=0"], "--rounds: must be 1 or more"),
        (["--work=w1", "--layout=shard(2)"], "layout: cannot read"),
        (["--work=w1", "--json=/nowhere/at/all.json"], "--json: cannot write"),
        (["--work=w1", "--python=torch_lean=/nowhere"], "--python: '/nowhere' is not an executable file"),
        (["--work=w1", "--python=torch=/bin/sh"], "--python: 'torch' is unknown"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_input_errors_exit_with_status_2_before_anything_runs(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(rounds, "Benchmark", None)
    assert rounds.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error


def test_peers_and_workloads_are_parsed_in_order_without_duplicates():
    command = rounds.parse_command(["--work=all", "--peers=flower, torch_lean,flower"])
    assert [work.name for work in command.works] == list(WORKLOADS)
    assert command.peers == ["flower", "torch_lean"]
    assert (
        rounds.parse_command(["--work=w1"]).peers == list(PEERS)
        and rounds.parse_command(["--work=w1", "--peers=none"]).peers == []
    )


def test_every_contender_has_a_module_and_an_install_command():
    for name, entry in CONTENDERS.items():
        assert (ROOT / "experiments" / "benchmarks" / "peers" / f"{entry.module}.py").is_file()
        assert entry.install or name in (OURS, MATMUL)


# ---- a contest, with contenders that only pretend --------------------------------------------------------------------
PRETENDER = """
import json, sys
import numpy as np
from experiments.benchmarks.workloads import W3
said = {said}
print(json.dumps(said or {{"versions": {{"one": "1.0"}}}}), flush=True)
for line in sys.stdin if not said else []:
    order, *operands = line.split()
    if order == "weights":
        np.savez(operands[0], *(value + {step} for value in W3.initial()))
    if order == "round" and {crashes}:
        raise RuntimeError("out of luck")
    answers = {{"round": {{"seconds": {seconds}}}, "memory": {{"peak_rss_mb": 100.0}}}}
    print(json.dumps(answers.get(order, {{}})), flush=True)
"""


@pytest.fixture(scope="module")
def measurements(tmp_path_factory):
    """Ours takes 2 s per round; one peer takes 1 s, one takes 4 s and differs, one crashes, one is missing."""

    def write_fake_python(name, seconds=1.0, step=0.1, crashes=False, said=None):
        path = tmp_path_factory.mktemp("python") / name
        text = PRETENDER.format(seconds=seconds, step=step, crashes=crashes, said=said)
        path.write_text(f"#!{sys.executable}{text}")
        path.chmod(0o755)
        return str(path)

    pythons = {
        OURS: write_fake_python(OURS, 2.0),
        MATMUL: write_fake_python(MATMUL, 1.0),
        "torch_lean": write_fake_python("torch_lean", 1.0, 0.10001),
        "torch_graph": write_fake_python("torch_graph", 4.0, 0.2),
        "flower": write_fake_python("flower", crashes=True),
        "pfl_research": write_fake_python("pfl_research", said={"missing": ["pfl", "torch"]}),
        "fedjax": write_fake_python("fedjax", said={"unusable": "it needs an older one"}),
    }
    return Benchmark(W3, [name for name in pythons if name in PEERS], BenchmarkRules(cores=2, pythons=pythons)).run()


@pytest.mark.slow
def test_crashed_and_missing_peers_are_reported_and_the_others_are_measured(measurements):
    assert "out of luck" in measurements["flower"].crashed
    assert [len(measurements[name].seconds) for name in (OURS, "torch_lean", "flower", "fedjax")] == [7, 7, 0, 0]
    said = "\n".join(report.make_remarks(measurements, BenchmarkRules(cores=2)))
    assert "flower: crashed" in said and "out of luck" in said
    assert "pfl_research: skipped, pfl and torch not installed: pip install pfl torch, in an environment" in said
    assert "fedjax: skipped, it needs an older one" in said


@pytest.mark.extended
def test_peers_with_other_results_are_marked_and_not_recorded(measurements):
    assert (
        measurements["torch_lean"].gap.update == pytest.approx(1e-4, rel=0.1)
        and measurements["torch_lean"].is_comparable
    )
    assert measurements["torch_graph"].gap.norm == pytest.approx(1.0, rel=0.01)
    assert "torch_graph (!): not comparable" in report.make_remarks(measurements, BenchmarkRules(cores=2))[0]
    assert [record["peer"] for record in report.to_records(W3, measurements)] == ["torch_lean", OURS]


@pytest.mark.extended
def test_records_have_the_documented_keys_and_figures(measurements):
    record = report.to_records(W3, measurements)[1]
    assert record.keys() == KEYS
    assert record["work"] == "w3" and record["rounds"] == 7 and record["seconds_median"] == 2.0
    assert record["versions"] == {"one": "1.0"} and record["peak_rss_mb"] == 100.0 and record["startup_seconds"] > 0
    assert record["cached_startup_seconds"] > 0


@pytest.mark.extended
def test_the_table_is_sorted_with_ratios_to_this_package(measurements):
    console = Console(width=80)
    with console.capture() as printed:
        console.print(report.make_table(W3, measurements, BenchmarkRules(cores=2)))
    text = printed.get()
    rows = [
        line.replace(" (!)", "(!)").split() for line in text.splitlines() if line.strip().startswith(tuple(CONTENDERS))
    ]
    assert [[row[0], row[4]] for row in rows] == [["torch_lean", "0.50"], [OURS, "1.00"], ["torch_graph(!)", "2.00"]]
    assert "1000 clients x 100 examples" in text and "69 GFLOP/s" in text


def test_startup_includes_the_extra_time_of_the_first_round():
    standing = Measurement("flower", ready_seconds=1.0, warmup=[12.0, 2.0], seconds=[2.0, 2.0, 2.5])
    assert standing.startup_seconds == 11.0


@pytest.mark.extended
def test_the_command_prints_a_table_and_writes_json(measurements, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(Benchmark, "run", lambda self: measurements)
    assert rounds.main(["--work=w3,w1", "--rounds=2", f"--json={tmp_path / 'found.json'}"]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert [record["work"] for record in found] == ["w3", "w3", "w1", "w1"] and all(r.keys() == KEYS for r in found)
    assert "a trial" in capsys.readouterr().out


def test_a_worker_imports_neither_fedjax_het_nor_jax():
    """Its environment may be that of another framework, which has neither."""
    program = "import sys; sys.modules |= {'fedjax_het': None, 'jax': None}; import experiments.benchmarks.peers.worker"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)


# ---- contenders ------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_this_package_takes_the_step_that_the_workload_describes(tmp_path):
    """One step of a client on all its examples, through the worker's pipe, against the gradient by hand."""
    sizes = ["--clients=3", "--examples=20"]
    asked = f"round\nweights {tmp_path / 'weights.npz'}\nmemory\n"
    command = [sys.executable, "-m", "experiments.benchmarks.peers.worker", OURS, "w3", "--cores=2", *sizes]
    done = subprocess.run(command, input=asked, cwd=ROOT, capture_output=True, text=True, timeout=120)
    ready, timed, written, memory = map(json.loads, done.stdout.splitlines())
    assert ready["versions"].keys() == set(CONTENDERS[OURS].packages) and timed["seconds"] > 0 and written == {}
    assert 50 < memory["peak_rss_mb"] < 10_000

    work = W3.resized(num_clients=3, num_examples=20)
    examples, (kernel, bias) = work.examples(), work.initial()
    x = examples.inputs.reshape(60, 784) / 255
    odds = np.exp(x @ kernel + bias)
    error = (odds / odds.sum(axis=1, keepdims=True) - np.eye(10)[examples.labels]) / 60
    with np.load(tmp_path / "weights.npz") as held:
        np.testing.assert_allclose(held["arr_0"] - kernel, -work.learning_rate * x.T @ error, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(held["arr_1"] - bias, -work.learning_rate * error.sum(axis=0), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "work",
    [
        TINY,
        W1.resized(num_clients=1, num_examples=4),
        W3.resized(num_clients=1),
        pytest.param(W4.resized(1, 4), marks=pytest.mark.slow),
        W4_SMALL.resized(1, 4),
        W5.resized(1, 4),
        W6.resized(1, 4),
        W7.resized(1, 4),
    ],
    ids=lambda work: work.name,
)
def test_the_loss_of_a_workload_is_that_of_this_packages_model(work):
    examples, weights = work.examples(), work.initial()
    model, (trained, frozen) = ours.build_model(work), ours.to_params(work)
    params = tree.merge(trained, frozen)
    inputs = jnp.asarray(examples.inputs[:4])
    inputs = inputs if are_tokens(inputs) else inputs / 255
    context = Context(jnp.ones(4), jnp.zeros((), int), make_key(0), is_training=True)
    statistics = {name: values for name, values in model.init(make_key(0), inputs).items() if name != "params"}
    (features, _), _ = model.encode({"params": params, **statistics}, inputs, context)
    expected = float(cross_entropies(model.classify(params, features), jnp.asarray(examples.labels[:4])).mean())
    assert work.loss(weights, examples.inputs[:4], examples.labels[:4]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "work",
    [TINY, W4_SMALL.resized(2, 20), W5.resized(2, 20), W6.resized(2, 20), W7.resized(2, 4)],
    ids=lambda work: work.name,
)
def test_pytorch_peers_compute_the_same_update(work):
    if any(importlib.util.find_spec(package) is None for package in ("torch", "peft")):
        pytest.skip("PyTorch or peft is not installed: pip install torch peft")
    peers = ["torch_lean", "torch_processes", "torch_vmap"]
    found = Benchmark(work, peers, BenchmarkRules(rounds=1, warmup=0, cores=2)).run()
    assert {name: found[name].crashed for name in peers} == dict.fromkeys(peers, "")
    compared = [name for name in peers if not found[name].skipped]
    assert compared == [name for name in peers if work.base in PEERS[name].works]
    # Behind norms, rounding moves the inputs of ReLUs across zero in more places.
    assert all(found[name].is_comparable for name in compared)
    assert max(found[name].gap.update for name in compared) < (5e-2 if work is not TINY else 1e-3)
