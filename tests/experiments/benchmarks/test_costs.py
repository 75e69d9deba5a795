"""Costs counted from the text of compiled programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from experiments.benchmarks.costs import UnknownTripCountError, count_costs

MATRIX = jax.ShapeDtypeStruct((64, 64), jnp.float32)
PRODUCT = 2 * 64**3  # FLOP


def compiled_text(function, *shapes) -> str:
    return jax.jit(function).lower(*shapes).compile().as_text()


def multiply_repeatedly(matrix, count):
    return jax.lax.fori_loop(0, count, lambda i, x: jnp.tanh(x @ matrix), matrix)


def test_a_loop_of_known_length_counts_as_often_as_it_runs():
    assert count_costs(compiled_text(lambda x: multiply_repeatedly(x, 7), MATRIX), {}).flop == {"default": 7 * PRODUCT}


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
    assert count_costs(LOOP, {"": 3}).flop == {"default": 7 * PRODUCT}


def test_loops_of_unknown_length_are_counted_by_their_innermost_scope():
    def nested(x, outer, inner):
        def rounds(i, x):
            with jax.named_scope("steps"):
                return multiply_repeatedly(x, inner)

        with jax.named_scope("rounds"):
            return jax.lax.fori_loop(0, outer, rounds, x)

    count = jax.ShapeDtypeStruct((), jnp.int32)
    text = compiled_text(nested, MATRIX, count, count)
    assert count_costs(text, {"rounds": 3, "steps": 5}).all_flop == 15 * PRODUCT
    with pytest.raises(UnknownTripCountError):
        count_costs(text, {"rounds": 3})


def test_a_convolution_counts_products_with_each_entry_of_its_kernel():
    image, kernel = jax.ShapeDtypeStruct((4, 8, 8, 3), jnp.float32), jax.ShapeDtypeStruct((3, 3, 3, 16), jnp.float32)

    def convolve(x, k):
        return jax.lax.conv_general_dilated(x, k, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    assert count_costs(compiled_text(convolve, image, kernel), {}).all_flop == 2 * (4 * 6 * 6 * 16) * (3 * 3 * 3)


# As a GPU's compiler writes calls of cuDNN and cuBLAS; of the latter's names the attributes are JSON.
LIBRARY_CALL = """
ENTRY %main (a: {a}, b: {b}) -> {result} {{
  %a = {a} parameter(0)
  %b = {b} parameter(1)
  %both = ({result}, u8[4096]{{0}}) custom-call(%a, %b), {attributes}
  ROOT %first = {result} get-tuple-element(%both), index=0
}}
"""
WINDOW = "window={size=5x5 stride=2x2 pad=1_1x1_1}, dim_labels=b01f_o01i->b01f, feature_group_count=1, "
IMAGES, KERNELS, OUTPUTS = "f32[8,29,29,32]{3,2,1,0}", "f32[64,5,5,32]{3,2,1,0}", "f32[8,14,14,64]{3,2,1,0}"


@pytest.mark.parametrize(
    ("target", "a", "b", "result"),
    [
        ("convForward", IMAGES, KERNELS, OUTPUTS),
        ("convBiasActivationForward", IMAGES, KERNELS, OUTPUTS),
        ("convBackwardInput", OUTPUTS, KERNELS, IMAGES),
        ("convBackwardFilter", IMAGES, OUTPUTS, KERNELS),
    ],
)
@pytest.mark.parametrize(("precision", "kind"), [("", "default"), ("operand_precision={highest,highest}, ", "highest")])
def test_a_convolution_of_a_library_and_its_gradients_count_as_the_forward_one(target, a, b, result, precision, kind):
    attributes = f'{WINDOW}{precision}custom_call_target="__cudnn${target}", backend_config={{"algo_id":"-1"}}'
    costs = count_costs(LIBRARY_CALL.format(a=a, b=b, result=result, attributes=attributes), {})
    assert costs.flop == {kind: 2 * (8 * 14 * 14 * 64) * (5 * 5 * 32)}
    assert costs.operations == 1


@pytest.mark.parametrize(
    ("dtype", "asked", "kind"),
    [
        ("f32", "DEFAULT", "default"),
        ("f32", "HIGHEST", "highest"),
        ("f64", "DEFAULT", "float64"),
        ("bf16", "DEFAULT", "bfloat16"),
    ],
)
def test_a_product_of_a_library_counts_by_its_precision(dtype, asked, kind):
    attributes = (
        'custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":'
        '{"lhs_contracting_dimensions":["0"],"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[]},'
        f'"precision_config":{{"operand_precision":["{asked}","{asked}"],"algorithm":"ALG_UNSET"}}}}}}'
    )
    shapes = {"a": f"{dtype}[70,30]{{1,0}}", "b": f"{dtype}[70,50]{{1,0}}", "result": f"{dtype}[30,50]{{1,0}}"}
    assert count_costs(LIBRARY_CALL.format(**shapes, attributes=attributes), {}).flop == {kind: 2 * 30 * 50 * 70}


def test_what_a_loop_starts_is_counted_as_often_as_it_runs():
    once = count_costs(compiled_text(lambda x: multiply_repeatedly(x, 1), MATRIX), {}).operations
    often = count_costs(compiled_text(lambda x: multiply_repeatedly(x, 7), MATRIX), {}).operations
    assert once > 0
    assert often > 7
    assert count_costs(REPLACEMENT, {}).operations == 1


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


# As a GPU's compiler fuses the replacement of two rows.
SCATTER = """
%second (old: f32[], new: f32[]) -> f32[] {
  %old = f32[] parameter(0)
  ROOT %new = f32[] parameter(1)
}

