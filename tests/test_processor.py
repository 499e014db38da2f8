import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor

from rexseek.processor import RexSeekProcessor, letterbox
from rexseek.tokens import (
    ADDED_TOKENS,
    IMAGE_TOKEN_ID,
    OBJECT_FEATURE_TOKEN_ID,
    question_for,
    render_answer,
)


def readable(processor: RexSeekProcessor, ids: list[int]) -> str:
    """Ids as text, features as I and F."""
    names = {IMAGE_TOKEN_ID: "I", OBJECT_FEATURE_TOKEN_ID: "F"}
    return "".join(names.get(value) or processor.tokenizer.decode([value]) for value in ids)


def make_image(width: int = 60, height: int = 40) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def test_prompt_is_the_released_one(tiny_processor):
    ids = tiny_processor.prefix_ids(2) + tiny_processor.question_ids("Who?") + tiny_processor.answer_ids("Me")
    expected = (
        f"<|im_start|>user\n{'I' * 64}\n<obj0>F<obj1>F\nWho?<|im_end|>\n<|im_start|>assistant\nMe<|im_end|>"
    )
    assert readable(tiny_processor, ids) == expected


def test_prompt_without_objects_or_image(tiny_processor):
    assert readable(tiny_processor, tiny_processor.prefix_ids(0)) == f"<|im_start|>user\n{'I' * 64}"
    text = tiny_processor.prefix_ids(0, with_image=False) + tiny_processor.question_ids(
        "Hi", with_image=False
    )
    assert readable(tiny_processor, text) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    follow_up = readable(tiny_processor, tiny_processor.follow_up_ids("And?"))
    assert follow_up == "\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n"


def test_answer_tokens_are_single_tokens(tiny_processor):
    ids = tiny_processor.answer_ids(render_answer([("a", [3, 12])]))
    assert len(ids) == 8
    assert tiny_processor.tokenizer.convert_ids_to_tokens(ids)[3:6] == ["<objects>", "<obj3>", "<obj12>"]


@pytest.mark.parametrize("count", [-1, 101])
def test_number_of_objects_is_checked(tiny_processor, count):
    with pytest.raises(ValueError, match=f"0 to 100 objects, got {count}"):
        tiny_processor.prefix_ids(count)


def test_objects_need_an_image(tiny_processor):
    with pytest.raises(ValueError, match="need an image"):
        tiny_processor.prefix_ids(1, with_image=False)


def test_from_tokenizer_leaves_the_tokenizer_alone(tiny_processor, tiny_config):
    from transformers import Qwen2Tokenizer

    tokenizer = Qwen2Tokenizer(vocab={"a": 0}, merges=[])
    before = len(tokenizer)
    with pytest.raises(ValueError, match="lacks 106"):
        RexSeekProcessor(tokenizer)
    processor = RexSeekProcessor.from_tokenizer(tokenizer, tiny_config)
    assert len(tokenizer) == before
    assert len(processor.tokenizer) == before + 106
    ids = processor.tokenizer.convert_tokens_to_ids(list(ADDED_TOKENS))
    assert ids == list(range(ids[0], ids[0] + 104))


def test_save_and_load(tiny_processor, tmp_path):
    tiny_processor.save_pretrained(tmp_path)
    for loaded in (RexSeekProcessor.from_pretrained(tmp_path), AutoProcessor.from_pretrained(tmp_path)):
        assert isinstance(loaded, RexSeekProcessor)
        sizes = (loaded.image_size, loaded.image_size_aux, loaded.num_image_tokens)
        assert sizes == (112, 256, 64)
        assert loaded.prefix_ids(3) == tiny_processor.prefix_ids(3)
        question = question_for("穿红衣服的人 👩‍👧")
        assert loaded.question_ids(question) == tiny_processor.question_ids(question)


def test_image_inputs_letterbox(tiny_processor):
    white = Image.new("RGB", (200, 100), (255, 255, 255))
    inputs = tiny_processor.image_inputs(white)
    assert inputs["pixel_values_aux"].shape == (3, 256, 256)
    assert inputs["pixel_values"].shape == (3, 112, 112)
    aux = inputs["pixel_values_aux"]
    assert aux[:, :60].abs().max() < 0.02  # padded with the mean colour, truncated to whole numbers
    assert aux[:, 70:186].min() > 1.9
    assert aux[:, 196:].abs().max() < 0.02


