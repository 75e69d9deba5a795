"""Low-rank adapters of single layers as in peft, and federated tuning with them."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from fedjax_het import models, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Algorithm
from fedjax_het.algorithms import (
    feddpa,
    fedexlora,
    fedit,
    fedsalora,
    ffalora,
    flexlora,
    flora,
    hetlora,
    lorafair,
    rolora,
)
from fedjax_het.client.low_rank import _at_own_rank, _cut_leaf
from fedjax_het.client.optimizers import local_optimizer
from fedjax_het.engine.round import server_step
from fedjax_het.engine.round.program import Round, make_round
from fedjax_het.problem import ForwardPass
from fedjax_het.server.aggregators import (
    mean,
    mean_by_product_norms,
    mean_with_corrected_b,
    mean_with_exact_products,
    merged_products,
)
from fedjax_het.types import Aggregate, Array, ClientData, Context, State
from tests.golden.cases import Case, Comparison, covers
from tests.golden.replay import client_data, fixed_cohort
from tests.golden.toy_leaves import ONE_BY_ONE, by_samples, run_rounds
from tests.views import server_view

Comparisons = Iterator[Comparison]


# ---- one layer -------------------------------------------------------------------------------------------------------
class Layer(nn.Module):
    """One dense layer without a head."""

    num_outputs: int
    use_bias: bool

    def setup(self):
        self.layer = nn.Dense(self.num_outputs, self.use_bias, param_dtype=jnp.float64)

    def encode(self, inputs, mask, is_training):
        return self.layer(inputs)

    def classify(self, features):
        return features


class OneLayer:
    """The adapted layer of a case; kernels and adapters are transposed there, except for the kernel of a Conv1D."""

    def __init__(self, case: Case, **options):
        kernel = case["W"] if case.meta.get("fan_in_fan_out") else case["W"].T
        self.base = {"kernel": kernel} | ({"bias": case["b"]} if "b" in case else {})
        self.adapter = {"lora_a": case["A"].T, "lora_b": case["B"].T}
        options |= {"rank": case.meta["r"], "alpha": case.meta["lora_alpha"], "train_head": False}
        self.model = models.lora(**options)(models.from_flax(Layer(kernel.shape[1], "b" in case)))

    def __call__(self, inputs, adapter=None, context=None) -> Array:
        layer = self.base | (self.adapter if adapter is None else adapter)
        context = context or models_context(len(inputs))
        return self.model.encode({"params": {"layer": layer}}, jnp.asarray(inputs), context)[0][0]

    def grad(self, inputs, cotangent, adapter=None):
        loss = lambda adapter: jnp.sum(self(inputs, adapter) * cotangent)  # noqa: E731
        return jax.grad(loss)(self.adapter if adapter is None else adapter)


def models_context(size: int, is_training: bool = False):
    return Context(jnp.ones(size), jnp.int32(0), make_key(0), is_training)


OPTIMIZERS: dict[str, Callable[[dict], optax.GradientTransformation]] = {
    "sgd": lambda given: local_optimizer(None, given["lr"], 0.0, 0.0),
    "sgd_momentum_decay": lambda given: local_optimizer(None, given["lr"], given["momentum"], given["weight_decay"]),
    "adam": lambda given: local_optimizer("adam", given["lr"], 0.0, given["weight_decay"]),
    "adamw": lambda given: optax.adamw(given["lr"], *given["betas"], given["eps"], weight_decay=given["weight_decay"]),
}


@covers("lora", "linear_*")
def dense_layers(case: Case) -> Comparisons:
    layer = OneLayer(case, rank_stabilized=case.meta["use_rslora"])
    yield case.compare("y", layer(case["x"]))
    without = {"lora_a": layer.adapter["lora_a"], "lora_b": np.zeros_like(layer.adapter["lora_b"])}
    yield case.compare("y_base", layer(case["x"], without))
    grads = layer.grad(case["x"], case["cotangent"])
    yield case.compare("grad_A", grads["lora_a"].T, scale=1.0)
    yield case.compare("grad_B", grads["lora_b"].T)
    scale = models.lora_scale(case.meta["r"], case.meta["lora_alpha"], case.meta["use_rslora"])
    yield case.compare("scaling", scale)
    yield case.compare("delta", scale * (layer.adapter["lora_a"] @ layer.adapter["lora_b"]).T, scale=1.0)
    for name in case.matching("x_wrong_*"):
        if np.any(case["B"]) and not np.allclose(case[name], case["y"]):
            yield case.refute(name, layer(case["x"]))
    case.excuse_unread("x_wrong_*", "equal to the right result here")
    for name, given in case.meta["optimizers"].items():
        yield from _compare_steps(case, layer, name, OPTIMIZERS[name](dict(given)))


def _compare_steps(case: Case, layer: OneLayer, name: str, optimizer) -> Comparisons:
    adapter, inputs, cotangents = layer.adapter, case["step_x"], case["step_cotangent"]
    state, taken = optimizer.init(adapter), []

    def loss(adapter, inputs, cotangent):
        y = layer(inputs, adapter)
        return 0.5 * jnp.mean(y**2) + jnp.sum(y * cotangent) / len(inputs)

    @jax.jit
    def step(adapter, state, inputs, cotangent):
        updates, state = optimizer.update(jax.grad(loss)(adapter, inputs, cotangent), state, adapter)
        return optax.apply_updates(adapter, updates), state

    for pair in zip(inputs, cotangents, strict=True):
        adapter, state = step(jax.tree.map(jnp.asarray, adapter), state, *pair)
        taken.append(adapter)
    for ours, theirs in (("lora_a", "A"), ("lora_b", "B")):
        yield case.compare(f"{name}_{theirs}", np.stack([np.asarray(adapter[ours]).T for adapter in taken]))


@covers("lora", "conv1d_*")
def transposed_layers(case: Case) -> Comparisons:
    layer = OneLayer(case)
    yield case.compare("y", layer(case["x"]))
    delta = (
        models.lora_scale(case.meta["r"], case.meta["lora_alpha"]) * layer.adapter["lora_a"] @ layer.adapter["lora_b"]
    )
    yield case.compare("delta", delta)
    yield case.compare("merged", case["W"] + delta)


@covers("lora", "dropout_*")
def dropped_inputs(case: Case) -> Comparisons:
    """The mask is given; ours would be different."""
    layer, rate = OneLayer(case), case.meta["lora_dropout"]
    kept = case["keep"]
    drop = lambda key, p, shape: jnp.asarray(kept, bool)  # noqa: E731
    original, jax.random.bernoulli = jax.random.bernoulli, drop
    try:
        layer.model = models.lora(case.meta["r"], case.meta["lora_alpha"], dropout=rate, train_head=False)(
            models.from_flax(Layer(case["W"].shape[0], "b" in case))
        )
        context = models_context(len(case["x"]), True)
        y = layer(case["x"], context=context)
        grads = jax.grad(lambda a: jnp.sum(layer(case["x"], a, context) * case["cotangent"]))(layer.adapter)
    finally:
        jax.random.bernoulli = original
    yield case.compare("y_train", y)
    yield case.compare("y_eval", layer(case["x"]))
    yield case.compare("grad_A", grads["lora_a"].T)
    yield case.compare("grad_B", grads["lora_b"].T)
    yield case.refute("x_wrong_after_A", y)


# ---- aggregation -----------------------------------------------------------------------------------------------------
LAYERS = ("q", "v", "sq")


class Adapters:
    """Adapters of several layers and clients, as updates of a server whose own are zero."""

    def __init__(self, case: Case):
        self.case, self.counts = case, case["n_samples"]
        case.meta.confirm(scaling="alpha / r")
        self.scale = case.meta["alpha"] / self.a("q").shape[-1]

    def a(self, layer: str) -> np.ndarray:
        """[client, in, largest rank]."""
        case = self.case
        if f"A0/{layer}" in case:
            return np.stack([case[f"A0/{layer}"].T] * len(self.counts))
        return self._padded(f"A/{layer}", 0).swapaxes(1, 2)

    def b(self, layer: str) -> np.ndarray:
        """[client, largest rank, out]."""
        return self._padded(f"B/{layer}", 1).swapaxes(1, 2)

    def _padded(self, name: str, axis: int) -> np.ndarray:
        if name in self.case:
            return self.case[name]
        max_rank = int(self.case["ranks"].max())
        matrices = [self.case[f"{name}/{client}"] for client in range(len(self.counts))]
        pads = [[(0, max_rank - x.shape[axis] if index == axis else 0) for index in range(2)] for x in matrices]
        return np.stack([np.pad(x, pad) for x, pad in zip(matrices, pads, strict=True)])

    def kernel(self, layer: str) -> np.ndarray:
        return self.case[f"W/{layer}"].T

    def aggregate(self, aggregator, counts=None, **given) -> Aggregate:
        """The server's decision; `given` replaces the leaves "lora_a" or "lora_b" of clients."""
        updates = {
            layer: {"lora_a": given.get("a", self.a)(layer), "lora_b": given.get("b", self.b)(layer)}
            for layer in LAYERS
        }
        counts = self.counts if counts is None else counts
        updates = {"params": jax.tree.map(jnp.asarray, updates), "adapter": {"scale": jnp.zeros(len(counts))}}
        shared = jax.tree.map(lambda x: jnp.zeros_like(x[0]), updates)
        shared["adapter"]["scale"] = jnp.asarray(self.scale)
        view = server_view(len(counts), updates=updates, shared=shared, num_examples=counts)
        kernels = {"params": {layer: {"kernel": jnp.asarray(self.kernel(layer))} for layer in LAYERS}}
        view = view._replace(received=view.received._replace(base=kernels))
        return server_step.aggregate(aggregator, None, aggregator.init(shared, len(counts)), view)[0]

    def weight(self, layer: str, a, b, kernel=None) -> np.ndarray:
        kernel = self.kernel(layer) if kernel is None else kernel
        return (kernel + self.scale * (a @ b)).T


