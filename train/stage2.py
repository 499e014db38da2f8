"""Stage 2: all modules learn detection by name and region understanding.

accelerate launch train/stage2.py --config configs/tiny/stage2.yaml [dotted.key=value ...]
"""

from rexseek.training.run import main
from rexseek.training.stage import StagePlan

PLAN = StagePlan(
    stage=2,
    title="detection by name and region understanding",
    trainable=("image_projector", "object_projector", "language_model", "vision_tower", "vision_tower_aux"),
    detection_recall=True,
)

if __name__ == "__main__":
    main(PLAN)
