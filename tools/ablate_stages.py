"""What do the stages before contribute? Stage 4 started from stage 1, 2 and 3 (the paper's Table 7).

    python tools/ablate_stages.py [--stages runs/tiny] [--data data/toy] [--steps 300] [key=value ...]

Starts from STAGES/stage1 .. stage3. Writes OUTPUT/stages.md and .json.
"""

from ablations import Variant, compare, parse_arguments


def main() -> None:
    arguments = parse_arguments(__doc__.splitlines()[0])
    variants = [
        Variant(f"from stage {stage}", f"from_stage{stage}", (f"init_from={arguments.stages}/stage{stage}",))
        for stage in (1, 2, 3)
    ]
    compare(arguments, "stages", variants)


if __name__ == "__main__":
    main()