@covers("fedit", "agg_*")
def means(case: Case) -> Comparisons:
    adapters = Adapters(case)
    case.excuse("ranks", "all the same")
    out = {
        kind: adapters.aggregate(mean("samples"), counts).update["params"]
        for kind, counts in {"": None, "uniform_": np.ones(len(adapters.counts))}.items()
    }
    gaps = []
    for layer in LAYERS:
        for kind, ours in out.items():
            yield case.compare(f"{kind}A_out/{layer}", ours[layer]["lora_a"].T)
            yield case.compare(f"{kind}B_out/{layer}", ours[layer]["lora_b"].T, scale=1.0)
        a, b = out[""][layer]["lora_a"], out[""][layer]["lora_b"]
        yield case.compare(f"official_A_out/{layer}", a.T, 1e-6)
        yield case.compare(f"official_B_out/{layer}", b.T, 1e-6, scale=1.0)
        weight = adapters.weight(layer, a, b)
        yield case.compare(f"W_eff/{layer}", weight)
        exact = adapters.aggregate(mean_with_exact_products(adapters.scale)).base["params"][layer]["kernel"]
        yield case.compare(f"exact_W_eff/{layer}", adapters.weight(layer, a, b, adapters.kernel(layer) + exact))
        products = np.einsum(
            "n,nir,nro->io", adapters.counts / adapters.counts.sum(), adapters.a(layer), adapters.b(layer)
        )
        size = np.linalg.norm(products)
        gaps.append(np.linalg.norm(a @ b - products) / size if size else 0.0)
    yield case.compare("gap", np.array(gaps), scale=1.0)
    heads = case["head"] - case["head"][:1]
    weights = adapters.counts / adapters.counts.sum()
    yield case.compare("head_out", case["head"][0] + weights @ heads)
    case.excuse("x_wrong_*", "a misspelt variable")


