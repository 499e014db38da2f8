"""Stage 4: all modules learn to refer.

accelerate launch train/stage4.py --config configs/tiny/stage4.yaml [dotted.key=value ...]
"""

from rexseek.training.run import main
from rexseek.training.stage import StagePlan

PLAN = StagePlan(
    stage=4,
    title="referring",
    trainable=("image_projector", "object_projector", "language_model", "vision_tower", "vision_tower_aux"),
    referring=True,
)

if __name__ == "__main__":
    main(PLAN)
