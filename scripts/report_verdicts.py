"""Reads logs of dead and of healthy servers and compares each verdict with the one expected.

Without a folder: the golden set, the written logs and those kept as files. With one: its ``*.log``
files, judged by its ``verdicts.toml`` (tests/golden/README.md). Prints a table, cause by cause, and a
line for each verdict that is unknown or wrong. Exit status 1 when one is wrong, 2 when the folder
cannot be used. Right means: the cause and all that goes with it (fault, stage, direction, numbers,
evidence); unknown means that no cause was named where there is one; anything else is wrong.

    scripts/report_verdicts [FOLDER [--engine NAME]]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "golden"))

from writing.case import Case  # noqa: E402 - it lives beside the tests
from writing.cases import cases  # noqa: E402
from writing.folder import FolderError, folder  # noqa: E402
from writing.judging import differences, judged  # noqa: E402

from tuner.model.outcome import Cause  # noqa: E402

ENGINES = ("sglang", "llamacpp")
JUDGEMENTS = ("right", "unknown", "wrong")


def golden() -> list[Case]:
    """Return the written logs and those kept as files."""
    kept = [case for engine in ENGINES for case in folder(ROOT / "tests" / "golden" / f"{engine}_logs", engine)]
    return [*cases(), *kept]


def judgement(case: Case) -> tuple[str, str]:
    """Return ``right``, ``unknown`` or ``wrong``, and where the verdict differs."""
    found = judged(case)
    told = "; ".join(differences(case, found))
    if not told:
        return "right", ""
    is_unknown = found.cause is Cause.UNKNOWN and case.expected.cause is not Cause.UNKNOWN
    return ("unknown" if is_unknown else "wrong"), told


def report(wanted: Iterable[Case]) -> bool:
    """Print the table and what is not right; return whether nothing is wrong."""
    counts: Counter[tuple[Cause, str]] = Counter()
    remarks = []
    for case in wanted:
        kind, told = judgement(case)
        counts[case.expected.cause, kind] += 1
        if kind != "right":
            remarks.append(f"{kind}: {case.name}: {told}")
    print(f"{'cause':<24}{'cases':>7}" + "".join(f"{kind:>9}" for kind in JUDGEMENTS))
    for cause in Cause:
        row = [counts[cause, kind] for kind in JUDGEMENTS]
        if sum(row):
            print(f"{cause.value:<24}{sum(row):>7}" + "".join(f"{number:>9}" for number in row))
    total = [sum(counts[cause, kind] for cause in Cause) for kind in JUDGEMENTS]
    print(f"{'all':<24}{sum(total):>7}" + "".join(f"{number:>9}" for number in total))
    print(*remarks, sep="\n", end="\n" if remarks else "")
    return not total[-1]


def main() -> int:
    """Run it; return the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/report_verdicts", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", nargs="?", type=Path, help="*.log files and their verdicts.toml")
    parser.add_argument("--engine", choices=ENGINES, default="sglang", help="whose logs are in FOLDER")
    wanted = parser.parse_args()
    try:
        chosen = folder(wanted.folder, wanted.engine) if wanted.folder else golden()
    except FolderError as error:
        print(f"report_verdicts: {error}", file=sys.stderr)
        return 2
    return 0 if report(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