@covers("ffalora", "agg_*")
def means_of_b(case: Case) -> Comparisons:
    adapters = Adapters(case)
    for kind, counts in {"": None, "uniform_": np.ones(len(adapters.counts))}.items():
        out = adapters.aggregate(mean("samples"), counts).update["params"]
        for layer in LAYERS:
            yield case.compare(f"{kind}B_out/{layer}", out[layer]["lora_b"].T, scale=1.0)
            if not kind:
                weight = adapters.weight(layer, adapters.a(layer)[0], out[layer]["lora_b"])
                yield case.compare(f"W_eff/{layer}", weight)
                yield case.compare(f"exact_W_eff/{layer}", weight)


@covers("fedsalora", "agg_*")
def means_of_a(case: Case) -> Comparisons:
    adapters = Adapters(case)
    out = adapters.aggregate(mean("samples")).update["params"]
    for layer in LAYERS:
        a = out[layer]["lora_a"]
        yield case.compare(f"A_out/{layer}", a.T)
        own = np.stack([adapters.weight(layer, a, b) for b in adapters.b(layer)])
        yield case.compare(f"W_eff/{layer}", own)
    case.excuse("x_wrong_*", "the roles of A and B are those of the rounds below")
    case.excuse("ranks", "all the same")


@covers("rolora", "agg_*")
def means_of_halves(case: Case) -> Comparisons:
    adapters = Adapters(case)
    same = lambda read: lambda layer: np.repeat(read(layer)[:1], len(adapters.counts), axis=0)  # noqa: E731
    b_update = adapters.aggregate(mean("samples"), a=same(adapters.a)).update["params"]
    a_update = adapters.aggregate(mean("samples"), b=same(adapters.b)).update["params"]
    for layer in LAYERS:
        yield case.compare(f"B_round_B_out/{layer}", b_update[layer]["lora_b"].T, scale=1.0)
        yield case.compare(f"A_round_A_out/{layer}", a_update[layer]["lora_a"].T)
        for name, out in (("B", b_update), ("A", a_update)):
            weight = adapters.weight(layer, out[layer]["lora_a"], out[layer]["lora_b"])
            yield case.compare(f"{name}_round_W_eff/{layer}", weight)
    case.excuse("ranks", "all the same")


