"""Compare our model with one case of the released implementation's numbers."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from released_oracle import OracleCase, collapse_images, draw, subsamples

from rexseek.config import RexSeekConfig
from rexseek.model import RexSeekForConditionalGeneration
from rexseek.model.object_tokens import object_features
from rexseek.model.released import from_released, to_released
from rexseek.model.roi import pool_regions
from rexseek.processor import RexSeekProcessor

EXACT, PIXELS, FEATURES, LOGITS = 0.0, 1e-6, 1e-4, 3e-4  # absolute
NEW_TOKENS = 16
# Not compared as such: the inputs themselves, and how the released code pads.
_NOT_OURS = {"attention_mask", "out_attention_mask", "num_boxes", "boxes_in"}
_FIXTURE_SHAPES = ((192, 192, 192), (384, 96, 96), (768, 48, 48), (1536, 24, 24))


@dataclass(frozen=True)
class Difference:
    """How far one quantity is from the released implementation's.

    Attributes:
        quantity: its name in the oracle.
        error: largest absolute difference, or the number of ids that differ.
        tolerance: how much is allowed.
    """

    quantity: str
    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Within tolerance; an error that is not a number is not."""
        return self.error <= self.tolerance


def compare_case(
    model: RexSeekForConditionalGeneration, processor: RexSeekProcessor, case: OracleCase
) -> tuple[list[Difference], list[str]]:
    """Run one case through the public interface and compare all that the oracle holds of it.

    Returns:
        The differences, and names of the oracle's arrays that our model has no counterpart of.
    """
    inputs, found = case_inputs(processor, case)
    found |= run_model(model, inputs, generate="generated_ids" in case.arrays)
    arrays = dict(case.arrays)
    if "lengths" in arrays:  # a ragged batch: padding is nobody's result
        found |= _last_valid_logits(inputs, found)
        for name, mask in (("input_ids", "attention_mask"), ("inputs_embeds", "out_attention_mask")):
            real = arrays[mask].astype(bool)
            arrays[name], found[name] = arrays[name][real], found[name][real]
    kept = subsamples(case.folder, case.variant)
    differences, skipped = [], []
    for name, expected in arrays.items():
        value = _counterpart(name, found, kept)
        if name in _NOT_OURS:
            continue
        if value is None:
            skipped.append(name)
            continue
        differences.append(difference(name, value, expected, _tolerance(name)))
    return differences, skipped


def difference(name: str, found: np.ndarray, expected: np.ndarray, tolerance: float) -> Difference:
    """Largest absolute difference, or for whole numbers how many differ; infinite for unequal shapes."""
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape:
        return Difference(name, float("inf"), tolerance)
    if expected.dtype.kind in "iub":
        return Difference(name, float((found != expected).sum()), tolerance)
    error = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    return Difference(name, float(error.max(initial=0.0)), tolerance)


def case_inputs(
    processor: RexSeekProcessor, case: OracleCase
) -> tuple[dict[str, torch.Tensor], dict[str, np.ndarray]]:
    """Model inputs of a case, and what of them the oracle holds too.

    Unlike users' boxes the oracle's are not validated: it has empty and inverted ones.
    """
    rows, pixels, boxes = [], [], []
    for index, item in enumerate(case.items):
        image = processor.load_image(case.folder / item["image"])
        given = case.arrays["boxes_in"][index] if "boxes_in" in case.arrays else np.array(item["boxes_xyxy"])
        rows.append(processor.prefix_ids(len(given)) + processor.question_ids(item["question"]))
        pixels.append(processor.image_inputs(image))
        boxes.append(processor.transform_boxes(given, image.width, image.height))
    found = {"input_ids": _padded([collapse_images(row) for row in rows])[0]}
    found["gt_boxes"] = torch.nn.utils.rnn.pad_sequence(boxes, batch_first=True)
    if "gt_boxes_used" in case.arrays:  # the released scripts round boxes to half precision
        boxes = [image_boxes.half().float() for image_boxes in boxes]
        found["gt_boxes_used"] = torch.stack(boxes)
    ids, mask = _padded(rows)
    inputs = {
        "input_ids": ids,
        "attention_mask": mask,
        **{name: torch.stack([image[name] for image in pixels]) for name in pixels[0]},
        "object_boxes": torch.cat(boxes),
        "num_objects": torch.tensor([len(image_boxes) for image_boxes in boxes]),
    }
    return inputs, {name: value.numpy() for name, value in found.items()}


