"""CSV files of numbers: traces and speeds."""

from fedjax_het._internal.number_table import read_number_table


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    (tmp_path / "trace.csv").write_text("client,start,end\n0,0,40\n1,5,25\n", encoding="utf-8-sig")
    columns = {"client": int, "start": float, "end": float}
    assert read_number_table(tmp_path / "trace.csv", columns, "trace") == [(0, 0.0, 40.0), (1, 5.0, 25.0)]