@covers("fedexlora", "agg_*")
def exact_products(case: Case) -> Comparisons:
    adapters = Adapters(case)
    aggregator = mean_with_exact_products(adapters.scale)
    out = adapters.aggregate(aggregator)
    uniform = adapters.aggregate(aggregator, np.ones(len(adapters.counts)))
    for layer in LAYERS:
        own, residual = out.update["params"][layer], out.base["params"][layer]["kernel"]
        yield case.compare(f"A_out/{layer}", own["lora_a"].T)
        yield case.compare(f"B_out/{layer}", own["lora_b"].T, scale=1.0)
        yield case.compare(f"residual/{layer}", residual.T, scale=1.0)
        kernel = adapters.kernel(layer) + residual
        yield case.compare(f"W_out/{layer}", kernel.T)
        yield case.compare(f"W_eff/{layer}", adapters.weight(layer, own["lora_a"], own["lora_b"], kernel))
        theirs = uniform.update["params"][layer]
        yield case.compare(f"official_uniform_A_out/{layer}", theirs["lora_a"].T, 1e-6)
        yield case.compare(f"official_uniform_B_out/{layer}", theirs["lora_b"].T, 1e-6, scale=1.0)
        changed = adapters.kernel(layer) + uniform.base["params"][layer]["kernel"]
        yield case.compare(f"official_uniform_W_out/{layer}", changed.T, 1e-6)
    case.excuse("x_wrong_*", "a transposed or unscaled residual, which differs only where there is one")
    case.excuse("ranks", "all the same")


@covers("lorafair", "agg_*")
def corrected_products(case: Case) -> Comparisons:
    adapters = Adapters(case)
    case.meta.confirm(cosine_steps=300, cosine_lr=0.1)
    penalties = {"": case.meta["lam"], "_lam0.1": 0.1}
    ridge = {name: adapters.aggregate(mean_with_corrected_b(lam)).update["params"] for name, lam in penalties.items()}
    cosine = adapters.aggregate(mean_with_corrected_b(case.meta["lam"], "cosine")).update["params"]
    plain = adapters.aggregate(mean("samples")).update["params"]
    exact = adapters.aggregate(mean_with_exact_products(adapters.scale)).base["params"]
    for layer in LAYERS:
        a = plain[layer]["lora_a"]
        yield case.compare(f"A_out/{layer}", ridge[""][layer]["lora_a"].T)
        yield case.compare(f"B_mean/{layer}", plain[layer]["lora_b"].T, scale=1.0)
        for name, out in ridge.items():
            yield case.compare(f"B_out_ridge{name}/{layer}", out[layer]["lora_b"].T, scale=1.0)
        yield case.compare(f"W_eff_ridge/{layer}", adapters.weight(layer, a, ridge[""][layer]["lora_b"]))
        kernel = adapters.kernel(layer) + exact[layer]["kernel"]
        yield case.compare(f"exact_W_eff/{layer}", adapters.weight(layer, a, plain[layer]["lora_b"], kernel))
        if f"B_out_cosine/{layer}" in case:
            yield case.compare(f"B_out_cosine/{layer}", cosine[layer]["lora_b"].T, 1e-6)
    case.excuse("ranks", "all the same")


