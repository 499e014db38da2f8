"""Stage 3: all modules learn general conversation, grounding and regions.

accelerate launch train/stage3.py --config configs/tiny/stage3.yaml [dotted.key=value ...]
"""

from rexseek.training.run import main
from rexseek.training.stage import StagePlan

PLAN = StagePlan(
    stage=3,
    title="general conversation, grounding and regions",
    trainable=("image_projector", "object_projector", "language_model", "vision_tower", "vision_tower_aux"),
    detection_recall=True,
)

if __name__ == "__main__":
    main(PLAN)
