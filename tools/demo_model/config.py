"""The shape of the demo model, as a released config.json writes it."""

from typing import Any

from tools.demo_model.text import END_OF_TEXT, IDS, IM_END, VOCAB_SIZE

CONTEXT = 4096
HIDDEN = 256
LAYERS = 8
FULL_INTERVAL = 4
HEADS = 2
KV_HEADS = 1
HEAD_DIM = 256
ROTARY = 64
THETA = 10_000_000
SECTIONS = (11, 11, 10)
GDN_KEY_HEADS = 2
GDN_VALUE_HEADS = 4
GDN_DIM = 128
CONV = 4
FFN = 640
EPS = 1e-6

VISION_DEPTH = 4
VISION_HIDDEN = 192
VISION_HEADS = 3
VISION_FFN = 768
PATCH = 16
MERGE = 2
POSITIONS = 2304
MIN_PIXELS = 32 * 32
MAX_PIXELS = 1024 * 1024

LAYER_TYPES = tuple(
    "full_attention" if (i + 1) % FULL_INTERVAL == 0 else "linear_attention" for i in range(LAYERS)
)


def hf_config() -> dict[str, Any]:
    """config.json."""
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "image_token_id": IDS["<|image_pad|>"],
        "model_type": "qwen3_5",
        "text_config": {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attn_output_gate": True,
            "bos_token_id": END_OF_TEXT,
            "dtype": "float32",
            "eos_token_id": END_OF_TEXT,
            "full_attention_interval": FULL_INTERVAL,
            "head_dim": HEAD_DIM,
            "hidden_act": "silu",
            "hidden_size": HIDDEN,
            "initializer_range": 0.02,
            "intermediate_size": FFN,
            "layer_types": list(LAYER_TYPES),
            "linear_conv_kernel_dim": CONV,
            "linear_key_head_dim": GDN_DIM,
            "linear_num_key_heads": GDN_KEY_HEADS,
            "linear_num_value_heads": GDN_VALUE_HEADS,
            "linear_value_head_dim": GDN_DIM,
            "mamba_ssm_dtype": "float32",
            "max_position_embeddings": CONTEXT,
            "model_type": "qwen3_5_text",
            "mtp_num_hidden_layers": 1,
            "mtp_use_dedicated_embeddings": False,
            "num_attention_heads": HEADS,
            "num_hidden_layers": LAYERS,
            "num_key_value_heads": KV_HEADS,
            "partial_rotary_factor": ROTARY / HEAD_DIM,
            "rms_norm_eps": EPS,
            "rope_parameters": {
                "mrope_interleaved": True,
                "mrope_section": list(SECTIONS),
                "partial_rotary_factor": ROTARY / HEAD_DIM,
                "rope_theta": THETA,
                "rope_type": "default",
            },
            "tie_word_embeddings": True,
            "use_cache": True,
            "vocab_size": VOCAB_SIZE,
        },
        "tie_word_embeddings": True,
        "video_token_id": IDS["<|video_pad|>"],
        "vision_config": {
            "deepstack_visual_indexes": [],
            "depth": VISION_DEPTH,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": VISION_HIDDEN,
            "in_channels": 3,
            "initializer_range": 0.02,
            "intermediate_size": VISION_FFN,
            "model_type": "qwen3_5",
            "num_heads": VISION_HEADS,
            "num_position_embeddings": POSITIONS,
            "out_hidden_size": HIDDEN,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
        },
        "vision_end_token_id": IDS["<|vision_end|>"],
        "vision_start_token_id": IDS["<|vision_start|>"],
    }


def generation_config() -> dict[str, Any]:
    """generation_config.json: the model is meant to be run greedily."""
    return {
        "bos_token_id": END_OF_TEXT,
        "do_sample": False,
        "eos_token_id": [IM_END, END_OF_TEXT],
        "pad_token_id": END_OF_TEXT,
    }


def preprocessor_config() -> dict[str, Any]:
    """preprocessor_config.json; the pixel limits let every chart size through as it is."""
    return {
        "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": MERGE,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessorFast",
    }