@covers("flora", "agg_*")
def merged(case: Case) -> Comparisons:
    adapters, ranks = Adapters(case), case["ranks"].tolist()
    base = adapters.aggregate(merged_products(ranks, case.meta["alpha"])).base["params"]
    for layer in LAYERS:
        delta = base[layer]["kernel"]
        yield case.compare(f"delta/{layer}", delta.T, scale=1.0)
        yield case.compare(f"W_out/{layer}", (adapters.kernel(layer) + delta).T)
        if len(ranks) > 1 and np.any(adapters.b(layer)):
            yield case.refute(f"x_wrong_both_weighted_delta/{layer}", delta.T)
            yield case.refute(f"x_wrong_alpha_over_total_rank_delta/{layer}", delta.T)
    case.excuse_unread("x_wrong_*", "equal to the right result here")
    case.excuse("*stack_*", "the stack of factors is never formed")


@covers("flexlora", "agg_*")
def decomposed(case: Case) -> Comparisons:
    adapters, ranks = Adapters(case), case["ranks"].tolist()
    for prefix, alpha, tolerance in (("", case.meta["alpha"], None), ("official_alpha16_", 16.0, 1e-5)):
        adapters.scale = alpha / max(ranks)
        aggregate = adapters.aggregate(merged_products(ranks, alpha, decompose=True))
        for layer in LAYERS:
            own = aggregate.update["params"][layer]
            a, b = np.asarray(own["lora_a"]), adapters.scale * np.asarray(own["lora_b"])
            for client, rank in enumerate(ranks):
                product = (a[:, :rank] @ b[:rank]).T
                yield case.compare(f"{prefix}product/{layer}/{client}", product, tolerance, scale=1.0)
            if not prefix:
                sizes = np.linalg.norm(b, axis=1)
                first = lambda x, num=len(sizes): np.pad(x, (0, num))[:num]  # noqa: E731
                yield case.compare(f"singular_values/{layer}", sizes, part=first, scale=1.0)
    case.excuse("*mean/*", "the mean itself is never formed; its approximations are")
    case.excuse("A_out/*", "up to signs")
    case.excuse("B_out/*", "up to signs")
    case.excuse("x_wrong_svd_*", "an approximation of the product of the means")


@covers("hetlora", "agg_*")
def weighted_by_norms(case: Case) -> Comparisons:
    adapters, ranks = Adapters(case), case["ranks"]
    rules = {"": mean_by_product_norms(), "total_": mean_by_product_norms("model"), "samples_": mean("samples")}
    decided = {kind: adapters.aggregate(rule).update["params"] for kind, rule in rules.items()}
    decided["uniform_"] = adapters.aggregate(mean("samples"), np.ones(len(ranks))).update["params"]
    sizes = [np.linalg.norm(adapters.a(layer) @ adapters.b(layer), axis=(1, 2)) for layer in LAYERS]
    shares = lambda norms: norms / norms.sum() if norms.any() else np.full(len(norms), 1 / len(norms))  # noqa: E731
    for layer, size in zip(LAYERS, sizes, strict=True):
        for kind, own in decided.items():
            yield case.compare(f"{kind}A_out/{layer}", own[layer]["lora_a"].T)
            yield case.compare(f"{kind}B_out/{layer}", own[layer]["lora_b"].T, scale=1.0)
        expected = np.einsum("n,nir->ri", case[f"weights/{layer}"], adapters.a(layer))
        yield case.compare(f"A_out/{layer}", expected)
        yield case.compare(f"weights/{layer}", shares(size))
        for leaf, name in (("A", "lora_a"), ("B", "lora_b")):
            for client in range(len(ranks)):
                if f"{leaf}_back/{layer}/{client}" in case:
                    sent = np.asarray(_cut_leaf(name, decided[""][layer][name], ranks[client])).T
                    first = lambda x, like=sent: np.pad(x, [(0, a - b) for a, b in zip(like.shape, x.shape)])  # noqa: E731, B905
                    yield case.compare(f"{leaf}_back/{layer}/{client}", sent, part=first, scale=1.0)
    yield case.compare("weights_total", shares(sum(sizes)))
    case.excuse("alt_row_renormalised_*", "zeros beyond a client's rank count in the mean")


