"""The compact training model: vision tower, decoder and multi-token-prediction block in plain PyTorch.

State-dict names are the tensor names of the released checkpoints.  Pictures are padded to one number of patches and
rows of tokens to one length, so that a batch needs no loop over pictures or samples.
"""

import math

import attrs
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from luce.demo.drawing import SIZES
from tools.demo_model import config as c
from tools.demo_model.layers import DecoderLayer, RMSNorm, compiled, linear, rotate

MAX_PATCHES = max(w * h for w, h in SIZES) // c.PATCH**2
MAX_MERGED = MAX_PATCHES // 4


@attrs.frozen
class Batch:
    """One batch: R rows of L tokens, M pictures.

    ids, labels (R * L) int64; a label is the token that follows, -100 where it does not count
    positions   (3, R * L) int32
    place       (R * L) int32: index of the token in its row
    target      (M * MAX_MERGED) int64: the token whose embedding an image feature replaces, R * L for none
    weights     (R * L) float32: weight in the loss
    patches     (M, MAX_PATCHES, 768) uint8: [channel][y][x] of each patch, in merge order
    sizes       (M) int64: index into SIZES
    """

    ids: Tensor
    positions: Tensor
    place: Tensor
    target: Tensor
    labels: Tensor
    weights: Tensor
    patches: Tensor
    sizes: Tensor

    def to(self, device: torch.device) -> "Batch":
        return Batch(*(getattr(self, f.name).to(device, non_blocking=True) for f in attrs.fields(Batch)))


