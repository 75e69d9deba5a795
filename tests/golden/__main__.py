"""python -m tests.golden [--root DIR]: hold the package against every case of a directory of golden numbers."""

import argparse
import sys
from pathlib import Path

import jax

from tests.compilation import hasten
from tests.golden.cases import Case, Check, Comparison, check_of, find
from tests.golden.register import load_all
from tests.shared import shared_root


def main(root: Path) -> int:
    """Print a line a case, then totals and what is not covered; 1 if anything failed or nothing was found."""
    hasten()
    load_all()
    num_arrays, failed, left_out, untouched = 0, [], [], []
    paths = find(root)
    for path in paths:
        case = Case(path)
        check, label = check_of(case), f"{case.family}/{case.name}"
        if check is None:
            untouched.append(label)
            continue
        comparisons, problem = _held(check, case)
        num_arrays += len(comparisons)
        worst = max(comparisons, key=lambda c: c.error / c.tolerance, default=None)
        figures = f"{worst.error:9.1e} of {worst.tolerance:.0e} ({worst.array})" if worst else ""
        print(f"{label:44s} {len(comparisons):3d} arrays  {figures}  {'FAIL' if problem else 'ok'}")
        if problem:
            failed.append(label)
            print(problem)
        left_out += [f"{label}: {name} ({reason})" for name, reason in sorted(case.excused.items())]
        left_out += [f"{label}: {name} (not compared)" for name in case.unseen]
    _print_list("arrays left out", left_out)
    _print_list("cases without a check", untouched)
    _print_list("cases failed", failed)
    num_held = len(paths) - len(untouched)
    print(f"\n{num_held} of {len(paths)} cases held, {num_arrays} arrays compared, {len(failed)} cases failed")
    if not paths:
        print(f"no file {root}/FAMILY/NAME.npz", file=sys.stderr)
    return int(bool(failed) or not num_held)


def _held(check: Check, case: Case) -> tuple[list[Comparison], str]:
    """(what was compared, what is wrong with it); a case that breaks its check is a failure, not the end."""
    comparisons: list[Comparison] = []
    try:
        with jax.enable_x64(True):
            comparisons += check(case)
    except Exception as error:
        return comparisons, f"    {type(error).__name__}: {error}"
    too_far = [f"    {c.array}: {c.error:.2e} > {c.tolerance:.0e}" for c in comparisons if not c.is_ok]
    return comparisons, "\n".join(too_far) if comparisons else "    nothing was compared"


def _print_list(title: str, lines: list[str]) -> None:
    print(f"\n{title}: {len(lines)}")
    for line in lines:
        print(f"    {line}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=shared_root() / "golden")
    sys.exit(main(parser.parse_args().root))