# ---- rounds ----------------------------------------------------------------------------------------------------------
SIZES = {"q": (5, 4), "v": (6, 3)}  # inputs and outputs


class Vector(nn.Module):
    @nn.compact
    def __call__(self):
        return self.param("head", nn.initializers.zeros, (3,))


class EffectiveWeights(nn.Module):
    """Two layers whose outputs for the unit vectors, their effective weights, are the features."""

    def setup(self):
        self.q, self.v = (nn.Dense(size[1], use_bias=False, param_dtype=float) for size in SIZES.values())
        self.classifier = Vector()

    def encode(self, inputs, mask, is_training):
        return jnp.concatenate([layer(jnp.eye(SIZES[name][0])).ravel() for name, layer in self.named()])[None]

    def named(self):
        return (("q", self.q), ("v", self.v))

    def classify(self, features):
        return self.classifier()[None]


class Tapes:
    """Rounds whose gradient at an effective weight E is h_i E + tape, and so for the head."""

    def __init__(self, case: Case, build: Callable[..., Algorithm], **options):
        self.case, ranks = case, case["ranks"]
        given = dict(case.meta["optimizer"])
        kind = given.pop("optimizer")
        rate = given.pop("lr")
        optimizer = local_optimizer(None, rate, **given) if kind == "sgd" else optax.adamw(rate, **given)
        self.scale, self.has_scale = case.meta["alpha"] / int(ranks.max()), build in (flora, flexlora)
        rank = {"ranks": ranks.tolist()} if build in (flora, flexlora, hetlora) else {"rank": int(ranks[0])}
        options |= {**rank, "alpha": case.meta["alpha"], "optimizer": optimizer}
        algorithm = build(weighting=by_samples(case), **options, **ONE_BY_ONE)
        adapt = algorithm.adapt
        if build is flora:
            algorithm = replace(algorithm, start=self.start_from_stored)
        algorithm = replace(
            algorithm,
            objective=(self.objective, *algorithm.objective[1:]),
            adapt=lambda model: adapt(model)._replace(init=self.start),
        )
        size = case["selected"].shape[1]
        round = make_round(
            algorithm, models.from_flax(EffectiveWeights()), len(case["h"]), participation=fixed_cohort(range(size))
        )
        data = list(self.data())
        self.states = run_rounds(round, data, case["selected"], self.first_state(round, data[0]))

    def first_state(self, round: Round, data: ClientData) -> State:
        return round.init(make_key(0), data)

    def start(self, key, inputs):
        layers = {
            name: {
                "kernel": self.case[f"W0/{name}"].T,
                "lora_a": self.case[f"A0/{name}"].T,
                "lora_b": np.zeros((self.case[f"A0/{name}"].shape[0], outputs)),
            }
            for name, (_, outputs) in SIZES.items()
        }
        params = jax.tree.map(jnp.asarray, layers | {"classifier": {"head": self.case["head0"]}})
        return {"params": params} | ({"adapter": {"scale": jnp.asarray(self.scale)}} if self.has_scale else {})

    def start_from_stored(self, problem, view, key):
        """FLoRA's start rule, with the case's random numbers."""
        tables = {}
        for name in SIZES:
            drawn = self.case[f"A_init/{name}"]
            tables[name] = np.zeros((len(drawn), len(self.case["h"]), *drawn.shape[2:]))
            for number, cohort in enumerate(self.case["selected"]):
                tables[name][number, cohort] = drawn[number]

        def choose(path, leaf):
            if path.endswith("lora_b"):
                return jnp.zeros_like(leaf)
            return jnp.asarray(tables[path.split("/")[1]])[view.received.round, view.client].T

        ranks, alpha = self.case["ranks"].tolist(), self.case.meta["alpha"]
        return _at_own_rank(view, ranks, alpha, choose, is_rescaled=False)

    @staticmethod
    def objective(forward: ForwardPass) -> Array:
        tape, h = forward.batch.inputs[0, :-1], forward.batch.inputs[0, -1]
        point = jnp.concatenate([forward.outputs.features[0], forward.outputs.logits[0]])
        return jnp.sum(tape * point + h / 2 * point**2)

    def tapes(self) -> np.ndarray:
        """[round, slot, step, number]"""
        parts = [self.case[f"tapes/{name}"].swapaxes(-1, -2) for name in SIZES] + [self.case["head_tapes"]]
        return np.concatenate([part.reshape(*part.shape[:3], -1) for part in parts], axis=-1)

    def data(self):
        case, tapes = self.case, self.tapes()
        for number, cohort in enumerate(case["selected"]):
            tables = np.zeros((len(case["h"]), tapes.shape[2], tapes.shape[3] + 1))
            tables[..., -1] = case["h"][:, None]
            tables[cohort, :, :-1] = tapes[number]
            inputs = tables.reshape(-1, tables.shape[-1])
            yield client_data(inputs, np.zeros(len(inputs)), [tapes.shape[2]] * len(case["h"]))

    def read(self, path: str, where: Callable[[State], dict] = lambda state: state.server.shared) -> np.ndarray:
        """A leaf after each round, transposed as in PyTorch."""
        leaves = np.stack([np.asarray(tree.leaves_by_path(where(state))[f"params/{path}"]) for state in self.states])
        return leaves.swapaxes(-1, -2) if leaves.ndim > 2 and not path.startswith("classifier") else leaves