def _padded(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows padded on the right with 0, and their mask."""
    ids = [torch.tensor(row) for row in rows]
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(ids, batch_first=True), pad([torch.ones_like(row) for row in ids], batch_first=True)


@torch.inference_mode()
def run_model(
    model: RexSeekForConditionalGeneration, inputs: Mapping[str, torch.Tensor], generate: bool
) -> dict[str, np.ndarray]:
    """Everything that passes through the model, by the oracle's names.

    One pass over the encoders: `generate` (or `forward`) is called as a user would, and watched.
    """
    with watched(model) as seen:
        if generate:
            output = model.generate(
                **inputs,
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                return_dict_in_generate=True,
                output_logits=True,
            )
            seen["generated_ids"] = output.sequences[:, -NEW_TOKENS:]
            seen["step_logits"] = torch.stack(output.logits, dim=1)
        else:
            model(**inputs)
    embeddings = seen["inputs_embeds"]
    full = model.language_model(
        inputs_embeds=embeddings, attention_mask=inputs["attention_mask"], output_hidden_states=True
    )
    seen["all_argmax"] = full.logits.argmax(dim=-1)
    seen["logits"] = full.logits
    seen["last_logits"] = full.logits[:, -1]
    seen |= {f"llm_hidden{index}": hidden for index, hidden in enumerate(full.hidden_states)}
    counts = inputs["num_objects"].tolist()
    for name in ("object_features", "object_tokens"):
        seen[name] = seen[name].split(counts)
    for name in ("pixel_values", "pixel_values_aux"):
        seen[name] = inputs[name]
    return {
        name: [part.numpy() for part in value] if isinstance(value, tuple) else value.numpy()
        for name, value in seen.items()
    }


@contextmanager
def watched(model: RexSeekForConditionalGeneration) -> Iterator[dict[str, torch.Tensor]]:
    """Record inner values during the first pass through each module."""
    seen: dict[str, torch.Tensor] = {}
    clip, convnext, width = model.vision_tower, model.vision_tower_aux, model.config.vision_config.hidden_size

    def watch(
        module: torch.nn.Module, names: Sequence[str], what: Callable = lambda _, output: [output]
    ) -> None:
        def hook(_module: torch.nn.Module, arguments: tuple, output: torch.Tensor) -> None:
            for name, value in zip(names, what(arguments, output), strict=True):
                seen.setdefault(name, value)

        handles.append(module.register_forward_hook(hook))

    def embeddings_hook(_module: torch.nn.Module, _arguments: tuple, values: dict) -> None:
        seen.setdefault("inputs_embeds", values["inputs_embeds"])

    handles = [model.language_model.register_forward_pre_hook(embeddings_hook, with_kwargs=True)]
    watch(model.image_projector, ["low_res"], lambda arguments, _: [arguments[0][..., :width]])
    watch(
        model.object_projector,
        ["object_features", "object_tokens"],
        lambda arguments, output: [arguments[0], output],
    )
    watch(convnext, [f"level{index}" for index in range(4)], lambda _, levels: levels)
    watch(convnext.stem, ["convnext_stem"])
    watch(convnext.stages[0].blocks[0], ["convnext_stage0_block0"])
    watch(clip.pre_layrnorm, ["clip_hidden0"])
    for index, layer in enumerate(clip.encoder.layers, start=1):
        watch(layer, [f"clip_hidden{index}"])
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _last_valid_logits(
    inputs: Mapping[str, torch.Tensor], found: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Lengths of the rows of a ragged batch, and the logits at their ends."""
    lengths = inputs["attention_mask"].sum(dim=1).numpy()
    return {"lengths": lengths, "last_valid_logits": found["logits"][np.arange(len(lengths)), lengths - 1]}


def _counterpart(
    name: str, found: Mapping[str, np.ndarray], kept: Mapping[str, tuple[slice, ...]]
) -> np.ndarray | None:
    """Our value of an array of the oracle, cut as it is: `[<name>][_sub][_<image>]`."""
    if name in found and not isinstance(found[name], list):
        value = found[name]
        return value[0][kept["llm_hidden"]] if name.startswith("llm_hidden") else value
    stem, _, image = name.rpartition("_") if name[-2:] in ("_0", "_1") else (name, "", "0")
    quantity = stem.removesuffix("_sub")
    if quantity not in found:
        return None
    value = found[quantity][int(image)]
    axes = "clip_hidden" if quantity.startswith("clip_hidden") else quantity
    return value[kept[axes]] if stem.endswith("_sub") else value


def _tolerance(name: str) -> float:
    if name in ("input_ids", "gt_boxes", "gt_boxes_used", "lengths", "generated_ids", "all_argmax"):
        return EXACT
    if name.startswith("pixel_values"):
        return PIXELS
    # The language model's hidden states are up to 34; the released ones are themselves 1.5e-4 off float64.
    return LOGITS if name.endswith("logits") or name.startswith("llm_hidden") else FEATURES


def compare_roi(folder: Path) -> list[Difference]:
    """Object features of synthetic maps of the released model's size, boxes of every kind."""
    levels = [
        torch.from_numpy(draw(f"roi_level{index}", shape))[None]
        for index, shape in enumerate(_FIXTURE_SHAPES)
    ]
    with np.load(folder / "roi_fixture.npz") as arrays:
        expected = dict(arrays)
    boxes = torch.from_numpy(expected["boxes"]).float()
    count = [len(boxes)]
    found = {
        "pooled": pool_regions(levels, boxes * 0.25, count, 192),
        "features": object_features(levels, boxes, count, 768),
        "features_fp16_boxes": object_features(levels, boxes.half().float(), count, 768),
    }
    return [difference(name, value, expected[name], FEATURES) for name, value in found.items()]


def compare_prompts(processor: RexSeekProcessor, folder: Path) -> list[Difference]:
    """Token ids of the prompts that are prompts: one image, as many features as boxes, no injected tokens."""
    differences = []
    for index, case in enumerate(json.loads((folder / "prompt_cases.json").read_text(encoding="utf-8"))):
        count = case["n_boxes"]
        regular = case["n_image"] == 1 and case["n_objfeat"] == count and 1 <= count <= 100
        if regular and "<image>" not in case["question"]:
            ids = collapse_images(processor.prefix_ids(count) + processor.question_ids(case["question"]))
            differences.append(difference(f"prompt {index}", ids, case["input_ids"], EXACT))
    return differences


def compare_names(folder: Path) -> list[Difference]:
    """Names and shapes of the released 3B checkpoint against ours: how many have no counterpart."""
    keys = json.loads((folder / "state_dict_keys_3b.json").read_text(encoding="utf-8"))["keys"]
    config = RexSeekConfig()
    config.text_config.vocab_size = keys["model.embed_tokens.weight"][0]
    with torch.device("meta"):
        ours = RexSeekForConditionalGeneration(config).state_dict()
    shapes = {(from_released(name), tuple(shape)) for name, shape in keys.items()}
    own = {(name, tuple(value.shape)) for name, value in ours.items()}
    back = {to_released(name) for name in ours}
    return [
        Difference("released names and shapes", float(len(shapes ^ own)), EXACT),
        Difference("names mapped back", float(len(back ^ set(keys))), EXACT),
    ]
