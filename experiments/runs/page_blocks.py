"""Parts of Markdown pages that a command makes: each between `<!-- NAME: made by COMMAND -->` and `<!-- end -->`."""

import re
from collections.abc import Mapping
from pathlib import Path

from fedjax_het.errors import InputError


def fill_blocks(page: Path, command: str, blocks: Mapping[str, str]) -> str:
    """Return the text of a page with the blocks in their places; the file stays as it is.

    Args:
        page: a Markdown file.
        command: that makes the blocks, such as `python -m docs.page_tables`.
        blocks: {name: Markdown}.

    Raises:
        InputError: The page has no place for a block, or several.
    """
    text, end = page.read_text(), "<!-- end -->"
    for name, block in blocks.items():
        start = f"<!-- {name}: made by {command} -->\n"
        filled = f"{start}\n{block.strip()}\n\n{end}"
        text, count = re.subn(f"{re.escape(start)}.*?{end}", lambda _, new=filled: new, text, flags=re.DOTALL)
        if count != 1:
            raise InputError(f"{page}: there are {count} places between '{start.strip()}' and '{end}'. Make it one.")
    return text
