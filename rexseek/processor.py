"""RexSeekProcessor: image, boxes and text to model inputs, in the released checkpoint's format."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from transformers import (
    AutoProcessor,
    AutoTokenizer,
    BatchFeature,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)
from transformers.utils import PROCESSOR_NAME, cached_file

from rexseek.boxes import BoxArray, boxes_to_square, letterbox_padding, validate_boxes_xyxy_px
from rexseek.config import RexSeekConfig
from rexseek.images import ImageInput, load_image
from rexseek.tokens import (
    IM_END,
    IM_START,
    IMAGE_TOKEN_ID,
    MAX_OBJECTS,
    OBJECT_FEATURE_TOKEN_ID,
    OBJECT_TOKENS,
    REQUIRED_TOKENS,
    check_plain_text,
    with_required_tokens,
)

_MEAN = np.array([0.48145466, 0.4578275, 0.40821073], dtype=np.float32)  # CLIP's
_STD = np.array([0.26862954, 0.26130258, 0.27577711], dtype=np.float32)
_SCALED = (np.arange(256) / 255).astype(np.float32)
_NORMALISED = (_SCALED[None] - _MEAN[:, None]) / _STD[:, None]  # [3, 256]: of each channel, by 8-bit value
_WHERE = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")
_PADDING_COLOUR = (122, 116, 104)  # CLIP's mean, truncated as in the released code


class RexSeekProcessor(ProcessorMixin):
    """Turns images, candidate boxes and questions into the inputs of `RexSeekForConditionalGeneration`.

    Args:
        tokenizer: holds RexSeek's 104 tokens already; see `from_tokenizer`.
        image_size: side of CLIP's input in pixels.
        image_size_aux: side of the letterboxed square in pixels (ConvNeXt's input; boxes live here).
        num_image_tokens: places for image features in a prompt.

    Raises:
        ValueError: the tokenizer lacks a token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        image_size: int = 336,
        image_size_aux: int = 768,
        num_image_tokens: int = 576,
        **kwargs,
    ) -> None:
        missing = [token for token in REQUIRED_TOKENS if token not in tokenizer.get_vocab()]
        if missing:
            raise ValueError(
                f"the tokenizer lacks {len(missing)} of RexSeek's tokens ({missing[0]} ...); "
                "use RexSeekProcessor.from_tokenizer"
            )
        super().__init__(tokenizer, **kwargs)
        self.tokenizer.backend_tokenizer.no_truncation()  # whatever a tokenizer.json says
        self.tokenizer.backend_tokenizer.no_padding()
        self.image_size = image_size
        self.image_size_aux = image_size_aux
        self.num_image_tokens = num_image_tokens

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, **kwargs: Any) -> "RexSeekProcessor":
        """Load the processor of a checkpoint, ours or released; arguments as in transformers.

        A released checkpoint has no processor: its tokenizer gets the tokens that it lacks, and sizes come
        from its `config.json`.

        Raises:
            OSError: files that are missing or cannot be read.
            ValueError: the config of another model, or a token table too short for the tokenizer.
        """
        where = {name: kwargs[name] for name in _WHERE if name in kwargs}
        own = cached_file(
            pretrained_model_name_or_path,
            PROCESSOR_NAME,
            _raise_exceptions_for_missing_entries=False,
            **where,
        )
        if own is not None:
            return super().from_pretrained(pretrained_model_name_or_path, **kwargs)
        config = RexSeekConfig.from_pretrained(pretrained_model_name_or_path, **where)
        return cls.from_tokenizer(
            AutoTokenizer.from_pretrained(pretrained_model_name_or_path, **where), config
        )

    @classmethod
    def from_tokenizer(cls, tokenizer: PreTrainedTokenizerBase, config: RexSeekConfig) -> "RexSeekProcessor":
        """Build from an LLM's tokenizer, a copy of which gets the tokens that it lacks, in released order.

        Raises:
            ValueError: the language model's token table is too short for them.
        """
        tokenizer = with_required_tokens(tokenizer)
        last, rows = max(tokenizer.get_vocab().values()), config.text_config.vocab_size
        if last >= rows:
            raise ValueError(
                f"the tokenizer has ids up to {last}, but the model's token table only {rows} rows"
            )
        return cls(tokenizer, config.image_size, config.image_size_aux, config.num_image_tokens)

    def load_image(self, image: ImageInput) -> Image.Image:
        """A file, PIL image, array or tensor as an upright RGB image; see `rexseek.images.load_image`."""
        return load_image(image)

    def image_inputs(self, image: Image.Image) -> dict[str, torch.Tensor]:
        """Letterbox, resize and normalise an RGB image.

        Returns:
            `pixel_values_aux` float32 [3, S, S] for ConvNeXt, and `pixel_values` [3, s, s] for CLIP, which is
            a bilinear resize of the former (without antialias, as released).
        """
        image = letterbox(image, self.image_size_aux)
        normalised = np.empty((3, self.image_size_aux, self.image_size_aux), dtype=np.float32)
        for values, channel, out in zip(_NORMALISED, image.split(), normalised, strict=True):
            np.take(values, np.asarray(channel), out=out, mode="clip")  # 8 bits never need clipping: quicker
        aux = torch.from_numpy(normalised)
        size = (self.image_size, self.image_size)
        small = torch.nn.functional.interpolate(aux[None], size, mode="bilinear", align_corners=False)
        return {"pixel_values": small[0], "pixel_values_aux": aux}

    def transform_boxes(self, boxes_xyxy_px: BoxArray, width: int, height: int) -> torch.Tensor:
        """Boxes in pixels of a width x height image -> float32 [O, 4] xyxy in the letterboxed square."""
        return torch.from_numpy(boxes_to_square(boxes_xyxy_px, width, height, self.image_size_aux))

    def prefix_ids(self, num_objects: int, with_image: bool = True) -> list[int]:
        """Ids of the part of a prompt that all questions about an image share, up to the last object feature.

        Raises:
            ValueError: more than 100 objects, or objects without an image.
        """
        if not 0 <= num_objects <= MAX_OBJECTS:
            raise ValueError(f"expected 0 to {MAX_OBJECTS} objects, got {num_objects}")
        if num_objects and not with_image:
            raise ValueError(f"{num_objects} objects need an image")
        bos = self.tokenizer.bos_token_id
        ids = ([] if bos is None else [bos]) + self._ids(f"{IM_START}user\n")
        if with_image:
            ids += [IMAGE_TOKEN_ID] * self.num_image_tokens
        if num_objects:
            ids += self._ids("\n")
            for object_id in self.tokenizer.convert_tokens_to_ids(list(OBJECT_TOKENS[:num_objects])):
                ids += [object_id, OBJECT_FEATURE_TOKEN_ID]
        return ids

    def question_ids(self, question: str, with_image: bool = True) -> list[int]:
        """Ids of a question behind the prefix, up to where the answer begins. The text is taken as it is."""
        newline = "\n" if with_image else ""
        return self._ids(f"{newline}{question}{IM_END}\n{IM_START}assistant\n")

    def answer_ids(self, answer: str) -> list[int]:
        """Ids of an answer and its closing `<|im_end|>`."""
        return self._ids(f"{answer}{IM_END}")

    def follow_up_ids(self, question: str) -> list[int]:
        """Ids of a later question of a conversation, behind an answer's `<|im_end|>`."""
        return self._ids(f"\n{IM_START}user\n{question}{IM_END}\n{IM_START}assistant\n")

    def __call__(
        self,
        images: ImageInput | Sequence[ImageInput] | None,
        boxes_xyxy_px: BoxArray | Sequence[BoxArray] | None,
        text: str | Sequence[str],
        padding_side: Literal["left", "right"] = "right",
    ) -> BatchFeature:
        """Prepare a batch of prompts.

        Args:
            images: one image for each text, or None for text alone.
            boxes_xyxy_px: for each image its candidate boxes [O, 4] in pixels, of float32, float64 or whole
                numbers; O may be 0. Half precision is refused, it loses pixels. Never written to.
            text: a question or a list of questions (`tokens.question_for` makes one from an expression).
            padding_side: "left" for generation.

        Returns:
            input_ids, attention_mask [B, T]; with images also pixel_values [B, 3, s, s],
            pixel_values_aux [B, 3, S, S], object_boxes [sum of O, 4], num_objects [B].

        Raises:
            ValueError: unequal lengths, or bad images, boxes or texts.
        """
        if isinstance(text, str):
            text, images = [text], None if images is None else [images]
            boxes_xyxy_px = None if boxes_xyxy_px is None else [boxes_xyxy_px]
        questions = [check_plain_text(question, f"text {index}") for index, question in enumerate(text)]
        features, counts = {}, [0] * len(questions)
        if images is None and boxes_xyxy_px is not None:
            raise ValueError(f"expected images for the boxes of {len(questions)} texts, got None")
        if images is not None:
            single = isinstance(images, ImageInput)
            if single or len(images) != len(questions):
                got = "a single image" if single else f"{len(images)} images"
                raise ValueError(
                    f"expected a list with an image for each of {len(questions)} texts, got {got}; "
                    "to ask many questions about one image, RexSeekPredictor.refer encodes it once"
                )
            features = self._image_batch(images, boxes_xyxy_px)
            counts = features["num_objects"].tolist()
        with_image = images is not None
        rows = [
            self.prefix_ids(count, with_image) + self.question_ids(question, with_image)
            for count, question in zip(counts, questions, strict=True)
        ]
        return BatchFeature({**self._pad(rows, padding_side), **features})

    def _image_batch(self, images: Sequence[ImageInput], boxes_xyxy_px: Sequence[BoxArray] | None) -> dict:
        if boxes_xyxy_px is None:
            boxes_xyxy_px = [[] for _ in images]
        if len(boxes_xyxy_px) != len(images):
            raise ValueError(
                f"expected boxes for each of {len(images)} images, got {len(boxes_xyxy_px)} lists"
            )
        pixels, boxes = [], []
        for index, (image, image_boxes) in enumerate(zip(images, boxes_xyxy_px, strict=True)):
            loaded = self.load_image(image)
            checked = validate_boxes_xyxy_px(
                image_boxes, loaded.width, loaded.height, f"boxes of image {index}"
            )
            pixels.append(self.image_inputs(loaded))
            boxes.append(self.transform_boxes(checked, loaded.width, loaded.height))
        return {
            "pixel_values": torch.stack([inputs["pixel_values"] for inputs in pixels]),
            "pixel_values_aux": torch.stack([inputs["pixel_values_aux"] for inputs in pixels]),
            "object_boxes": torch.cat(boxes),
            "num_objects": torch.tensor([len(image_boxes) for image_boxes in boxes]),
        }

    def _pad(self, rows: list[list[int]], padding_side: str) -> dict[str, torch.Tensor]:
        if padding_side not in ("left", "right"):
            raise ValueError(f"expected padding_side 'left' or 'right', got {padding_side!r}")
        length = max(len(row) for row in rows)
        pad = self.tokenizer.pad_token_id or 0
        ids = torch.full((len(rows), length), pad)
        mask = torch.zeros_like(ids)
        for index, row in enumerate(rows):
            place = slice(length - len(row), length) if padding_side == "left" else slice(0, len(row))
            ids[index, place] = torch.tensor(row)
            mask[index, place] = 1
        return {"input_ids": ids, "attention_mask": mask}

    def _ids(self, text: str) -> list[int]:
        # Without what `tokenizer(...)` prepares around it, a third of the time: starts count every token.
        return self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids


def letterbox(image: Image.Image, size: int) -> Image.Image:
    """Pad an RGB image to a centred square with the mean colour, and resize that to `size` pixels, bicubic.

    Pillow resizes in two passes, along rows and then along columns, with 8 bits between them. Rows of padding
    come through the first pass unchanged, so they are added behind it: the same pixels in less time.
    """
    side, pad_left, pad_top = letterbox_padding(*image.size)
    width = side
    if image.width == side:
        width = size
        image = image.resize((width, image.height), Image.Resampling.BICUBIC)
    square = Image.new("RGB", (width, side), _PADDING_COLOUR)
    square.paste(image, (pad_left, pad_top))
    return square.resize((size, size), Image.Resampling.BICUBIC)


def load_processor(folder: Path) -> RexSeekProcessor:
    """The processor of a checkpoint folder.

    Raises:
        ValueError: the folder has none, or it cannot be read.
    """
    try:
        return RexSeekProcessor.from_pretrained(folder)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"checkpoint {folder}: its processor cannot be loaded ({error})") from error


AutoProcessor.register(RexSeekConfig, RexSeekProcessor)
