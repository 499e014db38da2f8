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
    Sam2Config,
    Sam2ImageProcessor,
    Sam2Model,
    Sam2Processor,
    SamConfig,
    SamImageProcessor,
    SamModel,
    SamProcessor,
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


def sam() -> tuple:
    sizes = {"image_size": 64, "patch_size": 16}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {**sizes, **layers, "hidden_size": 16, "output_channels": 16, "global_attn_indexes": [0]}
    decoder = {**layers, "hidden_size": 16, "mlp_dim": 16, "iou_head_hidden_dim": 16}
    config = SamConfig(
        vision_config={**vision, "mlp_dim": 16, "num_pos_feats": 8},
        prompt_encoder_config={**sizes, "hidden_size": 16, "mask_input_channels": 4},
        mask_decoder_config=decoder,
    )
    image_processor = SamImageProcessor(size={"longest_edge": 64}, pad_size=_SQUARE)
    return SamModel(config), SamProcessor(image_processor)


def sam2() -> tuple:
    backbone = {
        "hidden_size": 8,
        "image_size": [64, 64],
        "window_positional_embedding_background_size": [4, 4],
        "blocks_per_stage": [1, 1, 2, 1],
        "embed_dim_per_stage": [8, 16, 32, 64],
        "num_attention_heads_per_stage": [1, 1, 2, 2],
        "window_size_per_stage": [4] * 4,
        "global_attention_blocks": [3],
        "model_type": "sam2_hiera_det_model",
    }
    vision = {
        "backbone_config": backbone,
        "backbone_channel_list": [64, 32, 16, 8],
        "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
        "fpn_hidden_size": 16,
    }
    decoder = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "mlp_dim": 16}
    config = Sam2Config(
        vision_config=vision,
        prompt_encoder_config={"image_size": 64, "hidden_size": 16, "mask_input_channels": 4},
        mask_decoder_config={**decoder, "iou_head_hidden_dim": 16},
    )
    return Sam2Model(config), Sam2Processor(Sam2ImageProcessor(size=_SQUARE, mask_size=None))


SEGMENTERS = {"sam": sam, "sam2": sam2}


def save(name: str, folder: Path) -> Path:
    """Write one of `MAKERS` or `SEGMENTERS` to a folder."""
    torch.manual_seed(0)
    model, processor = {**MAKERS, **SEGMENTERS}[name]()
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
