"""Several models of the server: IFCA, FeSEM, CFL, FedEM."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Weighting
from fedjax_het.algorithms import cfl, fedem, fesem, ifca
from fedjax_het.engine.parallel.layout import vmapped
from fedjax_het.engine.round.client_step import Cohort, cohort_data
from fedjax_het.engine.round.program import Round, make_round, with_population
from fedjax_het.problem import ForwardPass
from fedjax_het.server.aggregators import mean
from fedjax_het.server.clustering import bipartition
from fedjax_het.types import ClientData, ServerView, State
from tests.golden.cases import Case, covers
from tests.golden.networks import Network
from tests.golden.replay import client_data, vector_model
from tests.golden.toy_leaves import ONE_BY_ONE, Toy, by_samples, own_models, run_rounds


def run(round: Round, data: list[ClientData], cohorts: np.ndarray, change: Callable[[State], State]):
    """(the states after each round, the model that each participant trained)."""
    train = with_population(round.train, False, vmapped)

    @jax.jit
    def step(state: State, cohort: Cohort, data: ClientData):
        state, _, messages = train(state, cohort, cohort_data(data, cohort), make_key(0))
        return state, messages.uploads.model

    state, states, chosen = change(round.init(make_key(0), data[0])), [], []
    for ids, batch in zip(cohorts, data, strict=True):
        state, models = step(state, Cohort(jnp.asarray(ids), jnp.ones(len(ids), bool)), batch)
        states.append(state)
        chosen.append(models)
    return states, np.stack(chosen)


@covers("ifca", "official_*")
def lowest_loss(case: Case):
    meta, models, cohorts = case.meta, case["models0"], case["selected"]
    network = Network(models[0], meta["features"], 0, meta["classes"])
    counts, capacity = case["n_samples"], case["labels"].shape[1]
    is_real = np.arange(capacity) < counts[:, None]
    data = [client_data(case["inputs"][is_real], case["labels"][is_real], counts)] * len(cohorts)

    def replay(name: str, **options):
        training = {"learning_rate": meta["learning_rate"], "batch_size": capacity, "shuffle": False}
        steps = 1 if name == "_gradient" else meta["local_steps"]
        algorithm = ifca(len(models), steps=steps, **training, **options)
        round = network.round(algorithm, len(counts), cohorts.shape[1])
        shared = {"params": network.leaves(models)}
        states, chosen = run(round, data, cohorts, lambda state: with_models(state, shared))
        ours = np.stack([network.vector(state.server.shared["params"]) for state in states])
        yield case.compare(f"models{name}", ours)
        assert np.array_equal(chosen, case[f"assign{name}"])

    yield from replay("", weighting="uniform")
    yield from replay("_samples")
    yield from replay("_gradient", averaging="gradient")
    case.excuse("losses", "they show in the choices")


@covers("fedem", "*")
def mixtures(case: Case):
    """The weights of the components are personal leaves; the released code averages over all clients."""
    meta, models, cohorts, counts = case.meta, case["models0"], case["selected"], case["n_samples"]
    network, settings = Network(models[0], meta["features"], 0, meta["classes"]), {"shuffle": False}
    is_real = np.arange(case["labels"].shape[1]) < counts[:, None]
    data = client_data(case["inputs"][is_real], case["labels"][is_real], counts)
    settings |= {"learning_rate": meta["learning_rate"], "batch_size": meta["batch_size"]}
    settings |= {"epochs": meta["local_epochs"], "num_components": len(models)}

    def replay(weighting) -> tuple[list[State], Round]:
        algorithm = replace(fedem(**settings), aggregator=mean(weighting))
        round = network.round(algorithm, len(counts), cohorts.shape[1])
        start = with_models(round.init(make_key(0), data), {"params": network.leaves(models)})
        return run_rounds(round, [data] * len(cohorts), cohorts, start), round

    def share_of_all(state, view: ServerView):
        return jnp.where(view.is_present, view.uploads.num_examples, 0) / counts.sum(), state

    everyone = Weighting(lambda shared, num_clients: (), share_of_all)
    for suffix, weighting in (("", everyone), ("_cohort", "samples")):
        states, round = replay(weighting)
        yield case.compare(f"models{suffix}", np.stack([network.vector(s.server.shared["params"]) for s in states]))
        weights = [state.clients.personal["params"]["mixture"]["weights"] for state in states]
        yield case.compare(f"pi{suffix}", np.stack(weights))
        if not suffix:
            own = own_models(round, states[-1], data)["params"]
            inputs = jnp.asarray(case["inputs"])[:, :, None].repeat(len(models), axis=2)
            predicted = jax.nn.softmax(jax.vmap(round.problem.model.classify)(own, inputs))
            yield case.compare("mixture_probabilities", predicted)
    case.excuse("responsibilities", "their means are pi")


def with_models(state: State, shared) -> State:
    return state._replace(server=state.server._replace(shared=jax.tree.map(jnp.asarray, shared)))


@covers("ifca", "linear_*")
def linear_regression(case: Case):
    """One step of linear regression a round, with gradient averaging."""
    inputs, targets, models = case["inputs"], case["targets"], case["models0"]
    num_clients, capacity = targets.shape
    case.meta.confirm(score="set" if "models_gradient" in case else "em")
    rows = np.concatenate([inputs, targets[..., None]], axis=-1).reshape(num_clients * capacity, -1)
    data = client_data(rows, np.zeros(len(rows)), [capacity] * num_clients)

    def squared_error(forward: ForwardPass):
        x, y = forward.batch.inputs[:, :-1], forward.batch.inputs[:, -1]
        return jnp.mean((x @ forward.params["w"] - y) ** 2)

    def choose(problem, view):
        batch = view.data.examples.inputs[view.data.train.index]
        errors = batch[:, :-1] @ view.received.shared["params"]["w"].T - batch[:, -1:]
        return jnp.argmin(jnp.mean(errors**2, axis=0))

    training = {"learning_rate": case.meta["learning_rate"], "batch_size": capacity, "shuffle": False}
    algorithm = ifca(len(models), averaging="gradient", **training)
    rule = algorithm.models._replace(choose=choose)
    algorithm = replace(algorithm, objective=(squared_error,), models=rule)
    round = make_round(algorithm, vector_model(models[0]), num_clients)
    name = next(name for name in ("models_gradient", "x_wrong_em") if name in case)
    cohorts = np.broadcast_to(np.arange(num_clients), (len(case[name]), num_clients))
    start = {"params": {"w": models}}
    states, chosen = run(round, [data] * len(cohorts), cohorts, lambda state: with_models(state, start))
    ours = np.stack([state.server.shared["params"]["w"] for state in states])
    if name == "x_wrong_em":
        yield case.refute(name, ours)
        case.excuse("counts", "of soft choices")
        return
    yield case.compare(name, ours)
    yield case.compare("counts", np.stack([np.bincount(choices, minlength=len(models)) for choices in chosen]))


@covers("fesem", "*")
def nearest_centre(case: Case):
    meta, models, cohorts, tapes = case.meta, case["models0"], case["selected"], case["tapes"]
    toy = toy_of_vector(models[0])
    data = [toy.data(*arguments) for arguments in zip(tapes, [case["h"]] * len(tapes), cohorts, strict=True)]
    shared = {"params": toy.leaves(models)}

    def start(state: State) -> State:
        own = {"value": {"params": toy.leaves(case["v0"])}, "is_known": jnp.ones(len(case["v0"]), bool)}
        return with_models(state, shared)._replace(clients=state.clients._replace(memory={"own": own}))

    for name, weighting in (("", "uniform"), ("_samples", by_samples(case))):
        algorithm = fesem(len(models), meta["lam"], learning_rate=meta["learning_rate"], **ONE_BY_ONE)
        algorithm = replace(algorithm, aggregator=mean(weighting))
        states, chosen = run(toy.round(algorithm, len(case["v0"]), cohorts.shape[1]), data, cohorts, start)
        yield case.compare(f"models{name}", toy.shared(states))
        assert np.array_equal(chosen, case[f"assign{name}"])
        if not name:
            own = [toy.vector(state.clients.memory["own"]["value"]["params"]) for state in states]
            yield case.compare("v", np.stack(own))
            if cohorts.shape[1] > 1:
                yield case.refute("x_wrong_first_client_only", toy.shared(states))
    if cohorts.shape[1] == 1:
        case.excuse("x_wrong_first_client_only", "one client")
    case.excuse("assign_wrong", "the choices of x_wrong_first_client_only")


def toy_of_vector(start: np.ndarray) -> Toy:
    """The toy model with all entries in one leaf."""
    return Toy({"parts": np.zeros(len(start), int), "w0": start})


@covers("cfl", "official_*")
def divided(case: Case):
    meta, num_clients = case.meta, len(case["h"])
    toy = toy_of_vector(case["w0"])
    tapes = np.broadcast_to(case["tapes"][:, None], (num_clients, meta["local_steps"], len(case["w0"])))
    rounds = len(case["v"])
    algorithm = cfl(
        num_clients,
        meta["eps1"],
        meta["eps2"],
        meta["first_split_round"],
        meta["min_size"],
        "complete",
        learning_rate=meta["learning_rate"],
        learning_rate_schedule=lambda number: jnp.asarray(meta["rate_decay"], float) ** (number + 1),
        **ONE_BY_ONE,
    )
    cohorts = np.broadcast_to(np.arange(num_clients), (rounds, num_clients))
    data = [toy.data(tapes, case["h"])] * rounds
    states, _ = run(toy.round(algorithm, num_clients, num_clients), data, cohorts, lambda state: state)
    labels = np.stack([state.server.published["groups"]["labels"] for state in states])
    models = toy.shared(states)
    own = np.stack([stack[groups] for stack, groups in zip(models, labels, strict=True)])
    yield case.compare("v", own)
    for ours, theirs in zip(labels, case["labels"], strict=True):
        assert np.array_equal(ours[:, None] == ours, theirs[:, None] == theirs)
    if meta["splits"] > 1:
        yield case.refute(
            "x_wrong_relative_indices", np.stack([own[groups] for own, groups in zip(models, labels, strict=True)])
        )
    norms = np.stack([state.server.published["groups"]["norms"] for state in states])
    before = np.concatenate([np.zeros_like(labels[:1]), labels[:-1]])
    is_large = (before[:, :, None] == before[:, None]).sum(2) > meta["min_size"]
    ratios = np.where(is_large, case["mean_norm"] / np.maximum(case["max_norm"], 1e-30), np.inf)
    opposed = np.arange(rounds), np.argmin(ratios, axis=1)
    yield case.compare("mean_norm", norms[:, 0], part=lambda values: values[opposed])
    yield case.compare("max_norm", norms[:, 1], part=lambda values: values[opposed])
    case.excuse_unread("*", "cosines show in the divisions")


@covers("cfl", "split_*")
def bipartitions(case: Case):
    similarity, everyone = jnp.asarray(case["similarity"]), jnp.ones(len(case["similarity"]), bool)
    for name, linkage, kind in (("labels", "complete", "released"), ("labels_optimal", "single", "optimal")):
        part = np.asarray(bipartition(similarity, everyone, linkage))
        yield case.compare(name, np.where(part == part[np.argmin(case[name])], 0, 1))
        case.meta.confirm(**{f"max_cross_{kind}": case["similarity"][part][:, ~part].max()})
