"""The choice of attackers: an exact number, a function of the seed and the ids alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het.attackers import check_attackers, choose_attackers, is_attacker
from fedjax_het.errors import InputError


@pytest.mark.extended
@pytest.mark.parametrize(
    "options", [{"fraction": 0.2}, {"fraction": 0.25, "seed": 3}, {"clients": (7, 2)}, {"fraction": 0.0}]
)
def test_inside_a_program_the_same_clients_attack_as_outside(options):
    for num_clients in (8, 50):
        ids = choose_attackers(num_clients, options)
        expected = 2 if "clients" in options else round(options["fraction"] * num_clients)
        assert len(ids) == expected and len(set(ids.tolist())) == expected
        inside = jax.jit(lambda clients, n=num_clients: is_attacker(clients, n, options))(jnp.arange(num_clients))
        np.testing.assert_array_equal(np.flatnonzero(inside), ids)
        is_chosen = jax.jit(lambda client, n=num_clients: is_attacker(client, n, options))
        assert is_chosen(jnp.array(2)) == (2 in ids)


def test_another_seed_chooses_others_and_a_larger_fraction_keeps_them():
    few, many = (set(choose_attackers(50, {"fraction": f}).tolist()) for f in (0.1, 0.4))
    assert few < many
    assert few != set(choose_attackers(50, {"fraction": 0.1, "seed": 1}).tolist())


def test_who_attacks_has_to_be_told_in_one_way():
    for options in ({}, {"fraction": 0.1, "clients": (1,)}):
        with pytest.raises(InputError, match="fraction: give the fraction of the clients"):
            check_attackers(options)
    with pytest.raises(InputError, match=r"clients: there is no client 8\. The 8 clients have the ids 0 to 7"):
        choose_attackers(8, {"clients": (1, 8)})
