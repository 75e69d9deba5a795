"""Parts of pages that a command makes."""

import pytest

from experiments.runs.page_blocks import fill_blocks
from fedjax_het.errors import InputError

COMMAND = "python -m docs.page_tables"
PAGE = """# Page

<!-- first: made by python -m docs.page_tables -->
<!-- end -->
between
<!-- second: made by python -m docs.page_tables -->
stale
<!-- end -->
<!-- first: made by python -m experiments.claims -->
of another command
<!-- end -->
"""


@pytest.fixture
def page(tmp_path):
    (tmp_path / "page.md").write_text(PAGE)
    return tmp_path / "page.md"


def test_a_block_is_replaced_and_nothing_else(page):
    blocks = {"second": r"| a\1 |", "first": "| b |\n"}
    filled = fill_blocks(page, COMMAND, blocks)
    assert filled == PAGE.replace("<!-- end -->\nbetween", "\n| b |\n\n<!-- end -->\nbetween").replace(
        "stale", "\n| a\\1 |\n"
    )
    page.write_text(filled)
    assert fill_blocks(page, COMMAND, blocks) == filled


@pytest.mark.parametrize(("text", "count"), [("# Page", 0), (PAGE.replace("second", "first"), 2)])
def test_a_page_without_a_place_or_with_two_is_refused(page, text, count):
    page.write_text(text)
    with pytest.raises(
        InputError, match=f"page.md: there are {count} places between '<!-- first: made by {COMMAND} -->'"
    ):
        fill_blocks(page, COMMAND, {"first": ""})
