"""FedBN: the leaves that clients keep when models are averaged and sent again."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util

from fedjax_het.algorithm import Algorithm
from fedjax_het.algorithms import fedavg, fedbn
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import stateless
from fedjax_het.types import Variables
from tests.golden.cases import Case, covers
from tests.golden.replay import run_round_with

STATISTICS = {"running_mean", "running_var"}
FLOAT32 = 2e-6  # the authors' code accumulates in float32


@covers("fedbn", "fedbn_*")
def norms_stay(case: Case):
    """Compared with the numbers by the layer's class, and with the released ones if names agree with it."""
    norms = {key.rsplit(".", 1)[0] for key in case["bn_keys_by_type"].tolist()}
    for layer in {name.rsplit(".", 1)[0] for name in case["names"].tolist()}:
        if (layer in norms) != ("bn" in layer):
            for place in ("server", "clients"):
                reason = "the released code tells norms by 'bn' in their names, and is wrong about this layer"
                case.excuse(f"{place}_out/{layer}.*", reason)
    yield from _communication(case, fedbn(batch_size=2), norms, {"": FLOAT32, "bytype_": 1e-12})


@covers("fedbn", "fedavg_*")
def nothing_stays(case: Case):
    yield from _communication(case, fedavg(batch_size=2), set(), {"": FLOAT32})


def _communication(case: Case, algorithm: Algorithm, norms: set[str], tolerances: dict[str, float]):
    """One round in which client i 'trains' to clients_in[i]; then the models of server and clients."""
    names = [name for name in case["names"].tolist() if not name.endswith("num_batches_tracked")]
    case.excuse("*num_batches_tracked*", "we keep no batch counter")
    weights = jnp.asarray(case["client_weights"])
    state, _ = run_round_with(
        replace(algorithm, aggregator=mean(stateless(lambda view: weights))),
        received=_variables({name: case[f"server_in/{name}"] for name in names}),
        trained=_variables({name: case[f"clients_in/{name}"] for name in names}),
        layers=dict.fromkeys(norms, nn.BatchNorm),
    )
    shared = traverse_util.flatten_dict(state.server.shared, sep="/")
    personal = traverse_util.flatten_dict(state.clients.personal, sep="/")
    for name in names:
        path, scale = _path(name), float(np.abs(case[f"clients_in/{name}"]).max())
        for prefix, tolerance in tolerances.items():
            client, server = f"{prefix}clients_out/{name}", f"{prefix}server_out/{name}"
            if client in case.excused:
                continue
            if path in shared:
                yield case.compare(server, shared[path], tolerance, scale)
                everyones = np.broadcast_to(shared[path], case[client].shape)
                yield case.compare(client, everyones, tolerance, scale)
            else:
                yield case.compare(client, personal[path], tolerance, scale)
                case.excuse(server, "personal leaves do not lie on the server")


def _path(name: str) -> str:
    layer, entry = name.rsplit(".", 1)
    return f"{'batch_stats' if entry in STATISTICS else 'params'}/{layer}/{entry}"


def _variables(values: dict[str, np.ndarray]) -> Variables:
    flat = {_path(name): jnp.asarray(value) for name, value in values.items()}
    return traverse_util.unflatten_dict(flat, sep="/")