%fused (table: f32[10000,64], rows: f32[2,64], places: s32[2]) -> f32[10000,64] {
  %table = f32[10000,64]{1,0} parameter(0)
  %places = s32[2]{0} parameter(2)
  %column = s32[2,1]{1,0} bitcast(%places)
  %rows = f32[2,64]{1,0} parameter(1)
  %each = f32[2,1,64]{2,1,0} bitcast(%rows)
  ROOT %scattered = f32[10000,64]{1,0} scatter(%table, %column, %each), to_apply=%second
}

ENTRY %main (table: f32[10000,64], rows: f32[2,64], places: s32[2]) -> f32[10000,64] {
  %table = f32[10000,64]{1,0} parameter(0)
  %rows = f32[2,64]{1,0} parameter(1)
  %places = s32[2]{0} parameter(2)
  ROOT %fusion = f32[10000,64]{1,0} fusion(%table, %rows, %places), kind=kInput, calls=%fused
}
"""


def test_replacing_rows_together_reads_and_writes_no_others():
    rows = 2 * 64 * 4
    assert 2 * rows <= count_costs(SCATTER, {}).bytes < 5 * rows


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


# As compilers write collectives that other work overlaps: of all but sums, the type holds what is sent, too.
OVERLAPPED = """
%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

ENTRY %main (x: f32[2,100], y: f32[50]) -> (f32[8,100], f32[2,100], f32[50]) {
  %x = f32[2,100]{1,0} parameter(0)
  %y = f32[50]{0} parameter(1)
  %gather = (f32[2,100]{1,0}, f32[8,100]{1,0}) all-gather-start(%x), dimensions={0}
  %gathered = f32[8,100]{1,0} all-gather-done(%gather)
  %exchange = ((f32[2,100]{1,0}), f32[2,100]{1,0}) all-to-all-start(%x), dimensions={0}
  %exchanged = f32[2,100]{1,0} all-to-all-done(%exchange)
  %reduce = (f32[2,100]{1,0}, f32[50]{0}) all-reduce-start(%x, %y), to_apply=%sum
  %reduced = (f32[2,100]{1,0}, f32[50]{0}) all-reduce-done(%reduce)
  ROOT %all = (f32[8,100]{1,0}, f32[2,100]{1,0}, f32[2,100]{1,0}, f32[50]{0}) tuple(%gathered, %exchanged, %reduced)
}
"""


def test_collectives_that_other_work_overlaps_count_what_is_received():
    costs = count_costs(OVERLAPPED, {})
    assert costs.collectives == {"all-gather": 4 * 800, "all-to-all": 4 * 200, "all-reduce": 4 * 250}
    assert costs.bytes == 4 * ((200 + 800) + (200 + 200) + (250 + 250))
