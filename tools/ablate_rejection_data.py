"""Does rejection need its own data? Stage 4 with and without expressions to reject (the paper's Table 6).

    python tools/ablate_rejection_data.py [--stages runs/tiny] [--data data/toy] [--steps 300] [key=value ...]

Starts from STAGES/stage3. Writes OUTPUT/rejection_data.md and .json.
"""

from ablations import Variant, compare, parse_arguments


def main() -> None:
    arguments = parse_arguments(__doc__.splitlines()[0])
    start = f"init_from={arguments.stages / 'stage3'}"
    without = (start, "data.drop_rejections=true")
    variants = [
        Variant("with rejection data", "from_stage3", (start,)),
        Variant("without rejection data", "from_stage3_without_rejections", without),
    ]
    compare(arguments, "rejection_data", variants)


if __name__ == "__main__":
    main()
