"""Networks of different architecture for groups of clients."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.errors import InputError
from fedjax_het.models._adaptations import split_off
from fedjax_het.models._dense import apply_dense
from fedjax_het.models._model import output_shapes
from fedjax_het.types import (
    Array,
    ClientGroups,
    Context,
    HostArray,
    Key,
    Leaf,
    LeafRule,
    Model,
    Named,
    Params,
    Variables,
)

_HEAD = "classifier"


def select_network(number: HostArray | int) -> Variables:
    """The variable that tells a grouped model which network to run."""
    return {"group": {"number": number}}


def grouped(networks: Sequence[Model], assignment: Sequence[int] | None = None) -> Model:
    """Give groups of clients networks of different architecture, in one program.

    Clients exchange what has the same shape for all: predictions (FedMD, FedDistill), prototypes (FedProto, FedTGP), a
    common network (FML), or the head. The leaves of network g are ``params/group_g/...``, and must be personal. The
    networks have heads of one shape, ``params/classifier``, that of the widest: features are padded with zeros to its
    width. Methods that compare features should be given networks with features of one width.

    If everyone takes part and clients are not spread over devices, every group is vectorized by itself. Otherwise all
    networks are computed for each client, of which one is used; with ``layout="chunked(1)"`` only that one is computed.
    Each client's state has room for all networks. The server's model is an ensemble: for each group the mean of the
    networks of its clients, with weights proportional to the numbers of clients.

    Args:
        networks: The networks, with dense heads for the same classes.
        assignment: The number of the network of each client (default None: client i has network i modulo their number).

    Returns:
        The model.

    Raises:
        InputError: There is no network, or the assignment has another number; when the model is initialized: features
            are not vectors, or a head is not a dense layer.
    """
    size = len(networks)
    if size == 0:
        raise InputError("networks: there are none. Give at least one.")
    if assignment is not None and not all(0 <= number < size for number in assignment):
        raise InputError(f"assignment: numbers of networks are 0 to {size - 1}, and it has others. Correct it.")

    groups = ClientGroups(size, tuple(assignment or range(size)), None if assignment is None else len(assignment))

    def init(key: Key, inputs: Array) -> Variables:
        whole: dict[str, dict] = {"params": {}}
        heads: list[Params] = []
        for number, network in enumerate(networks):
            variables = network.init(key, inputs)
            features, _ = output_shapes(network, variables, inputs)
            head, rest = split_off(variables, _HEAD)
            heads.append(head.get(_HEAD, {}))
            if heads[-1].keys() != {"kernel", "bias"} or features.ndim != 2:
                raise InputError(
                    f"networks.{number}: it needs features that are vectors, and a dense layer as classifier. Choose "
                    "another network."
                )
            for collection, leaves in rest.items():
                whole.setdefault(collection, {})[f"group_{number}"] = leaves
        if len(classes := {len(head["bias"]) for head in heads}) > 1:
            raise InputError(f"networks: they have heads for {sorted(classes)} classes. Build all for the same number.")
        whole["params"][_HEAD] = max(heads, key=lambda head: len(head["kernel"]))
        return whole | select_network(jnp.zeros((), jnp.int32))

    def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
        width = variables["params"][_HEAD]["kernel"].shape[0]

        def run(number: int, variables: Variables) -> tuple[tuple[Array, Named], Variables]:
            name = f"group_{number}"
            own = {collection: leaves[name] for collection, leaves in variables.items() if name in leaves}
            (features, extras), changed = networks[number].encode(own, inputs, context)
            state = {
                collection: {**leaves, name: changed[collection]} if collection in changed else leaves
                for collection, leaves in variables.items()
                if collection != "params"
            }
            return (jnp.pad(features, ((0, 0), (0, width - features.shape[1]))), extras), state

        number = variables["group"]["number"]
        if isinstance(number, int | np.integer):
            return run(int(number), variables)
        return jax.lax.switch(number, [lambda v, n=n: run(n, v) for n in range(size)], variables)

    def classify(params: Params, features: Array) -> Array:
        return apply_dense(params[_HEAD], features)

    def layers(inputs: Array) -> dict[str, type]:
        return {
            f"group_{number}/{path}" if path != _HEAD else path: layer
            for number, network in enumerate(networks)
            for path, layer in network.layers(inputs).items()
        }

    frozen, base = (
        tuple(_within(number, rule) for number, network in enumerate(networks) for rule in getattr(network, kind))
        for kind in ("frozen", "base")
    )
    return Model(init, encode, classify, layers, (_is_number, *frozen), base, groups=groups)


def _is_number(leaf: Leaf) -> bool:
    return leaf.path == "group/number"


def _within(number: int, rule: LeafRule) -> LeafRule:
    """A rule of one network, for its leaves in the whole."""
    prefix = f"/group_{number}/"
    return lambda leaf: prefix in leaf.path and rule(Leaf(leaf.path.replace(prefix, "/", 1), leaf.layer))
