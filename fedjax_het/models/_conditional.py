"""Features that depend on the client: a gate between two heads (FedCP), and a valve with class embeddings (GPFL)."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.models._adaptations import split_off, vector_shapes
from fedjax_het.models._dense import apply_dense, init_dense
from fedjax_het.models._frozen import spare_leaves
from fedjax_het.models._personal_parts import dense_head
from fedjax_het.types import Array, Context, Key, Model, Named, Params, Variables
from fedjax_het.validation import Positive, validate_arguments

_EPSILON = 1e-5  # of the layer norms, as in PyTorch
_NOISE = 1 << 16  # does not collide with the small numbers that split a key


def _init_layer(key: Key, num_inputs: int, num_outputs: int, dtype: jnp.dtype) -> Params:
    layer = init_dense(key, num_inputs, num_outputs, dtype)
    return layer | {"scale": jnp.ones(num_outputs, dtype), "shift": jnp.zeros(num_outputs, dtype)}


def _normalize(layer: Params, x: Array) -> Array:
    """A layer norm over the last axis."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + _EPSILON) * layer["scale"] + layer["shift"]


# ---- a gate between two heads ----------------------------------------------------------------------------------------
@validate_arguments
def with_gate(
    temperature: Positive = 1.0, draw: Callable[[Key, tuple[int, ...], jnp.dtype], Array] = jax.random.gumbel
) -> Callable[[Model], Model]:
    """Divide every feature between a personal head and the classifier, with shares that depend on client and example.

        (a, 1 - a) = softmax((relu(norm(W (z u) + b)) + noise) / temperature),   u = context / |context|
        features (z a, z (1 - a)) [batch, 2 feature],   logits h(z a) + g(z (1 - a))

    g is params/classifier, h params/personal_head, which begins as a copy. Adds params/gate, whose outputs [batch, 2,
    feature] are the scores of both shares, and the leaf condition/context [feature], initially 0, which the start rule
    `starts.head_context` sets. The noise is Gumbel's in training, and 0 in evaluation. extras: "representation", z.

    Args:
        temperature: As above.
        draw: (key, shape, dtype) -> noise.

    Raises:
        InputError: Features are maps, or the classifier is not a dense layer.

    References:
        Zhang et al., FedCP: Separating Feature Information for Personalized Federated Learning via Conditional Policy,
        KDD 2023. arXiv:2307.01217; code TsingZ0/FedCP.
    """

    def adapt(model: Model) -> Model:
        def init(key: Key, inputs: Array) -> Variables:
            variables = model.init(key, inputs)
            head = dense_head("gate", variables)
            features, _ = vector_shapes("gate", model, variables, inputs)
            width, dtype = features.shape[-1], features.dtype
            gate = _init_layer(jax.random.fold_in(key, 1), width, 2 * width, dtype)
            params = {**variables["params"], "gate": gate, "personal_head": head}
            return variables | {"params": params, "condition": {"context": jnp.zeros(width, dtype)}}

        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            own, rest = split_off(variables, "gate", "personal_head")
            condition = rest.pop("condition")
            (features, extras), state = model.encode(rest, inputs, context)
            noise: Array | float = 0.0
            if context.is_training:
                shape = (features.shape[0], 2, features.shape[1])
                noise = draw(jax.random.fold_in(context.key, _NOISE), shape, features.dtype)
            shares = gate_shares(own["gate"], condition["context"], features, noise, temperature)
            divided = (features[:, None] * shares).reshape(len(features), -1)
            return (divided, extras | {"representation": features}), state | {"condition": condition}

        def classify(params: Params, features: Array) -> Array:
            own, common = jnp.split(features, 2, axis=-1)
            personal = params | {"classifier": params["personal_head"]}
            return model.classify(personal, own) + model.classify(params, common)

        def layers(inputs: Array) -> Mapping[str, type]:
            return {**model.layers(inputs), "gate": nn.Dense}

        spared = spare_leaves(model, "params/gate/*", "params/personal_head/*", "condition/*")
        return spared._replace(init=init, encode=encode, classify=classify, layers=layers)

    return adapt


def gate_shares(gate: Params, context: Array, features: Array, noise: Array | float, temperature: float) -> Array:
    """[batch, 2, feature]: the shares of features [batch, feature]; see `with_gate`."""
    squared = jnp.sum(jnp.square(context))
    direction = jnp.where(squared > 0, context / jnp.sqrt(jnp.where(squared > 0, squared, 1)), 0)
    scores = nn.relu(_normalize(gate, apply_dense(gate, features * direction)))
    return jax.nn.softmax((scores.reshape(len(features), 2, -1) + noise) / temperature, axis=1)


# ---- a valve with class embeddings -----------------------------------------------------------------------------------
def with_valve(model: Model) -> Model:
    """Scale and shift the features by functions of a vector of the client, and embed the classes among them.

        V(z, c) = relu(z (gamma(c) + 1) + beta(c)),   gamma(c), beta(c) = norm(relu(W c + b)), each with its own weights
        features V(z, c_personal);   extras: "generic", V(z, c_generic)

    Adds params/valve/{gamma,beta}, params/embedding/classes [class, feature], normal at first, and the leaves
    condition/personal and condition/generic [feature], initially 0, which the start rule `starts.class_conditions`
    sets.

    Raises:
        InputError: Features are maps.

    References:
        Zhang et al., GPFL: Simultaneously Learning Global and Personalized Feature Information for Personalized
        Federated Learning, ICCV 2023. arXiv:2308.10279; code TsingZ0/GPFL.
    """

    def init(key: Key, inputs: Array) -> Variables:
        variables = model.init(key, inputs)
        features, logits = vector_shapes("valve", model, variables, inputs)
        width, dtype = features.shape[-1], features.dtype
        gamma, beta, embedding = jax.random.split(jax.random.fold_in(key, 1), 3)
        valve = {
            "gamma": _init_layer(gamma, width, width, dtype),
            "beta": _init_layer(beta, width, width, dtype),
        }
        classes = jax.random.normal(embedding, (logits.shape[-1], width), dtype)
        params = {**variables["params"], "valve": valve, "embedding": {"classes": classes}}
        zeros = jnp.zeros(width, dtype)
        return variables | {"params": params, "condition": {"personal": zeros, "generic": zeros}}

    def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
        own, rest = split_off(variables, "valve", "embedding")
        condition = rest.pop("condition")
        (features, extras), state = model.encode(rest, inputs, context)
        personal, generic = (apply_valve(own["valve"], features, condition[name]) for name in ("personal", "generic"))
        return (personal, extras | {"generic": generic}), state | {"condition": condition}

    def layers(inputs: Array) -> Mapping[str, type]:
        return {**model.layers(inputs), "valve/gamma": nn.Dense, "valve/beta": nn.Dense}

    spared = spare_leaves(model, "params/valve/*", "params/embedding/*", "condition/*")
    return spared._replace(init=init, encode=encode, layers=layers)


def apply_valve(valve: Params, features: Array, condition: Array) -> Array:
    """[batch, feature]: V(z, c) for features z [batch, feature] and c [feature]; see `with_valve`."""
    gamma, beta = (
        _normalize(valve[name], nn.relu(apply_dense(valve[name], condition[None]))) for name in ("gamma", "beta")
    )
    return nn.relu(features * (gamma + 1) + beta)
