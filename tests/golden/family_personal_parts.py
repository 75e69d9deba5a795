"""Networks with parts of one client alone, and starts of one client: Fed-RoD, FedDBE, FedAS, FedCP, GPFL."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Algorithm
from fedjax_het.algorithms import fedas, feddbe, fedrod
from fedjax_het.client.local_updates import sgd
from fedjax_het.client.measures import gradient_trace
from fedjax_het.client.objectives._label_skew import balanced_losses
from fedjax_het.client.starts import aligned_body, first_mean
from fedjax_het.server.aggregators import mean
from fedjax_het.types import State
from tests.golden.cases import Case, covers
from tests.golden.stored_clients import StoredClients, flatten_layer, full_batches, without_partial_batches
from tests.golden.toy_leaves import by_samples, own_models
from tests.views import client_view


def trained_as_released(algorithm: Algorithm, clients: StoredClients) -> Algorithm:
    """The algorithm, whose clients leave out batches that are not full."""
    return replace(algorithm, local_update=without_partial_batches(algorithm.local_update))


# ---- Fed-RoD ---------------------------------------------------------------------------------------------------------
@covers("fedrod", "loss_*")
def balanced_softmax(case: Case):
    logits, labels, counts = (jnp.asarray(case[name]) for name in ("logits", "labels", "counts"))
    for name in case.matching("loss_g*"):
        gamma = float(name.removeprefix("loss_g"))
        loss = lambda z, gamma=gamma: jnp.mean(balanced_losses(z, labels, counts, gamma, "excluded"))  # noqa: E731
        value, gradient = jax.value_and_grad(loss)(logits)
        yield case.compare(name, value)
        yield case.compare(f"grad_g{gamma}", gradient)


@covers("fedrod", "pfllib_*")
def two_heads(case: Case):
    clients = StoredClients(case)
    training = clients.training | {"epochs": case.meta["local_epochs"]}
    assert np.array_equal(case["head0"], case["w0"][-len(case["head0"]) :])
    size = clients.training["batch_size"]
    full = clients.data._replace(train=clients.data.train._replace(count=clients.counts // size * size))

    def replay(gamma: float, data=None):
        algorithm = replace(trained_as_released(fedrod(gamma, **training), clients), aggregator=mean(by_samples(case)))
        if data is None and gamma:
            # The batches that clients leave out are counted all the same.
            algorithm = replace(algorithm, objective=(balanced_by_all, *algorithm.objective[1:]))
        history = clients.run(algorithm, data=data and [data] * len(case["selected"]))
        return history, *(history.stack(lambda state, read=read: read(state)) for read in (shared, heads))

    def balanced_by_all(forward):
        counts = jnp.asarray(case["counts"])[forward.view.client]
        return jnp.mean(balanced_losses(forward.outputs.logits, forward.batch.labels, counts, 1.0, "excluded"))

    def shared(state: State):
        return clients.vector(state.server.shared["params"])

    def heads(state: State):
        return flatten_layer(state.clients.personal["params"]["personal_head"])

    history, w, own = replay(1.0, full)
    yield case.compare("w", w)
    yield case.compare("heads", own)
    yield case.compare("local", history.stack_sent(clients.vector))
    history, w, own = replay(1.0)
    yield case.compare("w_all_counts", w)
    yield case.compare("heads_all_counts", own)
    state, model = history.states[-1], clients.model
    models = own_models(clients.round(fedrod(**training)), state, clients.data)
    inputs, is_real = jnp.asarray(case["inputs"]), np.arange(case["inputs"].shape[1]) < clients.counts[:, None]
    generic = model.classify(state.server.shared["params"], _encode(clients, state.server.shared["params"], inputs))
    summed = jax.vmap(lambda params, x: model.classify(params, _encode(clients, params, x)))(models["params"], inputs)
    for name, logits in (("generic_logits", generic), ("personal_logits", summed)):
        yield case.compare(name, np.where(is_real[..., None], logits, case[name]))
    _, w, own = replay(0.0)
    yield case.compare("w_cross_entropy", w)
    yield case.compare("heads_cross_entropy", own)
    counts = [np.bincount(labels[:n], minlength=3) for labels, n in zip(case["labels"], clients.counts, strict=True)]
    yield case.compare("counts", np.stack(counts))
    case.excuse("counts_dropped", "of complete batches")
    case.excuse("*_head_after", "features taken after the step of the body")


def _encode(clients: StoredClients, params, inputs):
    return jnp.tanh(inputs @ params["body"]["kernel"] + params["body"]["bias"])


# ---- FedDBE ----------------------------------------------------------------------------------------------------------
@covers("feddbe", "*")
def shifted_features(case: Case):
    meta, clients = case.meta, StoredClients(case)
    training = clients.training | {"epochs": meta["local_epochs"]}
    weight, num_clients = meta["kl_weight"], len(clients.counts)
    if weight:
        algorithm = feddbe(weight, meta["mean_momentum"], **training)
    else:
        # Without a weight the mean is not kept; the running means of the case need its momentum.
        algorithm = replace(feddbe(1e-30, meta["mean_momentum"], **training), survey={}, reports={})
    algorithm = trained_as_released(algorithm, clients)

    def inject(state: State) -> State:
        consensus = {"total": jnp.asarray(case["global_mean"]), "weight": jnp.ones(())}
        memory = {"counted": jnp.ones(num_clients, bool)}
        return state._replace(
            server=state.server._replace(published={"consensus": consensus}),
            clients=state.clients._replace(memory=memory),
        )

    history = clients.run(algorithm, inject)
    yield case.compare("w", history.stack(lambda state: clients.vector(state.server.shared["params"])))
    yield case.compare("local", history.stack_sent(clients.vector))
    yield case.compare("client_means", history.stack(lambda state: state.clients.personal["params"]["shift"]["mean"]))
    running = history.stack(lambda state: state.clients.personal["running"]["mean"])
    asked = np.stack([np.isin(np.arange(num_clients), case["selected"][: r + 1]) for r in range(len(running))])
    theirs = case["running_means"]
    yield case.compare("running_means", np.where(asked[..., None], running, theirs))
    yield from _consensus(case, clients, training)


def _consensus(case: Case, clients: StoredClients, training: dict):
    """The means that all clients answer before the first round."""
    first = without_partial_batches(sgd(**training, only="!params/shift/*"))
    for consensus, names in (
        ("trained", ("initial_local_means", "global_mean")),
        ("exact", ("exact_initial_means", "exact_global_mean")),
    ):
        algorithm = feddbe(1.0, case.meta["mean_momentum"], consensus=consensus, **training)
        algorithm = replace(algorithm, survey={"consensus": first_mean(first, consensus)})
        round = clients.round(algorithm, len(clients.counts))
        state = round.init(make_key(0), clients.data)
        _, _, said = jax.jit(round.step_with_messages)(state, clients.data, make_key(0))
        answers, published = said.answers["consensus"], said.received.published["consensus"]
        yield case.compare(names[0], answers["total"] / clients.counts[:, None])
        yield case.compare(names[1], published["total"] / published["weight"])
    case.excuse("initial_locals", "weights that are discarded")


# ---- FedAS -----------------------------------------------------------------------------------------------------------
@covers("fedas", "*")
def aligned_bodies(case: Case):
    meta, clients = case.meta, StoredClients(case)
    training = clients.training | {"epochs": meta["local_epochs"]}
    assert meta["offset_head"] == (meta["features"] + 1) * meta["width"]
    start = aligned_body(meta["alignment_rate"], meta["alignment_batch"], shuffle=False)
    size, batch = clients.training["batch_size"], meta["alignment_batch"]
    trace = gradient_trace(size)

    def replay(**options):
        algorithm = trained_as_released(fedas(**training, **options), clients)
        reports = {"trace": lambda problem, view: trace(problem, full_batches(view, size))} if algorithm.reports else {}
        begin = algorithm.start and (lambda problem, view, key: start(problem, full_batches(view, batch), key))
        algorithm = replace(algorithm, start=begin, reports=reports)
        if options.get("weighting") == "samples":
            algorithm = replace(algorithm, aggregator=mean(by_samples(case)))
        return clients.run(algorithm)

    def server(history):
        """The server's body, and the mean of heads, which we do not keep."""
        return history.stack(lambda state: flatten_layer(state.server.shared["params"]["body"]))

    body = lambda array: array[..., : meta["offset_head"]]  # noqa: E731
    history = replay()
    yield case.compare("w", server(history), part=body)
    yield case.compare("v", _own(case, clients, history))
    if len(case["selected"][0]) > 1:
        yield case.refute("x_wrong_chained", server(history), 1e-9, part=body)
    else:
        yield case.compare("x_wrong_chained", server(history), part=body)
    yield case.compare("w_samples", server(replay(weighting="samples")), part=body)
    plain = replay(align=False)
    yield case.compare("w_no_alignment", server(plain), part=body)
    yield case.compare("v_no_alignment", _own(case, clients, plain))
    for pattern in ("*_wrong_chained", "server_after_sending"):
        case.excuse(pattern, "the server's model is trained in place, one client after the other")
    yield from _traces(case, clients, history)
    case.excuse("aligned", "they show in v")
    case.excuse("fisher", "they show in w")


def _own(case: Case, clients: StoredClients, history):
    def own(state: State):
        kept = state.clients.memory["own"]
        return np.where(kept["is_known"][:, None], clients.vector(kept["value"]["params"]), case["w0"])

    return history.stack(own)


def _traces(case: Case, clients: StoredClients, history):
    """The traces of the last models, with squared gradients of single examples."""
    last = {"params": clients.leaves(_own(case, clients, history)[-1])}
    round, measure = clients.round(fedas(**clients.training)), gradient_trace(1, "example")

    def trace(rows, local):
        view = client_view(local, data=clients.data._replace(train=rows), local=local)
        return measure(round.problem, view)

    yield case.compare("fisher_per_example_last", jax.jit(jax.vmap(trace))(clients.data.train, last))
