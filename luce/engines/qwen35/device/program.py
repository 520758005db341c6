"""The text model as launches: from a pass's descriptors through the layers to draws (spec qwen35 §4-9).

A step pass and a chunk pass differ in the kernels that mix rows of one sequence, and in the layout of the products'
inputs, which follows from the number of rows; no row's bits depend on which it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from luce.compute.activations import padded_depth
from luce.compute.device import Array, Device
from luce.compute.gemm import RowNorm
from luce.compute.norms import NORM_SHARED, norm_threads
from luce.compute.packing import ROW_BLOCK
from luce.engines.qwen35.config import TextConfig
from luce.engines.qwen35.device.attention import AttentionKernels, KvArrays, PassArrays, SplitArrays
from luce.engines.qwen35.device.chains import Chain, ChainRows
from luce.engines.qwen35.device.deltanet import DeltaNetConstants, DeltaNetLauncher, MixerRows
from luce.engines.qwen35.device.descriptors import DRAWN, STEP_ROWS
from luce.engines.qwen35.device.experts import Experts
from luce.engines.qwen35.device.moe import DeviceMoe, MoeShape
from luce.engines.qwen35.device.pool import DevicePool
from luce.engines.qwen35.device.products import Input, Normed, Products
from luce.engines.qwen35.device.runner import Tap
from luce.engines.qwen35.device.sampler import DeviceSampler
from luce.engines.qwen35.device.weights import Attention, DeltaNet, Dense, Layer, Matrix, Text, Vector

__all__ = ["QwenProgram"]


@attrs.frozen(eq=False)
class _Pass:
    """What the launches of one pass share."""

    pool: DevicePool
    parts: Mapping[str, Array]
    arrays: PassArrays
    rows: int
    """Rows of the grids."""
    lanes: int
    tiles: int
    is_step: bool


class QwenProgram:
    """Implements :class:`luce.engines.qwen35.device.runner.Program`."""

    def __init__(
        self,
        device: Device,
        config: TextConfig,
        text: Text,
        scratch: Mapping[str, Array],
        chunk_rows: int,
        sampler: DeviceSampler,
        *,
        tiled: bool = False,
    ) -> None:
        """``text``: uploaded; ``scratch``: by name, as :func:`.plan.scratch_of` lists it."""
        self.device, self.config, self._text, self._scratch = device, config, text, scratch
        self.hidden, self.chunk_rows = config.hidden, chunk_rows
        self.x, self.logits = scratch["x"], scratch["logits"]
        self._eps = np.float32(config.rms_eps)
        self._products = Products(
            device, text, scratch["product parts"], scratch["product counts"], scratch.get("gate and up")
        )
        self.sampler = sampler
        draws = STEP_ROWS * DRAWN.itemsize
        self._drawn, self._faults = scratch["results"][:draws], scratch["results"][draws:]
        self._embed = device.kernel("embedding.cu", "embedding", {"FORMAT": f"FORMAT_{text.embed.format}"})
        self._rms_norm = device.kernel("norm.cu", "rms_norm")
        self.moe = self._rms_norm_wide = None
        if config.moe is not None:
            self.moe = DeviceMoe(device, MoeShape.of(config), max(chunk_rows, STEP_ROWS), scratch)
            self._rms_norm_wide = device.kernel("norm.cu", "rms_norm_wide")
        self._check = device.kernel("copies.cu", "check_lanes")
        self._deltanet = self._attention = None
        self._constants: dict[int, DeltaNetConstants] = {}
        self.tile_rows = STEP_ROWS
        if not all(config.full_attention):
            self._deltanet = DeltaNetLauncher(device, config, scratch, tiled=tiled)
        if any(config.full_attention):
            self._attention = AttentionKernels(device, config)
            self._splits = SplitArrays(scratch["split parts"], scratch["split marks"])
            self.tile_rows = self._attention.query_tile

    @property
    def nbytes(self) -> int:
        """Device memory of weights, working memory and sampler."""
        arrays = [*self._scratch.values(), *self._text.held(), *self.sampler.arrays]
        return sum(int(array.nbytes) for array in arrays)

    # -- passes ---------------------------------------------------------------------------------------------------

    def step_class(self, end: int) -> int:
        """One class: the grids of a step depend on its bucket alone."""
        return 0

    def step(self, pool: DevicePool, parts: Mapping[str, Array], rows: int, kind: int) -> None:
        self._run(_Pass(pool, parts, self._arrays(pool, parts), rows, rows, 0, True), rows, None)

    def chunk(
        self,
        pool: DevicePool,
        parts: Mapping[str, Array],
        counts: Sequence[int],
        end: int,
        tap: Tap | None = None,
    ) -> None:
        rows, lanes, samples, tiles = counts
        self._run(_Pass(pool, parts, self._arrays(pool, parts), rows, lanes, tiles, False), samples, tap)

    def fold(self, pool: DevicePool, parts: Mapping[str, Array]) -> None:
        if self._deltanet is None:
            return
        mixers = [layer.mixer for layer in self._text.layers if isinstance(layer.mixer, DeltaNet)]
        for number, mixer in enumerate(mixers):
            self._deltanet.fold(parts, self._constant(mixer), _state(pool, number))

    def _run(self, at: _Pass, samples: int, tap: Tap | None) -> None:
        self._embedding(at)
        linear = full = 0
        ready = False  # what the layer's mixer reads is there
        for number, layer in enumerate(self._text.layers):
            if not ready:
                self._mixer_inputs(at, layer)
            if isinstance(layer.mixer, DeltaNet):
                mixed = self._mix_deltanet(at, layer.mixer, linear)
                linear += 1
            else:
                mixed = self._mix_attention(at, layer.mixer, full)
                full += 1
            chain = self._products.chains.find(number, at.rows) if at.is_step else None
            if chain is not None:
                self._chain(at, number, chain, mixed)
                ready = chain.inputs is not None
                continue
            ready = False
            self._products.add(layer.mixer.out, mixed, self.x)
            if isinstance(layer.ffn, Experts):
                self._experts(at, layer.post_norm, layer.ffn)
            else:
                self._dense(at, layer.post_norm, layer.ffn)
            if tap is not None:
                tap(number)
        if samples:
            self._draw(at, samples)
        else:
            self._check_lanes(at)

    # -- pieces ---------------------------------------------------------------------------------------------------

    def _embedding(self, at: _Pass) -> None:
        table, pool = self._text.embed, at.pool
        self._embed(
            (at.rows, 1, 1),
            min(256, -(-self.hidden // 128) * 32),
            [
                *(at.parts["header"], at.parts["rows"], table.data),
                *(np.int32(self.config.vocab_size), np.int32(self.hidden)),
                *(self.x, pool.histories, np.int32(pool.history_stride), self.x),
            ],
        )

    def _norm(self, at: _Pass, scale: Vector, reader: Matrix | None) -> Input | Normed:
        """The rows' norm, as the product of its only ``reader`` takes it. None: several read it."""
        if reader is not None and self._products.norms(at.rows, reader):
            return Normed(self.x, at.rows, RowNorm(scale.data, float(self._eps)))
        target = self._input("normed", at, self.hidden)
        self._launch_norm(at, scale, at.rows, None, target)
        return target

    def _launch_norm(self, at: _Pass, scale: Vector, rows: int, samples: Array | None, to: Input) -> None:
        self._rms_norm(
            (rows, 1, 1),
            norm_threads(self.hidden),
            [
                *(at.parts["header"], samples, self.x, scale.data, self._eps, np.int32(self.hidden)),
                *(to.data, np.int32(to.height), np.int32(to.tile), np.int32(to.depth)),
            ],
            shared=NORM_SHARED,
            early=True,
        )

    def _mixer_inputs(self, at: _Pass, layer: Layer) -> None:
        """What the layer's mixer reads, out of the rows."""
        gates = layer.mixer.gates if isinstance(layer.mixer, DeltaNet) else None
        normed = self._norm(at, layer.input_norm, None if gates is not None else layer.mixer.inputs)
        inputs = self._rows_of("mixer inputs", layer.mixer.inputs.rows)
        if gates is None:
            self._products.store(layer.mixer.inputs, normed, inputs)
        else:
            assert isinstance(normed, Input)
            self._products.store_both(layer.mixer.inputs, inputs, gates, self._scratch["gates"], normed)

    def _chain(self, at: _Pass, number: int, chain: Chain, mixed: Input) -> None:
        """A layer's products behind its mixer, and what the next one's reads."""
        normed, gates = self._input("normed", at, self.hidden), self._scratch["gates"]
        inputs = self.x
        if chain.inputs is not None:
            inputs = self._rows_of("mixer inputs", self._text.layers[number + 1].mixer.inputs.rows)
        rows = ChainRows(
            mixed.height,
            mixed.data,
            self.x,
            self._scratch["middle"],
            normed.data,
            inputs,
            gates,
            float(self._eps),
        )
        self._products.chains.launch(number, rows)

    def _mix_deltanet(self, at: _Pass, layer: DeltaNet, number: int) -> Input:
        assert self._deltanet is not None
        inputs, gates = self._rows_of("mixer inputs", layer.inputs.rows), self._scratch["gates"]
        stride = int(gates.shape[1])
        if layer.gates is None:
            first = self.config.conv_channels + self.config.value_size
            gates, stride = inputs.reshape(-1)[first:], int(inputs.shape[1])
        mixed = self._input("mixed", at, self.config.value_size)
        rows = MixerRows(inputs, int(inputs.shape[1]), gates, stride, mixed.data, mixed.height, mixed.tile)
        constants, state = self._constant(layer), _state(at.pool, number)
        if at.is_step:
            self._deltanet.step(at.parts, at.rows, rows, constants, state)
        else:
            self._deltanet.chunk(at.parts, at.rows, at.lanes, rows, constants, state)
        return mixed

    def _mix_attention(self, at: _Pass, layer: Attention, number: int) -> Input:
        assert self._attention is not None
        inputs, q = self._rows_of("mixer inputs", layer.inputs.rows), self._scratch["queries"]
        rope = self._scratch["rotations"]
        kv = KvArrays(at.pool.kv["keys"][number], at.pool.kv["values"][number])
        norms = layer.q_norm.data, layer.k_norm.data
        self._attention.inputs(at.arrays, at.rows, inputs, *norms, rope, q, kv)
        mixed = self._input("mixed", at, self.config.heads * self.config.head_dim)
        if at.is_step:
            self._attention.step(
                at.arrays, at.rows, inputs, q, kv, self._splits, mixed.data, mixed.height, mixed.tile
            )
        else:
            self._attention.chunks(at.arrays, at.tiles, inputs, q, kv, mixed.data, mixed.height, mixed.tile)
        return mixed

    def _dense(self, at: _Pass, scale: Vector, layer: Dense) -> None:
        normed = self._norm(at, scale, layer.gate_up)
        middle = self._products.swiglu(layer.gate_up, normed, self._scratch["middle"], self.config.ffn)
        self._products.add(layer.down, middle, self.x)

    def _experts(self, at: _Pass, scale: Vector, layer: Experts) -> None:
        """Rows stand in the step layout, however many they are: experts find theirs one by one."""
        assert self.moe is not None and self._rms_norm_wide is not None
        normed, depth = self._scratch["normed"], padded_depth(self.hidden)
        self._rms_norm_wide(
            (at.rows, 1, 1),
            norm_threads(self.hidden),
            [
                *(at.parts["header"], None, self.x, scale.data, self._eps, np.int32(self.hidden)),
                *(normed, np.int32(at.rows), np.int32(0), np.int32(depth), self.moe.wide),
            ],
            shared=NORM_SHARED,
            early=True,
        )
        self.moe.launch(layer, at.parts["header"], normed, at.rows, self.x, at.rows)

    def _draw(self, at: _Pass, samples: int) -> None:
        last = self._products.input(self._scratch["rows to draw from"], samples, self.hidden)
        self._launch_norm(at, self._text.final_norm, samples, at.parts["samples"], last)
        self._products.store(self._text.head, last, self.logits, followed=True)
        self._check_lanes(at, beside=True)
        self.sampler.launch(
            at.parts["header"],
            at.parts["samples"],
            at.parts["lists"],
            self._scratch["masks"],
            at.pool.histories,
            self.logits,
            self._drawn,
            samples,
            early=True,
        )

    def _check_lanes(self, at: _Pass, *, beside: bool = False) -> None:
        """Faults of lanes whose rows are not finite; beside a product that lets the next launch start."""
        self._check(
            (at.lanes, 1, 1),
            256,
            [
                *(at.parts["header"], at.parts["lanes"], self.x, np.int32(self.hidden), self._faults),
                np.int32(beside),
            ],
            shared=16,
            early=True,
        )

    # -- views ----------------------------------------------------------------------------------------------------

    def _input(self, name: str, at: _Pass, depth: int) -> Input:
        return self._products.input(self._scratch[name], at.rows, depth)

    def _rows_of(self, name: str, width: int) -> Array:
        """A row buffer as rows of ``width``, rounded up to what a product writes."""
        whole, width = self._scratch[name], -(-width // ROW_BLOCK) * ROW_BLOCK
        return whole.reshape(-1)[: whole.shape[0] * width].reshape(whole.shape[0], width)

    def _arrays(self, pool: DevicePool, parts: Mapping[str, Array]) -> PassArrays:
        return PassArrays(parts["header"], parts["rows"], parts["lanes"], parts["tiles"], pool.tables)

    def _constant(self, layer: DeltaNet) -> DeltaNetConstants:
        found = self._constants.get(id(layer))
        if found is None:
            found = DeltaNetConstants(
                layer.taps.data, layer.neg_exp_a.data, layer.dt_bias.data, layer.norm.data
            )
            self._constants[id(layer)] = found
        return found


def _state(pool: DevicePool, layer: int) -> dict[str, Array]:
    """State arrays [slots, …] of a DeltaNet layer."""
    return {name: array[layer] for name, array in pool.state.items()}
