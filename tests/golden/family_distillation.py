"""FedDistill, FML and FedKD: clients of different widths, each in a federation of its own between exchanges."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import optax

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Algorithm, ReceiveView, StageView
from fedjax_het.algorithms import feddistill, fedkd, fml
from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.engine.round.program import make_round
from fedjax_het.server.summaries import class_weighted_mean
from fedjax_het.types import Broadcast, Model, Params, State
from fedjax_het.uplink import Stage
from fedjax_het.uplink._singular_values import count_kept, truncate
from tests.golden.cases import Case, covers, known
from tests.golden.networks import dense, network
from tests.golden.replay import client_data
from tests.views import server_view

LEAVES = {
    "l1.weight": ("body", "weight"),
    "l1.bias": ("body", "bias"),
    "l2.weight": ("classifier", "weight"),
    "l2.bias": ("classifier", "bias"),
}


def read_params(case: Case, prefix: str) -> Params:
    """The parameters of a network with features tanh(x W1^T + b1) and logits f W2^T + b2."""
    params: Params = {"body": {}, "classifier": {}}
    for name, (layer, leaf) in LEAVES.items():
        params[layer][leaf] = jnp.asarray(case[f"{prefix}{name}"])
    return params


def make_network(params: Params) -> Model:
    return network(
        {"params": params},
        lambda params, inputs: jnp.tanh(dense(params["body"], inputs)),
        lambda params, features: dense(params["classifier"], features),
    )


def compare_params(case: Case, prefix: str, params: Params):
    for name, (layer, leaf) in LEAVES.items():
        yield case.compare(f"{prefix}{name}", params[layer][leaf])


def check_widths(case: Case) -> None:
    """The stored widths are those of the clients' networks."""
    assert [case[f"in{i}__l1.bias"].size for i in range(len(case["width"]))] == case["width"].tolist()


class Client:
    """The only client of a federation, with the batches X[r, number], Y[r, number] in round r."""

    def __init__(self, case: Case, number: int, algorithm: Algorithm, model: Model):
        self.inputs, self.labels = case["X"][:, number], case["Y"][:, number]
        self._round = make_round(algorithm, model, 1)
        self._step = jax.jit(self._round.step_with_messages)
        self.state: State = self._round.init(make_key(0), self._data(0))

    def _data(self, round: int):
        inputs, labels = self.inputs[round], self.labels[round]
        return client_data(inputs.reshape(-1, inputs.shape[-1]), labels.reshape(-1), [labels.size])

    def train(self, round: int, **server):
        """Run a round in which the server has these fields; (the metrics, the client's upload)."""
        state = self.state._replace(server=self.state.server._replace(**server))
        self.state, metrics, said = self._step(state, self._data(round), make_key(0))
        return metrics, jax.tree.map(lambda leaf: leaf[0], said.uploads)

    @property
    def personal(self) -> Params:
        return jax.tree.map(lambda leaf: leaf[0], self.state.clients.personal["params"])


def settings_of(case: Case, **options) -> dict:
    return {"batch_size": case["Y"].shape[-1], "shuffle": False, **options}


# ---- FedDistill ------------------------------------------------------------------------------------------------------
@covers("feddistill", "rounds_*")
def feddistill_rounds(case: Case):
    summary = class_weighted_mean("uniform", outline="logits")
    num_rounds, num_clients, num_steps = case["Y"].shape[:3]
    num_classes = case["global_logits"].shape[-1]
    for prefix, form in (("", "clean"), ("released_", "released")):
        algorithm = feddistill(form=form, **settings_of(case, learning_rate=case.meta["lr"]))
        clients = [Client(case, i, algorithm, make_network(read_params(case, f"in{i}__"))) for i in range(num_clients)]
        published = {"means": jnp.zeros((num_classes, num_classes)), "is_known": jnp.zeros(num_classes, bool)}
        for round in range(num_rounds):
            results = [client.train(round, published={"logits": published}) for client in clients]
            reports = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(x.reports["logits"] for _, x in results))
            now = lambda stored, round=round: stored[round]  # noqa: E731
            local = known(reports["means"], reports["counts"] > 0)
            yield case.compare(f"{prefix}local_logits", local, part=now)
            published = summary.update(published, StackedUpdates(reports), server_view(num_clients))
            yield case.compare(f"{prefix}global_logits", known(**published), part=now)
            losses = lambda stored, round=round: stored[round].reshape(num_clients, num_steps).mean(axis=1)  # noqa: E731
            yield case.compare(f"{prefix}losses", [metrics.loss for metrics, _ in results], part=losses)
        for i, client in enumerate(clients):
            yield from compare_params(case, f"{prefix}out{i}__", client.personal)
            yield case.refute(f"x_wrong_htfllib_out{i}__l1.weight", client.personal["body"]["weight"])
    case.excuse_unread("x_wrong_*", "of an implementation whose networks are refuted")