def merge_order(gh: int, gw: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each patch, patches in 2 by 2 block order."""
    grid = np.arange(gh * gw).reshape(gh // 2, 2, gw // 2, 2).transpose(0, 2, 1, 3).reshape(-1)
    return grid // gw, grid % gw


def patchify(pixels: np.ndarray) -> np.ndarray:
    """(H, W, 3) uint8 to (patches, 768) uint8 in merge order, each [channel][y][x]."""
    height, width, _ = pixels.shape
    blocks = pixels.reshape(height // 32, 2, 16, width // 32, 2, 16, 3)
    return blocks.transpose(0, 3, 1, 4, 6, 2, 5).reshape(-1, 768)


def _size_tables() -> dict[str, Tensor]:
    """Per size: corners and weights of the position table, rotation angles, and which patches are real."""
    n = math.isqrt(c.POSITIONS)
    head = c.VISION_HIDDEN // c.VISION_HEADS
    frequencies = 10000.0 ** (-np.arange(head // 4) * 2 / (head // 2))
    corners = np.zeros((len(SIZES), MAX_PATCHES, 4), np.int64)
    weights = np.zeros((len(SIZES), MAX_PATCHES, 4), np.float32)
    angles = np.zeros((len(SIZES), MAX_PATCHES, head // 2), np.float32)
    real = np.zeros((len(SIZES), MAX_PATCHES), bool)
    for i, (width, height) in enumerate(SIZES):
        gh, gw = height // c.PATCH, width // c.PATCH
        row, col = merge_order(gh, gw)
        y, x = (np.linspace(0, n - 1, m, dtype=np.float32)[p] for m, p in ((gh, row), (gw, col)))
        y0, x0 = y.astype(np.int64), x.astype(np.int64)
        y1, x1 = np.minimum(y0 + 1, n - 1), np.minimum(x0 + 1, n - 1)
        fy, fx = y - y0, x - x0
        count = gh * gw
        corners[i, :count] = np.stack([y0 * n + x0, y0 * n + x1, y1 * n + x0, y1 * n + x1], -1)
        weights[i, :count] = np.stack([(1 - fy) * (1 - fx), (1 - fy) * fx, fy * (1 - fx), fy * fx], -1)
        angles[i, :count] = np.concatenate([row[:, None] * frequencies, col[:, None] * frequencies], -1)
        real[i, :count] = True
    return {
        "corners": torch.from_numpy(corners),
        "corner_weights": torch.from_numpy(weights),
        "cos": torch.from_numpy(np.cos(angles)),
        "sin": torch.from_numpy(np.sin(angles)),
        "real": torch.from_numpy(real),
    }


class VisionMLP(nn.Module):
    def __init__(self, inputs: int, inner: int, outputs: int, scale: float = 1.0) -> None:
        super().__init__()
        self.linear_fc1 = linear(inputs, inner, bias=True)
        self.linear_fc2 = linear(inner, outputs, bias=True, scale=scale)


class VisionAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = linear(c.VISION_HIDDEN, 3 * c.VISION_HIDDEN, bias=True)
        self.proj = linear(c.VISION_HIDDEN, c.VISION_HIDDEN, bias=True, scale=0.4)


class VisionBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(c.VISION_HIDDEN, eps=1e-6)
        self.norm2 = nn.LayerNorm(c.VISION_HIDDEN, eps=1e-6)
        self.attn = VisionAttention()
        self.mlp = VisionMLP(c.VISION_HIDDEN, c.VISION_FFN, c.VISION_HIDDEN, scale=0.4)


@compiled
def _vision_block(block: VisionBlock, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
    images, patches, size = x.shape
    q, k, v = block.attn.qkv(block.norm1(x)).view(images * patches, 3, c.VISION_HEADS, -1).unbind(1)

    def heads(t: Tensor) -> Tensor:
        return t.reshape(images, patches, c.VISION_HEADS, -1).transpose(1, 2)

    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    scores = heads(q) @ heads(k).transpose(-1, -2) * (size // c.VISION_HEADS) ** -0.5
    out = (scores + mask).softmax(-1).to(v.dtype) @ heads(v)
    x = x + block.attn.proj(out.transpose(1, 2).reshape(x.shape))
    inner = fn.gelu(block.mlp.linear_fc1(block.norm2(x)), approximate="tanh")
    return x + block.mlp.linear_fc2(inner)


class PatchEmbed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Conv3d(3, c.VISION_HIDDEN, (2, c.PATCH, c.PATCH), (2, c.PATCH, c.PATCH))
        nn.init.normal_(self.proj.weight, std=0.02)
        nn.init.zeros_(self.proj.bias)


class Merger(VisionMLP):
    def __init__(self) -> None:
        wide = 4 * c.VISION_HIDDEN
        super().__init__(wide, wide, c.HIDDEN, scale=0.05)
        self.norm = nn.LayerNorm(c.VISION_HIDDEN, eps=1e-6)


class Vision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed()
        self.pos_embed = nn.Embedding(c.POSITIONS, c.VISION_HIDDEN)
        nn.init.normal_(self.pos_embed.weight, std=0.1)
        self.blocks = nn.ModuleList([VisionBlock() for _ in range(c.VISION_DEPTH)])
        self.merger = Merger()
        for name, table in _size_tables().items():
            self.register_buffer(name, table, persistent=False)

    def forward(self, patches: Tensor, sizes: Tensor) -> Tensor:
        """(M, MAX_PATCHES, 768) uint8 to (M * MAX_MERGED, hidden)."""
        pixels = patches.float() / 127.5 - 1
        weight = self.patch_embed.proj.weight.sum(2).flatten(1)
        x = fn.linear(pixels, weight, self.patch_embed.proj.bias)
        table = (self.pos_embed(self.corners) * self.corner_weights[..., None]).sum(2)
        chosen = fn.one_hot(sizes, len(SIZES)).to(table.dtype) @ table.flatten(1)
        x = x + chosen.view(x.shape)
        cos, sin = self.cos[sizes].flatten(0, 1), self.sin[sizes].flatten(0, 1)
        mask = torch.where(self.real[sizes], 0.0, -1e9)[:, None, None, :]
        for block in self.blocks:
            x = _vision_block(block, x, cos, sin, mask)
        merged = self.merger.norm(x).view(-1, 4 * c.VISION_HIDDEN)
        return self.merger.linear_fc2(fn.gelu(self.merger.linear_fc1(merged)))


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.VOCAB_SIZE, c.HIDDEN)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        self.layers = nn.ModuleList([DecoderLayer(kind) for kind in c.LAYER_TYPES])
        self.norm = RMSNorm(c.HIDDEN)


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.visual = Vision()
        self.language_model = LanguageModel()


class MultiToken(nn.Module):
    """Predicts the token after next from the final state and the next token's embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = linear(2 * c.HIDDEN, c.HIDDEN)
        self.pre_fc_norm_embedding = RMSNorm(c.HIDDEN)
        self.pre_fc_norm_hidden = RMSNorm(c.HIDDEN)
        self.layers = nn.ModuleList([DecoderLayer("full_attention")])
        self.norm = RMSNorm(c.HIDDEN)


@compiled
def _cross_entropy(hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    return fn.cross_entropy(fn.linear(hidden, head).float(), labels, ignore_index=-100, reduction="none")


class DemoModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Body()
        self.mtp = MultiToken()
        pair = torch.arange(c.ROTARY // 2)
        self.register_buffer("frequencies", c.THETA ** (-pair * 2 / c.ROTARY), persistent=False)
        self.register_buffer("axis", pair % 3, persistent=False)

    def hidden(self, batch: Batch, rows: int) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Final states after the norm and input embeddings, (tokens, hidden), and the rotation of each token."""
        text = self.model.language_model
        images = self.model.visual(batch.patches, batch.sizes)
        embedded = text.embed_tokens(batch.ids)
        # Written rather than gathered, so that the backward pass is a gather and meets no repeated index.
        with_spare = torch.cat([embedded, embedded.new_zeros(1, c.HIDDEN)])
        inputs = with_spare.index_copy(0, batch.target, images.to(embedded.dtype))[:-1]
        angles = batch.positions[self.axis].T * self.frequencies
        cos, sin = angles.cos(), angles.sin()
        x = inputs
        for layer in text.layers:
            x = layer(x, rows, batch.place, cos, sin)
        return text.norm(x), inputs, (cos, sin)

    def predict_after_next(
        self, hidden: Tensor, inputs: Tensor, rotation: tuple[Tensor, Tensor], batch: Batch, rows: int
    ) -> Tensor:
        """States (tokens, hidden) whose logits tell the token two places on."""
        following = torch.cat([inputs[1:], inputs[:1]])
        e, h = self.mtp.pre_fc_norm_embedding(following), self.mtp.pre_fc_norm_hidden(hidden)
        x = self.mtp.fc(torch.cat([e, h], -1)).float()
        x = self.mtp.layers[0](x, rows, batch.place, *rotation)
        return self.mtp.norm(x)

    def losses(self, batch: Batch, rows: int) -> tuple[Tensor, Tensor]:
        """Weighted cross entropy of the next token and of the token after it."""
        head = self.model.language_model.embed_tokens.weight
        hidden, inputs, rotation = self.hidden(batch, rows)
        total = batch.weights.sum()
        main = (_cross_entropy(hidden, head, batch.labels) * batch.weights).sum() / total
        after = self.predict_after_next(hidden, inputs, rotation, batch, rows)
        labels = torch.cat([batch.labels[1:], batch.labels.new_full((1,), -100)])
        weights = torch.cat([batch.weights[1:], batch.weights.new_zeros(1)])
        return main, (_cross_entropy(after, head, labels) * weights).sum() / total

    def right(self, batch: Batch, rows: int) -> tuple[Tensor, Tensor]:
        """Whether each token's greedy prediction is its label (True where it does not count): main and MTP."""
        head = self.model.language_model.embed_tokens.weight
        hidden, inputs, rotation = self.hidden(batch, rows)
        after = self.predict_after_next(hidden, inputs, rotation, batch, rows)
        labels = torch.cat([batch.labels[1:], batch.labels.new_full((1,), -100)])
        main = fn.linear(hidden, head).argmax(-1) == batch.labels
        second = fn.linear(after, head).argmax(-1) == labels
        return main | (batch.labels == -100), second | (labels == -100)