class DualTapes(Tapes):
    """Tapes of both adapters behind each other."""

    def start(self, key, inputs):
        variables = super().start(key, inputs)
        for name in SIZES:
            layer = variables["params"][name]
            drawn = jnp.asarray(self.case[f"local_A_init/{name}"][0].T)
            layer |= {"local_a": drawn, "local_b": jnp.zeros_like(layer["lora_b"])}
        return {**variables, "adapter": {"scale": jnp.asarray(self.scale), "local_scale": jnp.zeros(())}}

    def first_state(self, round: Round, data: ClientData) -> State:
        """The adapters of clients begin with other random A."""
        state = super().first_state(round, data)
        drawn = {name: {"local_a": self.case[f"local_A_init/{name}"].swapaxes(1, 2)} for name in SIZES}
        personal = tree.merge(state.clients.personal, jax.tree.map(jnp.asarray, {"params": drawn}))
        return state._replace(clients=state.clients._replace(personal=personal))

    def tapes(self) -> np.ndarray:
        parts = [self.case[f"local_tapes/{name}"].swapaxes(-1, -2) for name in SIZES]
        local = [part.reshape(*part.shape[:3], -1) for part in parts]
        return np.concatenate([super().tapes(), *local, np.zeros(self.case["head_tapes"].shape)], axis=-1)

    @staticmethod
    def objective(forward: ForwardPass) -> Array:
        tapes = jnp.split(forward.batch.inputs[0, :-1], 2)
        tape = jnp.where(forward.state["adapter"]["local_scale"] > 0, tapes[1], tapes[0])
        batch = forward.batch._replace(inputs=jnp.append(tape, forward.batch.inputs[0, -1])[None])
        return Tapes.objective(forward._replace(batch=batch))


def own(state: State) -> dict:
    return state.clients.personal


def frozen(state: State) -> dict:
    return state.server.frozen


def base(state: State) -> dict:
    return state.server.base


@covers("fedit", "tape_*")
@covers("ffalora", "tape_*")
@covers("rolora", "tape_*")
@covers("fedexlora", "tape_*")
@covers("lorafair", "tape_*")
def rounds_with_shared_adapters(case: Case) -> Comparisons:
    recipe = {"fedit": fedit, "ffalora": ffalora, "rolora": rolora, "fedexlora": fedexlora, "lorafair": lorafair}
    options = {"penalty": case.meta["lam"]} if case.family == "lorafair" else {}
    tapes = Tapes(case, recipe[case.family], **options)
    yield case.compare("head", tapes.read("classifier/head"))
    for name in SIZES:
        a = tapes.read(f"{name}/lora_a", frozen if case.family == "ffalora" else lambda state: state.server.shared)
        b = tapes.read(f"{name}/lora_b")
        yield case.compare(f"A/{name}", a)
        yield case.compare(f"B/{name}", b)
        kernel = tapes.read(f"{name}/kernel", base if case.family == "fedexlora" else frozen)
        if f"W/{name}" in case:
            yield case.compare(f"W/{name}", kernel)
        yield case.compare(f"W_eff/{name}", kernel + tapes.scale * b @ a)


