"""python -m tests.golden [--root DIR]: hold the package against every case of a directory of golden numbers."""

import argparse
import sys
from pathlib import Path

import jax

from tests.golden.cases import Case, check_of, find
from tests.golden.register import load_all
from tests.shared import shared_root


def main(root: Path) -> int:
    """Print a line a case, then totals and what is not covered; 1 if anything failed."""
    load_all()
    num_failed, left_out, untouched = 0, [], []
    for path in find(root):
        case = Case(path)
        check = check_of(case)
        label = f"{case.family}/{case.name}"
        if check is None:
            untouched.append(label)
            continue
        with jax.enable_x64(True):
            comparisons = list(check(case))
        failed = [c for c in comparisons if not c.is_ok]
        num_failed += bool(failed)
        worst = max(comparisons, key=lambda c: c.error / c.tolerance, default=None)
        figures = f"{worst.error:9.1e} of {worst.tolerance:.0e} ({worst.array})" if worst else "nothing compared"
        print(f"{label:44s} {len(comparisons):3d} arrays  {figures}  {'FAIL' if failed else 'ok'}")
        for comparison in failed:
            print(f"    {comparison.array}: {comparison.error:.2e} > {comparison.tolerance:.0e}")
        left_out += [f"{label}: {name} ({reason})" for name, reason in sorted(case.excused.items())]
        left_out += [f"{label}: {name} (not compared)" for name in case.unseen]
    _print_list("arrays left out", left_out)
    _print_list("cases without a check", untouched)
    print(f"{num_failed} cases failed")
    return int(num_failed > 0)


def _print_list(title: str, lines: list[str]) -> None:
    print(f"\n{title}: {len(lines)}")
    for line in lines:
        print(f"    {line}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=shared_root() / "golden")
    sys.exit(main(parser.parse_args().root))
