"""`python -m rexseek.data.toy --output DIR --scenes N --seed S --split train|test`"""

import argparse

from rexseek.data.toy.write import SPLITS, write_toy_dataset


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rexseek.data.toy", description="Write a toy data set.")
    parser.add_argument("--output", required=True, help="folder to write; must not hold a data set yet")
    parser.add_argument("--scenes", type=int, required=True, help="how many scenes to draw")
    parser.add_argument("--seed", type=int, required=True, help="train and test need different seeds")
    parser.add_argument("--split", choices=sorted(SPLITS), required=True)
    arguments = parser.parse_args()
    write_toy_dataset(arguments.output, arguments.scenes, arguments.seed, arguments.split)


if __name__ == "__main__":
    main()
