"""Features that depend on the client: FedCP and GPFL, the authors' codes."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from fedjax_het.algorithms import fedcp, gpfl
from fedjax_het.client.objectives._conditional import class_angles, class_distance, mean_discrepancy
from fedjax_het.models import with_gate
from fedjax_het.models._conditional import apply_valve, gate_shares
from fedjax_het.server.aggregators import mean
from fedjax_het.types import ClientData, Model, Outputs, State
from tests.golden.cases import Case, covers
from tests.golden.replay import client_data
from tests.golden.stored_clients import History, StoredClients, flatten_layer, read_layer, without_partial_batches
from tests.golden.toy_leaves import by_samples, own_models
from tests.views import client_view, forward_pass

STALE = "clients that were not asked keep an old generic head and gate"


def features(params, inputs):
    return jnp.tanh(inputs @ params["body"]["kernel"] + params["body"]["bias"])


def first_batch(case: Case, clients: StoredClients):
    """(features at the start, labels) of the first batch of the first participant."""
    client, size = case["selected"][0, 0], clients.training["batch_size"]
    return features(clients.leaves(case["w0"]), case["inputs"][client, :size]), case["labels"][client, :size]


def read_shared(history: History, *path: str) -> np.ndarray:
    def read(state: State):
        layer = state.server.shared["params"]
        for name in path:
            layer = layer[name]
        return flatten_layer(layer)

    return history.stack(read)


# ---- FedCP -----------------------------------------------------------------------------------------------------------
@covers("fedcp", "*")
def gated_heads(case: Case):
    meta, clients = case.meta, StoredClients(case)
    meta.confirm(layer_norm_epsilon=1e-5)
    gate = read_layer(case["cs0"], meta["width"], 2 * meta["width"], has_norm=True)
    algorithm = fedcp(meta["lam"], meta["tau"], **clients.training)
    algorithm = replace(algorithm, adapt=lambda model: model, aggregator=mean(by_samples(case)))
    model = _with_noise(clients, meta["tau"], gate)
    data = [_noisy_data(case, clients, number) for number in range(len(case["selected"]))]
    history = clients.run(algorithm, data=data, model=model)
    yield from _compare(case, history, "_sent")
    # Where nobody comes back with an old head and gate, the release differs in the context alone.
    contexts = jnp.asarray(np.concatenate([case["context0"][None], case["contexts"][:-1]]))

    def released(problem, view, key):
        return view.start | {"condition": {"context": contexts[view.received.round, view.client]}}

    history = clients.run(replace(algorithm, start=released), data=data, model=model)
    is_whole = case["selected"].shape[1] == len(clients.counts)
    rounds = len(case["selected"]) if is_whole else 1
    yield from _compare(case, history, "", rounds)
    sent = history.stack_sent(lambda params: flatten_layer(params["body"]))[:rounds]
    yield case.compare("base_local", sent, part=lambda array: array[:rounds])
    for name in ("heads_g", "css"):
        case.excuse(name, STALE)
    z, _ = first_batch(case, clients)
    masks = gate_shares(gate, contexts[0, case["selected"][0, 0]], z, case["gumbel"][0, 0, 0], meta["tau"])
    yield case.compare("first_masks", masks)
    head = clients.leaves(case["w0"])["classifier"]
    logits = sum((z * masks[:, part]) @ head["kernel"] + head["bias"] for part in range(2))
    yield case.compare("first_logits", logits)
    yield case.compare("mmd", mean_discrepancy(case["mmd_x"], case["mmd_y"], jnp.ones(len(case["mmd_x"]))))


def _compare(case: Case, history: History, suffix: str, rounds: int | None = None):
    part = lambda array: array[:rounds]  # noqa: E731
    for name, layer in (("base", "body"), ("head_g", "classifier"), ("cs", "gate")):
        yield case.compare(f"{name}{suffix}", part(read_shared(history, layer)), part=part)
    heads = history.stack(lambda state: flatten_layer(state.clients.personal["params"]["personal_head"]))
    yield case.compare(f"heads{suffix}", part(heads), part=part)


def _with_noise(clients: StoredClients, tau: float, gate) -> Model:
    """The network with a gate whose inputs hold the noise of the step behind the features."""
    plain, (num_inputs, width) = clients.model, clients.shapes["body"]
    gated = with_gate(tau)(plain)

    def init(key, inputs):
        variables = gated.init(key, inputs[:, :num_inputs])
        return variables | {"params": variables["params"] | {"gate": gate}}

    def encode(variables, inputs, context):
        noise = inputs[:, num_inputs:].reshape(len(inputs), 2, width)
        own = with_gate(tau, lambda key, shape, dtype: noise)(plain)
        return own.encode(variables, inputs[:, :num_inputs], context)

    return gated._replace(init=init, encode=encode)


def _noisy_data(case: Case, clients: StoredClients, number: int) -> ClientData:
    """The examples of all steps of a round, one after the other, each with the noise of its step."""
    size, noise = clients.training["batch_size"], case["gumbel"][number]
    rows, labels, counts = [], [], []
    for client, count in enumerate(clients.counts):
        slots = np.flatnonzero(case["selected"][number] == client)
        steps = int(count) // size * case.meta["local_steps"]
        places = np.arange(steps * size) % (int(count) // size * size)
        own = noise[slots[0], :steps] if len(slots) else np.zeros((steps, *noise.shape[2:]))
        rows.append(np.concatenate([case["inputs"][client, places], own.reshape(steps * size, -1)], axis=1))
        labels.append(case["labels"][client, places])
        counts.append(steps * size)
    return client_data(np.concatenate(rows), np.concatenate(labels), counts)


# ---- GPFL ------------------------------------------------------------------------------------------------------------
@covers("gpfl", "*")
def class_conditions(case: Case):
    meta, clients = case.meta, StoredClients(case)
    meta.confirm(layer_norm_epsilon=1e-5)
    algorithm = gpfl(meta["lam"], meta["mu"], epochs=meta["local_steps"], **clients.training)
    algorithm = replace(algorithm, local_update=without_partial_batches(algorithm.local_update))
    width = meta["width"]
    first, second = np.split(case["cov0"], 2)
    valve = {
        "gamma": read_layer(first, width, width, has_norm=True),
        "beta": read_layer(second, width, width, has_norm=True),
    }

    def begin(state: State) -> State:
        added = {"valve": valve, "embedding": {"classes": jnp.asarray(case["gce0"])}}
        shared = {"params": state.server.shared["params"] | added}
        return state._replace(server=state.server._replace(shared=shared))

    history = clients.run(algorithm, begin)
    yield from _compare_valves(case, history, "_received")
    round = clients.round(algorithm)
    models = [own_models(round, state, clients.data) for state in history.states]
    for name in ("personal", "generic"):
        ours = np.stack([variables["condition"][name] for variables in models])
        yield case.compare(f"{name}_input_received", ours)
    # As released, with the stored inputs: zeros in the first round, and then those that followed the round before.
    personal, generic = (
        jnp.asarray(np.concatenate([np.zeros_like(case[name][:1]), case[name][:-1]]))
        for name in ("personal_input", "generic_input")
    )

    def released(problem, view, key):
        place = view.received.round, view.client
        return view.start | {"condition": {"personal": personal[place], "generic": generic[place]}}

    history = clients.run(replace(algorithm, start=released), begin)
    yield from _compare_valves(case, history, "")
    yield case.compare("base_local", history.stack_sent(lambda params: flatten_layer(params["body"])))
    yield case.compare("gce_local", history.stack_sent(lambda params: params["embedding"]["classes"]
                                                       .reshape(len(params["embedding"]["classes"]), -1)))  # fmt: skip
    yield case.compare("cov_local", history.stack_sent(lambda params: _flatten_valve(params["valve"])))
    z, labels = first_batch(case, clients)
    batch = apply_valve(valve, z, jnp.zeros(width))
    yield case.compare("first_batch_generic_features", batch)
    params = {"embedding": {"classes": jnp.asarray(case["gce0"])}}
    forward = forward_pass(batch, labels, params=params, view=client_view({"params": params}))
    forward = forward._replace(outputs=Outputs(batch, batch, {"generic": batch}))
    yield case.compare("first_batch_angle_loss", class_angles()(forward))
    yield case.compare("first_batch_magnitude_loss", class_distance(meta["lam"])(forward))


def _flatten_valve(valve):
    return jnp.concatenate([flatten_layer(valve[name]) for name in ("gamma", "beta")], axis=-1)


def _compare_valves(case: Case, history: History, suffix: str):
    yield case.compare(f"base{suffix}", read_shared(history, "body"))
    embedding = history.stack(lambda state: state.server.shared["params"]["embedding"]["classes"].ravel())
    yield case.compare(f"gce{suffix}", embedding)
    yield case.compare(
        f"cov{suffix}", history.stack(lambda state: _flatten_valve(state.server.shared["params"]["valve"]))
    )
    heads = history.stack(lambda state: flatten_layer(state.clients.personal["params"]["classifier"]))
    yield case.compare(f"heads{suffix}", heads)
