"""Stage 1: the image projector learns on captions; the object projector gets no gradient, so it is frozen.

accelerate launch train/stage1.py --config configs/tiny/stage1.yaml [dotted.key=value ...]
"""

from rexseek.training.run import main
from rexseek.training.stage import StagePlan

PLAN = StagePlan(
    stage=1,
    title="captions, to align image features with the language model",
    trainable=("image_projector",),
)

if __name__ == "__main__":
    main(PLAN)