@pytest.mark.parametrize(
    "size", [(200, 100), (101, 256), (61, 97), (97, 97), (1000, 333), (3, 400), (400, 1)]
)
def test_letterbox_is_padding_and_then_one_resize(size):
    """Padding rows that are added between Pillow's two passes change no pixel."""
    width, height = size
    image, side = make_image(width, height), max(size)
    square = Image.new("RGB", (side, side), (122, 116, 104))
    square.paste(image, ((side - width) // 2, (side - height) // 2))
    expected = square.resize((256, 256), Image.Resampling.BICUBIC)
    assert np.array_equal(np.asarray(letterbox(image, 256)), np.asarray(expected))


def test_normalised_values_are_those_of_the_released_order_of_operations(tiny_processor):
    """Every 8-bit value: x 1/255 in float64, then minus the mean, divided by the deviation in float32."""
    grey = Image.fromarray(np.arange(256, dtype=np.uint8).repeat(256).reshape(256, 256)).convert("RGB")
    aux = tiny_processor.image_inputs(grey)["pixel_values_aux"][:, :, 0].numpy()
    scaled = (np.arange(256).astype(np.float64) * (1 / 255)).astype(np.float32)
    mean = np.array([0.48145466, 0.4578275, 0.40821073], dtype=np.float32)
    deviation = np.array([0.26862954, 0.26130258, 0.27577711], dtype=np.float32)
    assert np.array_equal(aux, (scaled[None] - mean[:, None]) / deviation[:, None])


def test_batch(tiny_processor):
    images = [make_image(), make_image(30, 90)]
    boxes = [[[0, 0, 60, 40], [10, 10, 20, 20]], []]
    batch = tiny_processor(images, boxes, ["Who?", "What is it?"])
    assert batch["num_objects"].tolist() == [2, 0]
    assert batch["object_boxes"].dtype == torch.float32
    torch.testing.assert_close(batch["object_boxes"][0], torch.tensor([0, 10, 60, 50]) * (256 / 60))
    lengths = batch["attention_mask"].sum(dim=1).tolist()
    single = tiny_processor(images[1], boxes[1], "What is it?")
    assert single["input_ids"][0].tolist() == batch["input_ids"][1, : lengths[1]].tolist()
    assert batch["attention_mask"][1, lengths[1] :].sum() == 0
    left = tiny_processor(images, boxes, ["Who?", "What is it?"], padding_side="left")
    assert left["input_ids"][1, -lengths[1] :].tolist() == single["input_ids"][0].tolist()
    assert boxes == [[[0, 0, 60, 40], [10, 10, 20, 20]], []]


def test_text_alone(tiny_processor):
    batch = tiny_processor(None, None, "Hi")
    assert set(batch) == {"input_ids", "attention_mask"}


@pytest.mark.parametrize(
    ("boxes", "text", "message"),
    [
        ([[100, 100, 50, 50]], "Who?", "boxes of image 0: box 0.*inverted"),
        ([[1, 1, 20, 20]], " ", "text 0"),
        ([[1, 1, 20, 20]], "the <obj3>", "text 0.*<obj3>"),
        ([[1, 1, 20, 20]] * 101, "Who?", "got 101"),
    ],
)
def test_bad_input_is_refused(tiny_processor, boxes, text, message):
    with pytest.raises(ValueError, match=message):
        tiny_processor(make_image(), boxes, text)


def test_unequal_lengths_are_refused(tiny_processor):
    for images, got in ([make_image()], "1 images"), (make_image(), "a single image"):
        with pytest.raises(ValueError, match=f"an image for each of 2 texts, got {got}; to ask many"):
            tiny_processor(images, [[]], ["a", "b"])
    with pytest.raises(ValueError, match="expected images for the boxes of 1 texts, got None"):
        tiny_processor(None, [], "a")
    with pytest.raises(ValueError, match="each of 1 images, got 2"):
        tiny_processor([make_image()], [[], []], ["a"])
    with pytest.raises(ValueError, match="padding_side"):
        tiny_processor(make_image(), [], "a", padding_side="middle")
