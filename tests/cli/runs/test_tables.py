"""Tables of results."""

import csv
import io

from fedjax_het.cli.runs.tables import (
    PER_CENT,
    ColumnFormat,
    Table,
    Value,
    make_cells,
    narrow,
    to_csv,
    to_latex,
    to_markdown,
)

TABLE = Table(
    "unseen",
    "Accuracy on the domain left out",
    ["art_painting", "mean"],
    [
        ("fedavg", [Value(0.5, 0.01), Value(0.4)]),
        ("fedbn", [Value(0.7004, 0.02), Value(0.4)]),
        ("fedld", [None, Value(0.3)]),
        ("harmofl", [Value(0.7001, 0.0), Value(float("nan"))]),
    ],
)


def test_markdown_marks_the_best_and_second_best_of_each_column():
    assert to_markdown(TABLE).splitlines()[2:] == [
        "|  | art_painting | mean |",
        "| --- | ---: | ---: |",
        "| fedavg | <u>50.0 ± 1.0</u> | **40.0** |",
        "| fedbn | **70.0 ± 2.0** | **40.0** |",
        "| fedld |  | <u>30.0</u> |",
        "| harmofl | **70.0 ± 0.0** | not finite |",
    ]


def test_a_column_with_one_value_has_no_best_value():
    alone = Table("t", "", ["a"], [("fedavg", [Value(0.5)]), ("fedbn", [None])])
    assert "| fedavg | 50.0 |" in to_markdown(alone)


def test_latex_is_escaped_and_has_rules():
    text = to_latex(TABLE)
    assert r" & art\_painting & mean \\" in text
    assert r"fedbn & \textbf{70.0 $\pm$ 2.0} & \textbf{40.0} \\" in text
    assert text.index(r"\toprule") < text.index(r"\midrule") < text.index("fedavg") < text.index(r"\bottomrule")
    assert r"a\textbackslash{}b\{\%" in to_latex(Table("t", "", ["a\\b{%"], []))


def test_csv_has_all_digits_and_one_line_per_cell():
    rows = list(csv.DictReader(io.StringIO(to_csv(TABLE))))
    assert len(rows) == 8
    assert rows[2] == {"row": "fedbn", "column": "art_painting", "mean": "0.7004", "std": "0.02"}
    assert rows[4]["mean"] == ""


def test_the_deviation_of_two_seeds_is_marked():
    values = [Value.of(seeds) for seeds in ([0.2], [0.1, 0.3], [0.1, 0.2, 0.3])]
    ((first, second, third),) = make_cells(Table("t", "", ["a", "b", "c"], [("fedavg", values)]))
    assert [first.text, second.text, third.text] == ["20.0", "20.0 ± 10.0 (2 seeds)", "20.0 ± 8.2"]


def test_a_column_of_equal_values_has_no_best_value():
    alike = Table("t", "", ["a"], [("fedavg", [Value(0.5)]), ("fedbn", [Value(0.5001)])])
    assert [row[0].rank for row in make_cells(alike)] == [None, None]


def test_columns_can_prefer_small_values_or_none_and_hold_stars_and_text():
    formats = {"loss": ColumnFormat(PER_CENT.text, min), "rounds": ColumnFormat(lambda value: f"{value:.0f}")}
    rows = [("fedavg", [Value(0.2), Value(3), "a|b"]), ("fedld", [Value(0.1, 0.01, "*"), Value(4), None])]
    table = Table("t", "T", ["loss", "rounds", "text"], rows, formats, "A note.")
    assert [[cell.rank for cell in row] for row in make_cells(table)] == [[1, None, None], [0, None, None]]
    assert to_markdown(table).endswith(
        "| fedavg | <u>20.0</u> | 3 | a\\|b |\n| fedld | **10.0 ± 1.0\\*** | 4 |  |\n\nA note.\n"
    )
    assert r"fedld & \textbf{10.0 $\pm$ 1.0$^*$} & 4 &  \\" in to_latex(table) and "% A note." in to_latex(table)
    assert "fedavg,text,a|b," in to_csv(table)


def test_a_wide_table_is_reduced_to_its_summary_columns_on_a_page():
    def make(count):
        columns = [*map(str, range(count)), "mean", "deviation", "worst"]
        return Table("clients", "Accuracy", columns, [("fedavg", [*[None] * count, Value(0.5), None, None])])

    assert len(narrow(make(5)).columns) == 8
    result = narrow(make(20))
    assert result.columns == ["mean", "deviation", "worst"] and result.rows == [("fedavg", [Value(0.5), None, None])]
    assert result.title == "Accuracy (all 20 columns: clients.md)"
    assert r"\begin{tabular}{lrrr}" in to_latex(make(20)) and r"\begin{tabular}{lrrrrrrrr}" in to_latex(make(5))
    without = make(20)._replace(columns=[*map(str, range(23))])
    assert narrow(without) is without  # it has no column for the worst


def test_names_with_markup_are_escaped_in_every_format():
    table = Table("x", "a\nb", ["$x_{", "^"], [("a\nb | <b>", [Value(0.5), Value(0.25)])])
    assert to_markdown(table).splitlines() == [
        "a b",
        "",
        r"|  | \$x_{ | ^ |",
        "| --- | ---: | ---: |",
        r"| a b \| \<b> | 50.0 | 25.0 |",
    ]
    lines = to_latex(table).splitlines()
    assert lines[0] == "% a b" and lines[3] == r" & \$x\_\{ & \textasciicircum{} \\"
    assert lines[5] == r"a b $|$ $<$b$>$ & 50.0 & 25.0 \\"
    rows = list(csv.reader(io.StringIO(to_csv(table))))
    assert rows[1][:2] == ["a\nb | <b>", "$x_{"]