@covers("flora", "tape_*")
def rounds_with_fresh_adapters(case: Case) -> Comparisons:
    tapes = Tapes(case, flora)
    yield case.compare("head", tapes.read("classifier/head"))
    for name in SIZES:
        kernel, b = tapes.read(f"{name}/kernel", base), tapes.read(f"{name}/lora_b")
        yield case.compare(f"W/{name}", kernel)
        yield case.compare(f"W_eff/{name}", kernel + tapes.scale * b @ tapes.read(f"{name}/lora_a"))


@covers("flexlora", "tape_*")
def rounds_with_decomposed_adapters(case: Case) -> Comparisons:
    tapes, rank = Tapes(case, flexlora), int(case["ranks"].max())
    yield case.compare("head", tapes.read("classifier/head"))

    def cut(products: np.ndarray) -> np.ndarray:
        u, sizes, v = np.linalg.svd(products)
        return (u[..., :rank] * sizes[..., None, :rank]) @ v[..., :rank, :]

    for name in SIZES:
        product = tapes.scale * tapes.read(f"{name}/lora_b") @ tapes.read(f"{name}/lora_a")
        yield case.compare(f"mean/{name}", product, part=cut)
        kernel = case[f"W0/{name}"]
        yield case.compare(f"W_eff/{name}", kernel + product, part=lambda w, kernel=kernel: kernel + cut(w - kernel))
    case.excuse("client_W_eff/*", "what clients start from in the next round follows from the approximation")


@covers("hetlora", "tape_*")
def rounds_with_pruned_adapters(case: Case) -> Comparisons:
    given = {"penalty": case.meta["lam"], "decay": case.meta["gamma"]} if case.meta["prune"] else {"decay": None}
    case.meta.confirm(**({} if case.meta["prune"] else {"lam": 0.0, "gamma": 0.5}))
    tapes = Tapes(case, hetlora, **given)
    yield case.compare("head", tapes.read("classifier/head"))
    for name in SIZES:
        a, b = tapes.read(f"{name}/lora_a"), tapes.read(f"{name}/lora_b")
        yield case.compare(f"A/{name}", a)
        yield case.compare(f"B/{name}", b)
        yield case.compare(f"W_eff/{name}", case[f"W0/{name}"] + tapes.scale * b @ a)
    ranks = np.broadcast_to(case["ranks"], case["ranks_after"].shape)
    if case.meta["prune"]:
        ranks = np.minimum(ranks, np.stack([state.clients.memory["rank"] for state in tapes.states]))
    yield case.compare("ranks_after", ranks)
    case.excuse("weights/*", "the means above are of these weights")


@covers("feddpa", "tape_*")
def rounds_with_two_adapters(case: Case) -> Comparisons:
    mix = case.meta["mix"]
    tapes = DualTapes(case, feddpa, mix=mix)
    yield case.compare("head", tapes.read("classifier/head"))
    for name in SIZES:
        kernel, a, b = case[f"W0/{name}"], tapes.read(f"{name}/lora_a"), tapes.read(f"{name}/lora_b")
        own_a, own_b = tapes.read(f"{name}/local_a", own), tapes.read(f"{name}/local_b", own)
        yield case.compare(f"A/{name}", a)
        yield case.compare(f"B/{name}", b)
        yield case.compare(f"W_eff/{name}", kernel + tapes.scale * b @ a)
        yield case.compare(f"local_A/{name}", own_a)
        yield case.compare(f"local_B/{name}", own_b)
        mixed = kernel + tapes.scale * ((1 - mix) * (b @ a)[:, None] + mix * own_b @ own_a)
        yield case.compare(f"personal_W_eff/{name}", mixed)


@covers("fedsalora", "tape_*")
def rounds_with_own_adapters(case: Case) -> Comparisons:
    has_own_head = case.meta["own_head"]
    tapes = Tapes(case, fedsalora, own_head=has_own_head)
    head, unused = ("own_head", "head") if has_own_head else ("head", "own_head")
    case.excuse(unused, "the head is of the other kind")
    yield case.compare(head, tapes.read("classifier/head", own if has_own_head else lambda state: state.server.shared))
    for name in SIZES:
        a, b = tapes.read(f"{name}/lora_a"), tapes.read(f"{name}/lora_b", own)
        yield case.compare(f"A/{name}", a)
        yield case.compare(f"own_B/{name}", b)
        yield case.compare(
            f"W_eff/{name}", tapes.read(f"{name}/kernel", frozen)[:, None] + tapes.scale * b @ a[:, None]
        )
