"""Arithmetic on trees as one call: which arithmetic becomes a call, and the same numbers as XLA's."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from jax.sharding import PartitionSpec as P

from fedjax_het import tree
from fedjax_het.engine.parallel import arithmetic_call, tree_arithmetic
from fedjax_het.engine.parallel.arithmetic_call import explain_missing_kernel
from fedjax_het.engine.parallel.compilation import fuse_arithmetic, jit_program
from fedjax_het.engine.parallel.layout import AXIS, Layout, sharded

pytestmark = pytest.mark.skipif(explain_missing_kernel() is not None, reason=f"no kernel: {explain_missing_kernel()}")

RNG = np.random.default_rng(0)
SIZES = [(5,), (16,), (3, 7), (512,), (513,), (8, 129), (2000,)]  # of numbers, whose blocks have 512
OPERATIONS = {
    "sum": lambda a, b, s: a + b,
    "difference": lambda a, b, s: a - b,
    "product": lambda a, b, s: a * b * a,
    "quotient": lambda a, b, s: a / b,
    "maximum": lambda a, b, s: jnp.maximum(a, b),
    "minimum": lambda a, b, s: jnp.minimum(a, s * b),
    "negative": lambda a, b, s: -a,
    "root": lambda a, b, s: jnp.sqrt(s * s * b * b),
    "squares": lambda a, b, s: a**2 + jnp.square(b),
    "scalars": lambda a, b, s: (s - a) * s + b / s + 2.0,
    "numbers": lambda a, b, s: (0.1 - a) / 3 + jnp.float32(1e-8) * b,
    "choice": lambda a, b, s: jnp.where(s > 0, a, b + 1) - jnp.where(s < 0, a, 0),
    "two products": lambda a, b, s: s * a + 2 * b,
    "product used twice": lambda a, b, s: (s * a + b) * (s * a),
}


def draw(size=None) -> np.ndarray:
    return RNG.normal(size=size).astype(np.float32)


def draw_tree() -> list[np.ndarray]:
    return [draw(size) for size in SIZES]


def on_leaves(function):
    return lambda *trees: jax.tree.map(function, *trees)


def count_calls(function, *arguments, layout=Layout()) -> list[int]:
    """The numbers of results of the calls in the fused function."""
    found = []

    def visit(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "arithmetic":
                found.append(len(equation.outvars))
            for body in jaxprs_in_params(equation.params):
                visit(body)

    visit(jax.make_jaxpr(fuse_arithmetic(function, layout))(*arguments).jaxpr)
    return found


def check_equal(function, *arguments, tolerance=3e-7, layout=Layout()):
    wanted, ours = jax.jit(function)(*arguments), jax.jit(fuse_arithmetic(function, layout))(*arguments)
    for x, y in zip(jax.tree.leaves(wanted), jax.tree.leaves(ours), strict=True):
        np.testing.assert_allclose(y, x, rtol=tolerance, atol=tolerance * np.abs(x).max(initial=0))


@pytest.mark.parametrize("scalar", [0.7, -0.7])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_agree_with_xla(name, scalar):
    def function(a, b, s):
        return on_leaves(lambda x, y: OPERATIONS[name](x, y, s))(a, b)

    arguments = draw_tree(), draw_tree(), jnp.float32(scalar)
    assert count_calls(function, *arguments) == [len(SIZES)]
    check_equal(function, *arguments)


@pytest.mark.parametrize("function", [jnp.maximum, jnp.minimum, lambda a, b: a * b + 1, jnp.divide])
def test_special_numbers_agree_with_xla(function):
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -3e38], np.float32)
    a, b = (x.ravel() for x in np.meshgrid(special, special))
    for x, y in zip(
        *(jax.jit(f)([a, b], [b, a]) for f in (on_leaves(function), fuse_arithmetic(on_leaves(function), Layout()))),
        strict=True,
    ):
        np.testing.assert_array_equal(x, y)


def test_a_choice_ignores_what_it_does_not_choose():
    nans = [np.full(9, np.nan, np.float32)] * 2
    add = lambda total, new, flag: on_leaves(lambda x, y: x + 2 * jnp.where(flag, y, 0))(total, new)  # noqa: E731
    assert count_calls(add, [draw(9)] * 2, nans, True) == [2]
    for ours in jax.jit(fuse_arithmetic(add, Layout()))([np.ones(9, np.float32)] * 2, nans, False):
        np.testing.assert_array_equal(ours, 1)


def with_while(step, state):
    return jax.lax.fori_loop(0, jnp.int32(3), lambda _, own: step(own), state)


def with_scan(step, state):
    return jax.lax.scan(lambda own, rate: (step(own), rate + 1), state, jnp.arange(3.0))[0]


@pytest.mark.parametrize("loop", [with_while, with_scan])
def test_a_loop_reuses_the_memory_of_its_state(loop):
    def descend(params, gradient, rate):
        return loop(lambda p: tree.add(p, tree.scale(-rate, gradient)), params)

    arguments = draw_tree(), draw_tree(), jnp.float32(0.1)
    check_equal(descend, *arguments)
    compiled = jax.jit(fuse_arithmetic(descend, Layout())).lower(*arguments).compile()
    (call,) = [line for line in compiled.as_text().splitlines() if "custom-call(" in line]
    assert call.count("output_to_operand_aliasing") == 1


@pytest.mark.parametrize("is_quick", [False, True])
def test_programs_that_run_often_have_calls(is_quick):
    program = jit_program(tree.add, Layout(), is_quick=is_quick)
    assert ("arithmetic" in program.lower(draw_tree(), draw_tree()).as_text()) == (not is_quick)


def test_a_state_that_is_read_after_its_update_is_not_overwritten():
    def swap(params):
        return jax.lax.fori_loop(0, 5, lambda _, p: [p[0] + p[1], p[1] - 2 * p[0]], params)

    check_equal(swap, [draw(700), draw(700)], tolerance=1e-5)


def test_arithmetic_around_other_operations_is_several_calls():
    def function(a, b, matrix):
        first = on_leaves(lambda x, y: x + 2 * y)(a, b)
        product = [matrix @ x for x in first]
        return on_leaves(lambda x, y: x - y)(product, first)

    arguments = [draw(30)] * 2, [draw(30)] * 2, draw((30, 30))
    assert count_calls(function, *arguments) == [2, 2]
    check_equal(function, *arguments, tolerance=1e-5)


def test_calls_inside_calls_are_inlined():
    inner = jax.jit(lambda x, flag: -jnp.where(flag, x, 2 * x) + 1)
    outer = jax.jit(lambda x, flag: inner(x, flag) * inner(x + 1, ~flag) - inner(inner(x, flag), flag))
    arguments = [draw(9), draw(9)], jnp.array(True)
    function = lambda leaves, flag: [outer(x, flag) for x in leaves]  # noqa: E731
    assert count_calls(function, *arguments) == [2]
    check_equal(function, *arguments)


def test_prints_stay_in_order(capfd):
    def function(a, b):
        first = tree.add(a, b)
        jax.debug.print("first {}", first[0][0], ordered=True)
        jax.debug.print("second {}", a[0][0], ordered=True)
        return tree.scale(2.0, first)

    jax.block_until_ready(
        jax.jit(fuse_arithmetic(function, Layout()))([np.ones(9, np.float32)] * 2, [np.ones(9, np.float32)] * 2)
    )
    jax.effects_barrier()
    assert capfd.readouterr().out == "first 2.0\nsecond 1.0\n"


@pytest.mark.parametrize(
    "function",
    {
        "one result": lambda a, b: a[0] + b[0],
        "before a sum": lambda a, b: [jnp.sum(x + y) for x, y in zip(a, b, strict=True)],
        "behind a slice": lambda a, b: [x[1:] + y[:-1] for x, y in zip(a, b, strict=True)],
        "rows": lambda a, b: [x + y[:1].T * jnp.arange(6.0) for x, y in zip(a, b, strict=True)],
        "another operation": lambda a, b: [jnp.exp(x + y) for x, y in zip(a, b, strict=True)],
        "bfloat16": lambda a, b: [x.astype(jnp.bfloat16) + 1 for x in a + b],
        "integers": lambda a, b: [x.astype(int) + 1 for x in a + b],
        "flags": lambda a, b: [jnp.where(x > 0, x, y) for x, y in zip(a, b, strict=True)],
    }.values(),
)
def test_other_arithmetic_is_left_to_xla(function):
    assert count_calls(function, [draw((6, 6))] * 2, [draw((6, 6))] * 2) == []


def test_large_arrays_are_left_to_xla_without_a_mesh(monkeypatch):
    monkeypatch.setattr(tree_arithmetic, "_MAX_SIZE", 15)
    assert count_calls(tree.add, [draw(15)] * 2, [draw(15)] * 2) == [2]
    assert count_calls(tree.add, [draw(16)] * 2, [draw(16)] * 2) == []
    assert count_calls(tree.add, [draw(16)] * 2, [draw(16)] * 2, layout=sharded(1)) == [2]


def test_arrays_that_are_divided_among_devices_are_left_to_xla():
    layout = sharded(2)

    def function(clients, server):
        own = lambda clients, server: (tree.add(clients, server), jax.lax.psum(tree.scale(2, clients), AXIS))  # noqa: E731
        moved, total = jax.shard_map(
            own, mesh=layout.mesh, in_specs=(P(AXIS), P()), out_specs=(P(AXIS), P()), check_vma=False
        )(tree.scale(3.0, clients), server)
        return tree.scale(0.5, moved), tree.scale(0.5, total), tree.add(server, total)

    arguments = [draw((8, 5))] * 2, [draw((4, 5))] * 2
    assert Counter(count_calls(function, *arguments, layout=layout)) == Counter([2, 2, 4])
    check_equal(function, *arguments, layout=layout)


def test_without_a_kernel_the_function_is_unchanged(monkeypatch):
    monkeypatch.setattr(arithmetic_call, "explain_missing_kernel", lambda: "it was not compiled")
    assert count_calls(tree.add, draw_tree(), draw_tree()) == []
