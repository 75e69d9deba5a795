"""FedDF and FedMD, which read public examples."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import feddf, fedmd
from fedjax_het.client.optimizers import torch_sgd
from fedjax_het.client.public import digest, public_logits
from fedjax_het.engine.round import uplink
from fedjax_het.engine.round.participation import derive_keys
from fedjax_het.engine.round.phases import _PUBLIC
from fedjax_het.engine.round.program import make_round
from fedjax_het.server.aggregators import Scheme
from fedjax_het.server.aggregators._ensemble import _ADAM, cosine_rate, ensemble_losses, take_step
from fedjax_het.types import Array, ClientData, Params, PublicInputs
from tests.golden.cases import Case, covers
from tests.golden.family_distillation import check_widths, compare_params, make_network, read_params
from tests.golden.networks import dense
from tests.golden.replay import client_data
from tests.views import client_view

KEY = make_key(0)
SCHEMES: dict[str, Scheme] = {"avg_logits": "logits", "avg_probs": "probabilities", "avg_losses": "losses"}


def apply(params: Params, inputs: Array) -> Array:
    return dense(params["classifier"], jnp.tanh(dense(params["body"], inputs)))


def with_public(data: ClientData, inputs: np.ndarray, round: int) -> ClientData:
    """The data with public inputs [..., feature] that the round reads in this order."""
    flat = inputs.reshape(-1, inputs.shape[-1])
    server_key = uplink.round_keys(derive_keys(KEY, jnp.asarray(round))[1])[1]
    key = jax.random.fold_in(server_key, jnp.uint32(_PUBLIC))
    order = np.asarray(jax.random.permutation(key, jnp.arange(len(flat), dtype=jnp.int32)))
    stored = np.empty_like(flat)
    stored[order] = flat
    public = PublicInputs(jnp.asarray(stored), np.arange(len(flat), dtype=np.int32))
    return data._replace(examples=data.examples._replace(public=public))


def data_of(case: Case, round: int, clients: slice | list[int], public: np.ndarray) -> ClientData:
    inputs, labels = case["X"][round][clients], case["Y"][round][clients]
    counts = [labels[0].size] * len(labels)
    return with_public(client_data(inputs.reshape(-1, inputs.shape[-1]), labels.reshape(-1), counts), public, round)


# ---- FedDF -----------------------------------------------------------------------------------------------------------
def distill(teachers: Array, batches: np.ndarray, start: Params, rate: float, **options):
    """(the student after each step, the losses): teachers are logits [steps, teachers, batch, class]."""
    student, moments, students, losses = start, _ADAM.init(start), [], []
    weights = jnp.ones(teachers.shape[1]) / teachers.shape[1]
    for number, (logits, inputs) in enumerate(zip(teachers, batches, strict=True)):

        def loss(params: Params, logits=logits, inputs=inputs) -> Array:
            return jnp.mean(ensemble_losses(logits, weights, apply(params, inputs), **options))

        value, gradient = jax.value_and_grad(loss)(student)
        own_rate = cosine_rate(rate, jnp.asarray(number), len(batches))
        student, moments = take_step(student, gradient, moments, own_rate, 5.0)
        students.append(student)
        losses.append(value)
    return students, losses


@covers("feddf", "student_*")
def student(case: Case):
    settings = case.meta
    settings.confirm(optimizer="Adam(.9,.999,1e-8)", clip=5.0, schedule="cosine over the steps given")
    options = {"scheme": SCHEMES[settings["scheme"]], "temperature": settings["temperature"]}
    num_steps, num_teachers = case["teacher_logits"].shape[:2]
    teachers = [read_params(case, f"teacher{i}__") for i in range(num_teachers)]
    logits = jnp.stack([apply(params, case["X"]) for params in teachers], axis=1)
    yield case.compare("teacher_logits", logits)
    yield case.compare("weights", np.full(num_teachers, 1 / num_teachers))
    rates = [cosine_rate(settings["learning_rate"], jnp.asarray(number), num_steps) for number in range(num_steps)]
    yield case.compare("lr", rates)
    start = read_params(case, "student_in__")
    students, losses = distill(logits, case["X"], start, settings["learning_rate"], **options)
    yield case.compare("losses", losses, scale=1.0)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *students)
    yield from compare_params(case, "student__", stacked)


@covers("feddf", "rounds_one_*")
def rounds_of_one_width(case: Case):
    settings, width = case.meta, int(case["width"][0])
    num_rounds, num_steps, size, _ = case["U"].shape
    num_clients = case["Y"].shape[1]
    assert np.array_equal(case["selected"], np.tile(np.arange(num_clients), (num_rounds, 1)))
    case.excuse("n_samples", "numbers of examples, which the mean does not read")
    algorithm = feddf(
        num_steps,
        settings["student_lr"],
        size,
        scheme=SCHEMES[settings["scheme"]],
        learning_rate=settings["lr"],
        batch_size=case["Y"].shape[-1],
        shuffle=False,
    )
    round = make_round(algorithm, make_network(read_params(case, f"in_h{width}__")), num_clients)
    step, state = jax.jit(round.step_with_messages), None
    for number in range(num_rounds):
        data = data_of(case, number, slice(None), case["U"][number])
        state = round.init(KEY, data) if state is None else state
        state, _, said = step(state, data, KEY)
        trained = jax.tree.map(jnp.add, said.received.shared, said.uploads.update)["params"]
        for i in range(num_clients):
            yield from compare_params(case, f"r{number}_client{i}__", jax.tree.map(lambda x, i=i: x[i], trained))
        yield from compare_params(case, f"r{number}_mean_h{width}__", jax.tree.map(lambda x: x.mean(axis=0), trained))
        yield from compare_params(case, f"r{number}_out_h{width}__", state.server.shared["params"])
    case.excuse("r*_losses_*", "on the way to the weights that are held")


@covers("feddf", "rounds_two_*")
def rounds_of_two_widths(case: Case):
    """The distillation alone, from the stored models of clients: a program has one network."""
    settings, widths = case.meta, case["width"]
    for number, batches in enumerate(case["U"]):
        clients = [read_params(case, f"r{number}_client{i}__") for i in range(len(widths))]
        logits = jnp.stack([apply(params, batches) for params in clients], axis=1)
        for width in np.unique(widths):
            own = [params for params, size in zip(clients, widths, strict=True) if size == width]
            mean = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *own)
            yield from compare_params(case, f"r{number}_mean_h{width}__", mean)
            students, losses = distill(
                logits, batches, mean, settings["student_lr"], scheme=SCHEMES[settings["scheme"]]
            )
            yield case.compare(f"r{number}_losses_h{width}", losses)
            yield from compare_params(case, f"r{number}_out_h{width}__", students[-1])
    settings.confirm(lr=settings["lr"])
    for name in ("X", "Y", "in_*", "n_samples", "selected"):
        case.excuse(name, "local training, held with one width")


# ---- FedMD -----------------------------------------------------------------------------------------------------------
@covers("fedmd", "rounds_*")
def fedmd_rounds(case: Case):
    settings = case.meta
    check_widths(case)
    settings.confirm(loss="mae")
    num_batches, size = case["U"].shape[1:3]
    num_clients, num_public = case["Y"].shape[1], num_batches * size
    options = {"batch_size": size, "epochs": settings["digest_epochs"]}
    algorithm = fedmd(
        num_public,
        settings["digest_epochs"],
        size,
        learning_rate=settings["lr"],
        batch_size=case["Y"].shape[-1],
        shuffle=False,
    )
    # The clients' networks differ, so each has its own federation, which is told the consensus of all.
    algorithm = replace(algorithm, survey={})
    digesting = replace(algorithm, local_update=digest(torch_sgd(settings["lr"]), num_public, **options))
    clients = [make_network(read_params(case, f"in{i}__")) for i in range(num_clients)]
    rounds = [[make_round(rule, model, 1) for rule in (algorithm, digesting)] for model in clients]
    states = [whole.init(KEY, data_of(case, 0, [i], case["U"][0])) for i, (whole, _) in enumerate(rounds)]
    steps = [[jax.jit(round.step) for round in pair] for pair in rounds]
    for number, public in enumerate(case["U"]):
        measured = []
        for (whole, _), state in zip(rounds, states, strict=True):
            personal = jax.tree.map(lambda leaf: leaf[0], state.clients.personal)
            flat = public.reshape(-1, public.shape[-1])
            data = client_data(np.zeros((1, flat.shape[1])), np.zeros(1), [1])
            inputs = PublicInputs(jnp.asarray(flat), jnp.arange(len(flat)))
            data = data._replace(examples=data.examples._replace(public=inputs))
            variables = {"params": personal["params"] | {"nothing": {"empty": jnp.zeros(0)}}}
            measured.append(public_logits(num_public, size)(whole.problem, client_view(variables, data=data)))
        consensus = sum(measured) / num_clients
        yield case.compare("consensus", consensus, part=lambda stored, number=number: stored[number])
        for i, (train, train_digest) in enumerate(steps):
            data = data_of(case, number, [i], public)
            state = states[i]._replace(server=states[i].server._replace(published={"logits": consensus}))
            for name, after in (("digest", train_digest(state, data, KEY)[0]), ("out", train(state, data, KEY)[0])):
                params = jax.tree.map(lambda leaf: leaf[0], after.clients.personal["params"])
                yield from compare_params(case, f"r{number}_{name}{i}__", params)
                states[i] = after