# ---- FML -------------------------------------------------------------------------------------------------------------
@covers("fml", "rounds_*")
def fml_rounds(case: Case):
    check_widths(case)
    settings, common = case.meta, read_params(case, "meme_in__")
    settings.confirm(meme_width=common["body"]["bias"].shape[0])
    algorithm = fml(
        settings["alpha"],
        settings["beta"],
        meme=make_network(common),
        **settings_of(case, learning_rate=settings["lr"], momentum=settings["momentum"]),
    )
    num_rounds, num_clients = case["Y"].shape[:2]
    clients = [Client(case, i, algorithm, make_network(read_params(case, f"in{i}__"))) for i in range(num_clients)]
    for round in range(num_rounds):
        copies = []
        for i, client in enumerate(clients):
            client.train(round, shared={"params": {"common": common}})
            copies.append(client.state.server.shared["params"]["common"])
            yield from compare_params(case, f"r{round}_out{i}__", client.personal)
            yield from compare_params(case, f"r{round}_meme{i}__", copies[-1])
        common = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *copies)
        yield from compare_params(case, f"r{round}_meme__", common)
    is_alone = settings["alpha"] == settings["beta"] == 1  # without KL both are the same
    for name, (layer, leaf) in LEAVES.items():
        yield (case.compare if is_alone else case.refute)(f"x_wrong_htfllib_meme__{name}", common[layer][leaf])


# ---- FedKD -----------------------------------------------------------------------------------------------------------
@covers("fedkd", "svd_*")
def fedkd_decomposition(case: Case):
    matrix, energy = jnp.asarray(case["W"]), float(case["energy"])
    values = jnp.linalg.svd(matrix, compute_uv=False)
    yield case.compare("singular_values", values)
    yield case.compare("rank", count_kept(values, energy))
    yield case.compare("out", truncate(matrix, energy))
    if case.name.endswith("zero"):
        case.excuse("released*", "the zero matrix, which the code does not decompose")
        return
    is_rank_lost = int(case["released_rank"]) != int(case["rank"])
    check: Callable = case.refute if is_rank_lost else case.compare
    yield check("released_rank", count_kept(values, energy))
    yield check("released", truncate(matrix, energy))


def _send(stage: Stage, before: Params, after: Params, *, is_server: bool = False) -> Params:
    """What a stage makes of common parameters."""
    shared = {"params": {"common": before}}
    received = Broadcast(jnp.asarray(0), shared, {})
    update = {"params": {"common": jax.tree.map(jnp.subtract, after, before)}}
    if is_server:
        view = server_view(1)._replace(received=received)
        sent = stage.receive(update, ReceiveView(view, {}, (), None, 1, 1.0))[0]
    else:
        sent = stage.send(update, StageView(received, (), (), 0, 1, None, None)).update
    return jax.tree.map(jnp.add, before, sent["params"]["common"])


@covers("fedkd", "rounds_*")
def fedkd_rounds(case: Case):
    check_widths(case)
    settings, common = case.meta, read_params(case, "student_in__")
    settings.confirm(student_width=common["body"]["bias"].shape[0])
    rates = {"teacher": optax.sgd(settings["lr"]), "student": optax.sgd(settings["student_lr"])}

    def groups(params: Params) -> Params:
        return {name: jax.tree.map(lambda _, name=name: _group(name), leaves) for name, leaves in params.items()}

    def make(energy: float) -> Algorithm:
        return fedkd(
            energy,
            energy,
            student=make_network(read_params(case, "student_in__")),
            gradients="both",
            over_classes="mean",
            compressed="model",
            **settings_of(case, optimizer=optax.partition(rates, groups)),
        )

    num_rounds, num_clients = case["Y"].shape[:2]
    trained = replace(make(1.0), uplink=())  # the stage follows below
    clients = [Client(case, i, trained, make_network(read_params(case, f"in{i}__"))) for i in range(num_clients)]
    for i, client in enumerate(clients):
        personal = client.state.clients.personal
        personal["params"]["match"]["kernel"] = jnp.asarray(case[f"W_in{i}"].T)[None]
    for round in range(num_rounds):
        (stage,) = make(float(case["energy"][round])).uplink
        sent = []
        for i, client in enumerate(clients):
            client.train(round, shared={"params": {"common": common}})
            student = client.state.server.shared["params"]["common"]
            yield from compare_params(case, f"r{round}_teacher{i}__", client.personal)
            yield from compare_params(case, f"r{round}_student{i}__", student)
            yield case.compare(f"r{round}_W{i}", client.personal["match"]["kernel"].T)
            sent.append(_send(stage, common, student))
        mean = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *sent)
        yield from compare_params(case, f"r{round}_mean__", mean)
        common = _send(stage, common, mean, is_server=True)
        yield from compare_params(case, f"r{round}_sent__", common)


def _group(name: str) -> str:
    return "student" if name == "common" else "teacher"
