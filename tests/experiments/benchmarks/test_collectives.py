"""Collectives of compiled programs: their kinds and sizes, and the limit on sizes."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from experiments.benchmarks.collectives import GatheredStatesError, check_collectives, list_collectives

NUM_CLIENTS, COHORT, SIZE = 16, 2, 1000  # a state of SIZE numbers per client


def compile_collective(collective) -> str:
    mesh = Mesh(np.array(jax.devices()[:4]), ("clients",))
    rows = jax.ShapeDtypeStruct((NUM_CLIENTS, SIZE), jnp.float32, sharding=NamedSharding(mesh, P("clients")))
    spread = jax.shard_map(collective, mesh=mesh, in_specs=P("clients"), out_specs=P("clients"), check_vma=False)
    return jax.jit(spread).lower(rows).compile().as_text()


def gather(x):
    return jax.lax.all_gather(x, "clients", axis=1, tiled=True)


@pytest.mark.parametrize(
    ("kind", "collective", "num_bytes"),
    [
        ("all-reduce", lambda x: jax.lax.psum(x, "clients"), 16_000),
        ("reduce-scatter", lambda x: jax.lax.psum_scatter(x, "clients", scatter_dimension=1, tiled=True), 4_000),
        ("all-to-all", lambda x: jax.lax.all_to_all(x, "clients", 1, 0, tiled=True), 16_000),
        ("all-gather", gather, 64_000),
    ],
)
def test_collectives_have_the_bytes_of_their_results(kind, collective, num_bytes):
    assert list_collectives(compile_collective(collective)) == [(kind, num_bytes)]


# Asynchronous collectives as compilers for accelerators write them: all types but that of a sum include the operands.
ASYNCHRONOUS = """
  %gather = (f32[2,100]{1,0}, f32[8,100]{1,0}) all-gather-start(%x), dimensions={0}
  %gathered = f32[8,100]{1,0} all-gather-done(%gather)
  %exchange = ((f32[2,100]{1,0}), f32[2,100]{1,0}) all-to-all-start(%x), dimensions={0}
  %exchanged = f32[2,100]{1,0} all-to-all-done(%exchange)
  %reduce = (f32[2,100]{1,0}, f32[50]{0}) all-reduce-start(%x, %y), to_apply=%sum
  %reduced = (f32[2,100]{1,0}, f32[50]{0}) all-reduce-done(%reduce)
"""


def test_asynchronous_collectives_are_listed_once_with_the_bytes_of_their_results():
    expected = [("all-gather", 4 * 800), ("all-to-all", 4 * 200), ("all-reduce", 4 * 250)]
    assert list_collectives(ASYNCHRONOUS) == expected


def state(num_clients: int) -> SimpleNamespace:
    shared = {"w": jax.ShapeDtypeStruct((SIZE,), jnp.float32)}
    clients = {"w": jax.ShapeDtypeStruct((num_clients, SIZE), jnp.float32)}
    return SimpleNamespace(server=SimpleNamespace(shared=shared), clients=clients)


def test_gathering_the_states_of_all_clients_is_an_error():
    gathered = list_collectives(compile_collective(gather))
    with pytest.raises(GatheredStatesError, match=r"all-gather of 0\.064 MB"):
        check_collectives(gathered, state(NUM_CLIENTS), COHORT)
    check_collectives(gathered, state(2 * NUM_CLIENTS), COHORT)  # half of the states
    check_collectives(gathered, state(NUM_CLIENTS), NUM_CLIENTS)  # the states of the cohort, and that of all
