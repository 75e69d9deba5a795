"""python -m tests.golden [--root DIR]: compare the package with every case of a directory of golden numbers.

A case is a file DIR/FAMILY/NAME.npz. It ends as one of these:

ok             every number agrees
contained      some stored numbers are a fault of the code that made them, NaN say; ours are held against what has to
               stand there, which is printed, and all others agree
FAIL           a number disagrees or is not finite, the check broke, nothing was compared, an array or a key of the
               file's meta was not read, or the family has checks and none takes the name
not covered    no check knows the family; such cases are listed, and are neither held nor failed

Exit status: 0 if at least one case is held and none failed, else 1. Cases that are not covered do not change it.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import jax

from tests.compilation import use_quick_compilation
from tests.golden.cases import Case, Comparison, check_of, find_cases, load_checks, patterns_of
from tests.shared import shared_root


class Outcome(NamedTuple):
    """The result of a case; it is held if there are no `problems`, which are lines."""

    comparisons: list[Comparison]
    problems: list[str]

    @property
    def contained(self) -> list[Comparison]:
        return [comparison for comparison in self.comparisons if comparison.containment]

    @property
    def status(self) -> str:
        return "FAIL" if self.problems else "contained" if self.contained else "ok"


def main(root: Path) -> int:
    """Print a line a case, then totals and what is not covered; for the exit status see the top of this file."""
    use_quick_compilation()
    load_checks()
    statuses, num_arrays, contained, left_out, failed, uncovered = Counter(), 0, [], [], [], []
    paths = find_cases(root)
    for path in paths:
        label = f"{path.parent.name}/{path.stem}"
        if not patterns_of(path.parent.name):
            uncovered.append(path.parent.name)
            continue
        case, outcome = run_case(path)
        statuses[outcome.status] += 1
        num_arrays += len(outcome.comparisons) - len(outcome.contained)
        print(f"{label:44s} {len(outcome.comparisons):3d} arrays  {_figures(outcome)}  {outcome.status}", flush=True)
        if outcome.problems:
            failed.append(label)
            print("\n".join(f"    {line}" for line in outcome.problems))
        contained += _by_reason(label, {c.array: c.containment for c in outcome.contained})
        left_out += _by_reason(label, case.excused if case else {})
    _print_list("cases with arrays left out, by reason", left_out)
    _print_list("cases with arrays whose fault is contained, by fault", contained)
    _print_list("cases failed", failed)
    families = [f"{family}: {number} cases" for family, number in sorted(Counter(uncovered).items())]
    _print_list("families not covered, which no check knows: neither held nor failed", families)
    print(
        f"\n{sum(statuses.values())} of {len(paths)} cases covered: {statuses['ok']} ok ({num_arrays} arrays agree), "
        f"{statuses['contained']} contained, {statuses['FAIL']} failed; {len(uncovered)} not covered"
    )
    if not paths:
        print(f"no file {root}/FAMILY/NAME.npz", file=sys.stderr)
    return int(bool(failed) or not sum(statuses.values()))


def run_case(path: Path) -> tuple[Case | None, Outcome]:
    """The case and its result; a case that cannot be read, or breaks its check, has failed."""
    case, comparisons = None, []
    try:
        case = Case(path)
        check = check_of(case)
        if check is None:
            return case, Outcome([], [f"no check takes this name; those of {case.family}: {patterns_of(case.family)}"])
        with jax.enable_x64(True):
            for comparison in check(case):
                comparisons.append(comparison)
    except Exception as error:
        return case, Outcome(comparisons, [f"{type(error).__name__}: {error}"])
    problems = [str(comparison) for comparison in comparisons if not comparison.is_ok] + case.unread
    if not problems and not any(comparison.num_finite for comparison in comparisons):
        problems = ["no finite number was compared"]
    return case, Outcome(comparisons, problems)


def _figures(outcome: Outcome) -> str:
    if not outcome.comparisons:
        return ""
    worst = max(outcome.comparisons, key=lambda c: (not c.is_ok, c.error / c.tolerance))
    return f"{worst.error:9.1e} of {worst.tolerance:.0e} ({worst.array})"


def _by_reason(label: str, reasons: dict[str, str]) -> list[str]:
    """A line for each reason, with the arrays that share it."""
    names = {reason: [name for name in sorted(reasons) if reasons[name] == reason] for reason in reasons.values()}
    return [f"{label}: {reason}: {len(group)} arrays ({_some(group)})" for reason, group in names.items()]


def _some(names: list[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")


def _print_list(title: str, lines: list[str]) -> None:
    print(f"\n{title}: {len(lines)}")
    for line in lines:
        print(f"    {line}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=shared_root() / "golden", help="of FAMILY/NAME.npz")
    sys.exit(main(parser.parse_args().root))
