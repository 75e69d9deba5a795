"""Costs counted from the text of compiled programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from experiments.benchmarks.hlo import UnknownTripCountError, count_costs

MATRIX = jax.ShapeDtypeStruct((64, 64), jnp.float32)
PRODUCT = 2 * 64**3  # FLOP


def compiled_text(function, *shapes) -> str:
    return jax.jit(function).lower(*shapes).compile().as_text()


def multiply_repeatedly(matrix, count):
    return jax.lax.fori_loop(0, count, lambda i, x: jnp.tanh(x @ matrix), matrix)


def test_a_loop_of_known_length_counts_as_often_as_it_runs():
    assert count_costs(compiled_text(lambda x: multiply_repeatedly(x, 7), MATRIX), {}).flop == 7 * PRODUCT


# As a TPU's compiler writes a loop of seven iterations whose counter is an int64.
LOOP = """
%below (state: (u32[], u32[], f32[64,64])) -> pred[] {
  %state = (u32[], u32[], f32[64,64]{1,0}) parameter(0)
  %low = u32[] get-tuple-element(%state), index=0
  %high = u32[] get-tuple-element(%state), index=1
  %zero = u32[] constant(0)
  %bound = u32[] constant(7)
  %is_high_zero = pred[] compare(%high, %zero), direction=EQ
  %is_low_below = pred[] compare(%low, %bound), direction=LT
  ROOT %and = pred[] and(%is_high_zero, %is_low_below)
}

%step (state: (u32[], u32[], f32[64,64])) -> (u32[], u32[], f32[64,64]) {
  %state = (u32[], u32[], f32[64,64]{1,0}) parameter(0)
  %low = u32[] get-tuple-element(%state), index=0
  %high = u32[] get-tuple-element(%state), index=1
  %x = f32[64,64]{1,0} get-tuple-element(%state), index=2
  %product = f32[64,64]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %next = (u32[], u32[], f32[64,64]{1,0}) tuple(%low, %high, %product)
}

ENTRY %main (start: (u32[], u32[], f32[64,64])) -> (u32[], u32[], f32[64,64]) {
  %start = (u32[], u32[], f32[64,64]{1,0}) parameter(0)
  ROOT %loop = (u32[], u32[], f32[64,64]{1,0}) while(%start), condition=%below, body=%step
}
"""


def test_a_loop_whose_condition_has_a_constant_counts_as_often_as_that_says():
    assert count_costs(LOOP, {"": 3}).flop == 7 * PRODUCT


def test_loops_of_unknown_length_are_counted_by_their_innermost_scope():
    def nested(x, outer, inner):
        def rounds(i, x):
            with jax.named_scope("steps"):
                return multiply_repeatedly(x, inner)

        with jax.named_scope("rounds"):
            return jax.lax.fori_loop(0, outer, rounds, x)

    count = jax.ShapeDtypeStruct((), jnp.int32)
    text = compiled_text(nested, MATRIX, count, count)
    assert count_costs(text, {"rounds": 3, "steps": 5}).flop == 15 * PRODUCT
    with pytest.raises(UnknownTripCountError):
        count_costs(text, {"rounds": 3})


def test_a_convolution_counts_products_with_each_entry_of_its_kernel():
    image, kernel = jax.ShapeDtypeStruct((4, 8, 8, 3), jnp.float32), jax.ShapeDtypeStruct((3, 3, 3, 16), jnp.float32)

    def convolve(x, k):
        return jax.lax.conv_general_dilated(x, k, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    assert count_costs(compiled_text(convolve, image, kernel), {}).flop == 2 * (4 * 6 * 6 * 16) * (3 * 3 * 3)


def test_a_slice_reads_no_more_than_it_returns():
    table = jax.ShapeDtypeStruct((10_000, 64), jnp.float32)

    def add_rows(table):
        take = lambda i: jax.lax.dynamic_index_in_dim(table, i * 7, keepdims=False)  # noqa: E731
        return jax.lax.fori_loop(0, 10, lambda i, x: x * 2 + take(i), jnp.zeros(64))

    whole = 4 * 10_000 * 64
    assert 10 * 64 * 4 <= count_costs(compiled_text(add_rows, table), {}).bytes < whole / 10


# As a TPU's compiler fuses the replacement of one row by another or by itself.
REPLACEMENT = """
%fused (table: f32[10000,64], row: f32[1,64], place: s32[], is_new: pred[1,64]) -> f32[10000,64] {
  %table = f32[10000,64]{1,0} parameter(0)
  %row = f32[1,64]{1,0} parameter(1)
  %place = s32[] parameter(2)
  %is_new = pred[1,64]{1,0} parameter(3)
  %zero = s32[] constant(0)
  %old = f32[1,64]{1,0} dynamic-slice(%table, %place, %zero), dynamic_slice_sizes={1,64}
  %chosen = f32[1,64]{1,0} select(%is_new, %row, %old)
  ROOT %replaced = f32[10000,64]{1,0} dynamic-update-slice(%table, %chosen, %place, %zero)
}

ENTRY %main (table: f32[10000,64], row: f32[1,64], place: s32[], is_new: pred[1,64]) -> f32[10000,64] {
  %table = f32[10000,64]{1,0} parameter(0)
  %row = f32[1,64]{1,0} parameter(1)
  %place = s32[] parameter(2)
  %is_new = pred[1,64]{1,0} parameter(3)
  ROOT %fusion = f32[10000,64]{1,0} fusion(%table, %row, %place, %is_new), kind=kLoop, calls=%fused
}
"""


def test_replacing_a_row_reads_and_writes_no_other():
    assert count_costs(REPLACEMENT, {}).bytes < 5 * 64 * 4


@pytest.mark.parametrize(
    ("kind", "collective", "received"),
    [
        ("all-reduce", lambda x: jax.lax.psum(x, "clients"), 16000),
        ("reduce-scatter", lambda x: jax.lax.psum_scatter(x, "clients", scatter_dimension=1, tiled=True), 16000),
        ("all-to-all", lambda x: jax.lax.all_to_all(x, "clients", 1, 0, tiled=True), 16000),
    ],
)
def test_collectives_are_counted_by_kind_with_the_bytes_that_a_device_receives(kind, collective, received):
    mesh = Mesh(np.array(jax.devices()[:4]), ("clients",))
    rows = jax.ShapeDtypeStruct((16, 1000), jnp.float32, sharding=NamedSharding(mesh, P("clients")))
    each = jax.shard_map(collective, mesh=mesh, in_specs=P("clients"), out_specs=P("clients"), check_vma=False)
    assert count_costs(compiled_text(each, rows), {}).collectives == {kind: received}
