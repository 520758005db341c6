"""Tensor names and layouts: released checkpoints on one side, GGUF text model and mmproj on the other.

Both directions are exact in float32.  `to_gguf` folds 1 into the zero-centred norms, stores -exp(A_log) and orders
the value heads by tiles; `from_gguf` undoes it, choosing the A_log whose exponential gives the stored bits back.
"""

import numpy as np
from numpy.typing import NDArray

from tools.demo_model import config as c

Array = NDArray[np.float32]
Tensors = dict[str, Array]

TEXT = "model.language_model."
VISION = "model.visual."

_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
_MTP = {
    "mtp.fc.weight": "nextn.eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
    "mtp.norm.weight": "nextn.shared_head_norm.weight",
}
_VISION_BLOCK = {
    "norm1": "ln1",
    "norm2": "ln2",
    "attn.qkv": "attn_qkv",
    "attn.proj": "attn_out",
    "mlp.linear_fc1": "ffn_up",
    "mlp.linear_fc2": "ffn_down",
}
PATCH_EMBED = VISION + "patch_embed.proj.weight"
PATCH_EMBED_GGUF = ("v.patch_embd.weight", "v.patch_embd.weight.1")


def text_names() -> dict[str, str]:
    """Checkpoint name to GGUF name of every text tensor, MTP block included."""
    names = {TEXT + "embed_tokens.weight": "token_embd.weight", TEXT + "norm.weight": "output_norm.weight"}
    for i, kind in enumerate((*c.LAYER_TYPES, "full_attention")):
        prefix = "mtp.layers.0." if i == c.LAYERS else f"{TEXT}layers.{i}."
        skipped = "self_attn" if kind == "linear_attention" else "linear_attn"
        for ours, theirs in _LAYER.items():
            if not ours.startswith(skipped):
                names[prefix + ours] = f"blk.{i}.{theirs}"
    names |= {ours: f"blk.{c.LAYERS}.{theirs}" for ours, theirs in _MTP.items()}
    return names


def vision_names() -> dict[str, str]:
    """Checkpoint name to GGUF name of every vision tensor except the patch embedding's weight."""
    names = {
        VISION + "patch_embed.proj.bias": "v.patch_embd.bias",
        VISION + "pos_embed.weight": "v.position_embd.weight",
    }
    pairs = {
        f"blocks.{j}.{a}": f"v.blk.{j}.{b}" for j in range(c.VISION_DEPTH) for a, b in _VISION_BLOCK.items()
    }
    pairs |= {"merger.norm": "v.post_ln", "merger.linear_fc1": "mm.0", "merger.linear_fc2": "mm.2"}
    for ours, theirs in pairs.items():
        for end in ("weight", "bias"):
            names[f"{VISION}{ours}.{end}"] = f"{theirs}.{end}"
    return names


def _is_zero_centred(name: str) -> bool:
    return name.endswith("norm.weight") and not name.endswith("ssm_norm.weight")


def _tiles(back: bool) -> NDArray[np.intp]:
    """Order of the value heads: tiled from grouped, or the way back."""
    heads = np.arange(c.GDN_VALUE_HEADS)
    r = c.GDN_VALUE_HEADS // c.GDN_KEY_HEADS
    order = (heads % c.GDN_KEY_HEADS) * r + heads // c.GDN_KEY_HEADS
    return np.argsort(order) if back else order


def _reorder(name: str, x: Array, back: bool) -> Array:
    """Value heads of a GDN tensor into the other order; other tensors as they are."""
    part = name.split(".", 2)[-1]
    order = _tiles(back)
    if part in ("ssm_a", "ssm_dt.bias", "ssm_alpha.weight", "ssm_beta.weight"):
        return x[order]
    rows = (order[:, None] * c.GDN_DIM + np.arange(c.GDN_DIM)).reshape(-1)
    if part == "attn_gate.weight":
        return x[rows]
    if part == "ssm_out.weight":
        return x[:, rows]
    if part in ("attn_qkv.weight", "ssm_conv1d.weight"):
        keys = 2 * c.GDN_KEY_HEADS * c.GDN_DIM
        return np.concatenate([x[:keys], x[keys:][rows]])
    return x


def exact_log(y: Array) -> Array:
    """x with float32(exp(x)) == y bit for bit.  Raises ValueError where there is none."""
    guess = np.log(y.astype(np.float64)).astype(np.float32)
    found = np.full_like(y, np.nan)
    for step in range(-16, 17):
        x = (guess.view(np.int32) + np.int32(step)).view(np.float32)
        found = np.where(np.isnan(found) & _agrees(x, y), x, found)
    if np.isnan(found).any():
        raise ValueError("no float32 logarithm gives the stored ssm_a back")
    return found


def _agrees(x: Array, y: Array) -> NDArray[np.bool_]:
    """The same in float32 and in float64 arithmetic, so that every loader gets these bits."""
    with np.errstate(invalid="ignore", over="ignore"):
        result: NDArray[np.bool_] = (np.exp(x) == y) & (np.exp(x.astype(np.float64)).astype(np.float32) == y)
    return result


def steady(log: Array) -> Array:
    """The float32 close to `log` whose exponential is the same in float32 and float64 arithmetic.

    Raises ValueError where there is none.
    """
    found = np.full_like(log, np.nan)
    for step in sorted(range(-16, 17), key=abs):
        shifted = (np.exp(log).view(np.int32) + np.int32(step)).view(np.float32)
        for x in ((log.view(np.int32) + np.int32(step)).view(np.float32), np.log(shifted.astype(np.float64))):
            candidate = x.astype(np.float32)
            found = np.where(np.isnan(found) & _agrees(candidate, np.exp(candidate)), candidate, found)
    if np.isnan(found).any():
        raise ValueError("no float32 A_log has the same exponential in float32 and float64")
    return found


def to_gguf(state: Tensors) -> tuple[Tensors, Tensors]:
    """Text and vision tensors under GGUF names and layouts, float32."""
    text: Tensors = {}
    for ours, theirs in text_names().items():
        x = state[ours].astype(np.float32)
        if theirs.endswith("ssm_a"):
            x = -np.exp(steady(x))
        elif theirs.endswith("ssm_conv1d.weight"):
            x = x[:, 0]
        elif _is_zero_centred(theirs):
            x = np.float32(1) + x
        text[theirs] = np.ascontiguousarray(_reorder(theirs, x, back=False))
    vision = {theirs: state[ours].astype(np.float32) for ours, theirs in vision_names().items()}
    for frame, name in enumerate(PATCH_EMBED_GGUF):
        vision[name] = np.ascontiguousarray(state[PATCH_EMBED][:, :, frame].astype(np.float32))
    return text, vision


def from_gguf(text: Tensors, vision: Tensors) -> Tensors:
    """The checkpoint's tensors from dequantised GGUF tensors."""
    state: Tensors = {}
    for ours, theirs in text_names().items():
        x = _reorder(theirs, text[theirs], back=True)
        if theirs.endswith("ssm_a"):
            x = exact_log(-x)
        elif theirs.endswith("ssm_conv1d.weight"):
            x = x[:, None]
        elif _is_zero_centred(theirs):
            x = x - np.float32(1)
        state[ours] = np.ascontiguousarray(x)
    state |= {ours: vision[theirs] for ours, theirs in vision_names().items()}
    state[PATCH_EMBED] = np.stack([vision[name] for name in PATCH_EMBED_GGUF], axis=2)
    return state
