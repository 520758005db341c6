"""The Qwen3.5 text model over a ragged batch of rows (spec qwen35 §4-9)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from luce.compute.ops import unit_norm
from luce.compute.tiles import TILE, padded
from luce.engines.qwen35.attention import Attention
from luce.engines.qwen35.batch import Batch
from luce.engines.qwen35.config import TextConfig
from luce.engines.qwen35.deltanet import DeltaNet
from luce.engines.qwen35.ffn import Ffn
from luce.engines.qwen35.moe import Moe
from luce.engines.qwen35.packed import PackedAttention, PackedDeltaNet, PackedFfn, PackedMoe, PackedText
from luce.engines.qwen35.state import StatePool

__all__ = ["LOGIT_ROWS", "TextModel"]

F32 = npt.NDArray[np.float32]
Tap = Callable[[int, F32], None]

LOGIT_ROWS = TILE
"""Rows of one call of :meth:`TextModel.logits`. The head is read once per row tile however many tiles there are, so
more rows would take memory (248,320 logits are 1 MB a row) and save no time."""


class TextModel:
    """The layers with their scratch memory. Used by one thread; the state of sequences lives in the pool."""

    def __init__(self, config: TextConfig, weights: PackedText, max_rows: int, max_context: int) -> None:
        """``max_rows``: most rows of one pass."""
        self.config = config
        self.weights = weights
        self.max_rows = max_rows
        self.eps = np.float32(config.hidden * config.rms_eps)
        rows = padded(max_rows)

        def new(*shape: int) -> F32:
            return np.zeros(shape, np.float32)

        self._x = new(rows, config.hidden)
        self._normed = new(rows, config.hidden)
        ffn = weights.layers[0].ffn
        ffn_out = ffn.down if isinstance(ffn, PackedFfn) else ffn.shared_down
        self._out = new(rows, max(ffn_out.width, *(layer.mixer.out.width for layer in weights.layers)))
        self._logits = new(LOGIT_ROWS, weights.head.width)
        mixers = [layer.mixer for layer in weights.layers]
        linear = next((mixer for mixer in mixers if isinstance(mixer, PackedDeltaNet)), None)
        full = next((mixer for mixer in mixers if isinstance(mixer, PackedAttention)), None)
        self._deltanet = None if linear is None else DeltaNet(config, linear, max_rows)
        self._ffn = Ffn(config.ffn, ffn, max_rows) if isinstance(ffn, PackedFfn) else None
        self._moe = None
        if isinstance(ffn, PackedMoe):
            assert config.moe is not None
            self._moe = Moe(config.moe, config.hidden, ffn, max_rows)
        self._attention = None if full is None else Attention(config, full, max_rows, max_context)

    def input_rows(self, rows: int) -> F32:
        """The buffer [rows, hidden] to put input rows into before :meth:`forward`."""
        return self._x[:rows]

    def forward(self, batch: Batch, pool: StatePool, tap: Tap | None = None) -> F32:
        """Run all layers over the rows in :meth:`input_rows`.

        Returns the last layer's rows [R, hidden], valid until the next call. ``tap(layer, rows)`` sees every
        layer's output rows, before the next layer changes them.
        """
        rows = batch.rows
        x = self._x[:rows]
        out = self._out[:rows, : self.config.hidden]
        linear, full = iter(pool.deltanet), iter(pool.kv)
        for index, layer in enumerate(self.weights.layers):
            unit_norm(x, self.eps, out=self._normed[:rows])
            if isinstance(layer.mixer, PackedDeltaNet):
                assert self._deltanet is not None
                self._deltanet(layer.mixer, next(linear), batch, self._normed, self._out)
            else:
                assert self._attention is not None
                self._attention(layer.mixer, next(full), batch, self._normed, self._out)
            np.add(x, out, out=x)
            unit_norm(x, self.eps, out=self._normed[:rows])
            if isinstance(layer.ffn, PackedFfn):
                assert self._ffn is not None
                self._ffn(layer.ffn, self._normed, self._out, rows)
            else:
                assert self._moe is not None
                self._moe(layer.ffn, self._normed, self._out, rows)
            np.add(x, out, out=x)
            if tap is not None:
                tap(index, x)
        return x

    def logits(self, hidden: F32) -> F32:
        """Logits [n, V] of last-layer rows [n, hidden], n <= :data:`LOGIT_ROWS`; valid until the next call."""
        count = len(hidden)
        unit_norm(hidden, self.eps, out=self._normed[:count])
        self.weights.head(self._normed, self._logits, count)
        return self._logits[:count, : self.config.vocab_size]
