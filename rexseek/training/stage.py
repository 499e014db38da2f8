"""StagePlan: what a stage trains. A stage is data, never a branch inside the training loop."""

from dataclasses import dataclass

from torch import nn

MODULES = {
    "image_projector": "projectors",
    "object_projector": "projectors",
    "language_model": "llm",
    "vision_tower": "encoders",
    "vision_tower_aux": "encoders",
}
"""Trainable modules of the model -> their learning-rate group."""

ADAPTED = "base_model.model."
"""Before the names of a model's parameters inside peft's model."""

TOKEN_ROWS = "trainable_tokens_delta"
"""In the names of peft's trainable token rows."""


@dataclass(frozen=True)
class StagePlan:
    """What a stage trains (paper, Table 5).

    Attributes:
        stage: 1 to 4.
        title: for logs.
        trainable: names of the model's modules that learn; see MODULES.
        detection_recall: whether validation also measures detection by name.
        referring: whether validation also measures referring.
    """

    stage: int
    title: str
    trainable: tuple[str, ...]
    detection_recall: bool = False
    referring: bool = False

    def __post_init__(self) -> None:
        unknown = [name for name in self.trainable if name not in MODULES]
        if unknown or not self.trainable:
            raise ValueError(f"trainable: expected some of {', '.join(MODULES)}, got {list(self.trainable)}")


def set_trainable(model: nn.Module, plan: StagePlan) -> list[str]:
    """Let the plan's modules learn and freeze everything else, and whatever no gradient can reach.

    CLIP's layers behind the selected one and its final norm do not enter the features: a trainable parameter
    without gradient would only be moved by weight decay.

    Returns:
        Names of the trainable parameters.
    """
    idle = {id(parameter) for parameter in model.idle_parameters()}
    names = []
    for name, parameter in model.named_parameters():
        learns = name.split(".", 1)[0] in plan.trainable and id(parameter) not in idle
        parameter.requires_grad_(learns)
        if learns:
            names.append(name)
    if not names:
        raise ValueError(f"stage {plan.stage}: none of {list(plan.trainable)} has parameters")
    return names


def parameter_groups(
    model: nn.Module, learning_rates: dict[str, float], weight_decay: float
) -> list[dict[str, object]]:
    """Optimizer groups: one per learning rate, with and without weight decay (norms, biases, token rows).

    Args:
        model: with adapters or without.
        learning_rates: peak rate of "projectors", "llm" and "encoders".
    """
    embeddings = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters()
    }
    groups: dict[tuple[str, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            # under ZeRO-3 a parameter is empty here and `ds_shape` is its shape
            dimensions = len(getattr(parameter, "ds_shape", parameter.shape))
            decays = dimensions >= 2 and id(parameter) not in embeddings and TOKEN_ROWS not in name
            module = name.removeprefix(ADAPTED).split(".", 1)[0]
            groups.setdefault((MODULES[module], decays), []).append(parameter)
    return [
        {
            "params": parameters,
            "lr": learning_rates[group],
            "weight_decay": weight_decay if decays else 0.0,
            "name": group if decays else f"{group} without decay",
        }
        for (group, decays), parameters in groups.items()
    ]
