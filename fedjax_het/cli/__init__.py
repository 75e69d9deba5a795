"""The command line: configs, commands that train, compare and report, and the files of their runs."""

import gc
import os
import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_IN_CHECKOUT = (_PACKAGE.parent / "configs" / "quickstart.py").is_file()
CONFIGS = (_PACKAGE.parent if _IN_CHECKOUT else _PACKAGE) / "configs"
"""The embedded configs."""


def module_command(name: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """The command that runs a module, "fedjax_het.cli.train", in another process."""
    return [python, "-m", name, *arguments]


def module_environment() -> dict[str, str]:
    """The environment for `module_command`: in any directory it imports what this process imported."""
    chosen = dict(os.environ)
    if _IN_CHECKOUT:
        chosen["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_PACKAGE.parent), os.environ.get("PYTHONPATH"))))
    if os.getcwd() not in sys.path:
        chosen["PYTHONSAFEPATH"] = "1"  # a folder of our name in the current directory is not ours
    return chosen


def collect_garbage_rarely() -> None:
    """Spare this process most garbage collections: modules stay, and tracing makes many objects but few cycles."""
    gc.freeze()
    gc.set_threshold(100_000)
