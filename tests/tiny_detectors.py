"""Tiny random detection and segmentation models, made from configs and saved as a user would have them."""

from pathlib import Path

import torch
from transformers import (
    BertConfig,
    BertTokenizer,
    CLIPTokenizer,
    DetrConfig,
    DetrForObjectDetection,
    DetrImageProcessor,
    DFineConfig,
    DFineForObjectDetection,
    GroundingDinoConfig,
    GroundingDinoForObjectDetection,
    GroundingDinoImageProcessor,
    GroundingDinoProcessor,
    HGNetV2Config,
    Owlv2Config,
    Owlv2ForObjectDetection,
    Owlv2ImageProcessor,
    Owlv2Processor,
    ResNetConfig,
    RTDetrConfig,
    RTDetrForObjectDetection,
    RTDetrImageProcessor,
    RTDetrResNetConfig,
    SwinConfig,
)

LABELS = {0: "person", 1: "dog", 2: "tennis racket"}
_SQUARE = {"height": 64, "width": 64}
_FOUR = [8, 8, 8, 8]
_STAGES = ["stage2", "stage3", "stage4"]
_DETR = {
    "d_model": 32,
    "decoder_layers": 2,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "num_queries": 12,
}
_RT_DETR = {
    **_DETR,
    "encoder_hidden_dim": 32,
    "encoder_in_channels": [8] * 3,
    "decoder_in_channels": [32] * 3,
}


def grounding_dino() -> tuple:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "?", "person", "dog", "hat"]
    backbone = SwinConfig(
        embed_dim=8,
        depths=[1] * 4,
        num_heads=[1, 1, 2, 2],
        image_size=64,
        window_size=4,
        out_features=_STAGES,
    )
    text = BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    config = GroundingDinoConfig(backbone_config=backbone, text_config=text, max_text_len=32, **_DETR)
    tokenizer = BertTokenizer(vocab={token: number for number, token in enumerate(tokens)})
    processor = GroundingDinoProcessor(
        GroundingDinoImageProcessor(size={"height": 128, "width": 128}), tokenizer
    )
    return GroundingDinoForObjectDetection(config), processor


def owlv2() -> tuple:
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = ["!", "<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    tokenizer = CLIPTokenizer(vocab={token: number for number, token in enumerate(tokens)}, merges=[])
    tokenizer.model_max_length = 16
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**small, "vocab_size": 64, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2}
    vision = {**small, "image_size": 64, "patch_size": 16}
    config = Owlv2Config(text_config=text, vision_config=vision, projection_dim=16)
    return Owlv2ForObjectDetection(config), Owlv2Processor(Owlv2ImageProcessor(size=_SQUARE), tokenizer)


def rt_detr() -> tuple:
    backbone = RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=_FOUR, depths=[1] * 4, out_features=_STAGES, layer_type="basic"
    )
    config = RTDetrConfig(backbone_config=backbone, id2label=LABELS, **_RT_DETR)
    return RTDetrForObjectDetection(config), RTDetrImageProcessor(size=_SQUARE)


def d_fine() -> tuple:
    channels = {f"stage_{name}_channels": _FOUR for name in ("in", "mid", "out")}
    backbone = HGNetV2Config(
        stem_channels=[3, 8, 8],
        embedding_size=8,
        hidden_sizes=_FOUR,
        depths=[1] * 4,
        stage_num_blocks=[1] * 4,
        stage_numb_of_layers=[1] * 4,
        out_features=_STAGES,
        **channels,
    )
    config = DFineConfig(backbone_config=backbone, id2label=LABELS, **_RT_DETR)
    return DFineForObjectDetection(config), RTDetrImageProcessor(size=_SQUARE)


def detr() -> tuple:
    backbone = ResNetConfig(embedding_size=8, hidden_sizes=_FOUR, depths=[1] * 4, out_features=["stage4"])
    config = DetrConfig(backbone_config=backbone, id2label=LABELS, **_DETR)
    return DetrForObjectDetection(config), DetrImageProcessor(size={"shortest_edge": 64, "longest_edge": 128})


MAKERS = {maker.__name__: maker for maker in (grounding_dino, owlv2, rt_detr, d_fine, detr)}


def save_detector(name: str, folder: Path) -> Path:
    """Write one of `MAKERS` to a folder."""
    torch.manual_seed(0)
    model, processor = MAKERS[name]()
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
