import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_het as fh
from fedjax_het._internal import decompositions

NAMES = ("cholesky", "eigh", "eigvalsh", "qr", "svd")


SOLVES = {"solve_lower": lambda lower: lower, "cho_solve": lambda lower: lower @ lower.swapaxes(-1, -2)}


@pytest.mark.parametrize("name", SOLVES)
def test_triangular_solves_are_of_one_matrix_at_a_time_and_have_gradients(name):
    rng, make = np.random.default_rng(2), SOLVES[name]
    lower, right = np.tril(rng.standard_normal((3, 4, 4))) + 4 * np.eye(4), rng.standard_normal((3, 4, 2))
    run = jax.jit(jax.vmap(getattr(decompositions, name)))
    assert set(re.findall(r'lapack_.*num_batch_dims = "(\d)"', run.lower(lower, right).as_text())) == {"0"}

    def gradients(solve):
        return jax.grad(lambda *both: jnp.sum(jnp.sin(solve(*both))), argnums=(0, 1))(lower, right)

    expected = gradients(lambda lower, right: jnp.linalg.solve(make(jnp.tril(lower)), right))
    ours = gradients(lambda lower, right: run(jnp.tril(lower), right))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), ours, expected)
    np.testing.assert_allclose(run(lower, right), np.linalg.solve(make(lower), right), rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_lapack_decomposes_the_matrices_of_a_batch_one_at_a_time(name):
    """A batch is distributed over the threads that such calls wait on, see the module."""
    matrices = np.random.default_rng(0).standard_normal((2, 3, 4, 4))
    matrices = matrices @ matrices.swapaxes(-1, -2) + np.eye(4)
    run = jax.jit(jax.vmap(jax.vmap(getattr(decompositions, name))))
    batches = re.findall(r'lapack_.*num_batch_dims = "(\d)"', run.lower(matrices).as_text())
    assert batches
    assert set(batches) == {"0"}
    jax.tree.map(np.testing.assert_allclose, tuple(run(matrices)), tuple(getattr(jnp.linalg, name)(matrices)))


@pytest.mark.extended
def test_gradients_of_cholesky_factors_are_those_of_jax():
    matrices = np.random.default_rng(1).standard_normal((3, 4, 4))

    def gradient(cholesky):
        return jax.vmap(jax.grad(lambda x: jnp.sum(jnp.sin(cholesky(x @ x.T + jnp.eye(4))))))(matrices)

    np.testing.assert_allclose(gradient(decompositions.cholesky), gradient(jnp.linalg.cholesky), rtol=1e-4, atol=1e-6)


def test_all_decompositions_are_those_of_the_module():
    folder = Path(fh.__file__).parent
    found = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if re.search(
            rf"(jnp|jax|scipy)\.linalg\.({'|'.join(NAMES)}|solve\b|inv|pinv|lstsq|cho_factor|cho_solve|solve_triangular)",
            path.read_text(),
        )
    }
    assert found == {"_internal/decompositions.py"}
