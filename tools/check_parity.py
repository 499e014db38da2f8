"""Compare our model with the released implementation's numbers, for all cases of an oracle folder.

    python tools/check_parity.py --oracle DIR

Prints the largest error of each quantity of each case, and a summary as its last line; exits with 1 if
anything is outside its tolerance, with 2 if there is nothing to compare. Float32, on the CPU.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from parity import Difference, compare_case, compare_names, compare_prompts, compare_roi
from released_oracle import VARIANTS, case_names, oracle_case, oracle_model, oracle_processor

FIXTURES = {"roi_fixture.npz": compare_roi, "state_dict_keys_3b.json": compare_names}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and report; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--oracle", type=Path, required=True, metavar="DIR")
    parser.add_argument("--variant", choices=VARIANTS, help="only the cases of this model")
    parsed = parser.parse_args(arguments)
    folder = parsed.oracle
    if not folder.is_dir():
        print(f"{folder}: no such folder; expected an oracle with cases", file=sys.stderr)
        return 2
    checked, total, outside = 0, 0, []
    worst = (0.0, "none")
    for name, differences in comparisons(folder, [parsed.variant] if parsed.variant else list(VARIANTS)):
        checked += 1
        for found in differences:
            total += 1
            print(
                f"{name:44} {found.quantity:26} {found.error:9.2e} of {found.tolerance:.0e} {verdict(found)}"
            )
            if not found.ok:
                outside.append(f"{name} {found.quantity}")
            elif found.tolerance:
                worst = max(worst, (found.error / found.tolerance, f"{name} {found.quantity}"))
    if not checked:
        print(f"{folder}: no cases; expected one of {', '.join(VARIANTS)} with .npz files", file=sys.stderr)
        return 2
    state = f"{len(outside)} outside tolerance: {', '.join(outside)}" if outside else "all within tolerance"
    closest = f"closest to its tolerance {worst[0]:.0%} ({worst[1]})"
    print(f"parity: {checked} cases, {total} quantities, {state}; {closest}")
    return 1 if outside else 0


def verdict(found: Difference) -> str:
    """How a line ends."""
    return "ok" if found.ok else "OUTSIDE"


def comparisons(folder: Path, variants: list[str]) -> Iterator[tuple[str, list[Difference]]]:
    """All that a folder holds, one comparison after another."""
    for file, compare in FIXTURES.items():
        if (folder / file).is_file():
            yield file, compare(folder)
    for variant in variants:
        names = case_names(folder, variant)
        if not names:
            continue
        processor = oracle_processor(folder, variant)
        if (folder / "prompt_cases.json").is_file():
            yield f"prompt_cases.json ({variant})", compare_prompts(processor, folder)
        model = oracle_model(folder, variant)
        for name in names:
            differences, skipped = compare_case(model, processor, oracle_case(folder, variant, name))
            if skipped:
                print(f"{variant}/{name}: our model does not compute {', '.join(skipped)}")
            yield f"{variant}/{name}", differences


if __name__ == "__main__":
    sys.exit(main())
