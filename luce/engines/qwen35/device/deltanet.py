"""The gated DeltaNet mixer on a device: launches of ``kernels/deltanet_step.cu`` and ``kernels/deltanet_chunk.cu``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.activations import padded_depth
from luce.compute.device import Array, Device
from luce.engines.qwen35.config import TextConfig
from luce.engines.qwen35.device.descriptors import CHUNK_ROWS, CONV_ROWS, RING_ROWS
from luce.engines.qwen35.memory_parts import ArraySpec
from luce.engines.qwen35.weights import DeltaNetWeights

__all__ = [
    "DeltaNetConstants",
    "DeltaNetLauncher",
    "MixerRows",
    "fragments",
    "scratch_arrays",
    "state_matrix",
    "state_shapes",
]

F32 = npt.NDArray[np.float32]

_WARP = 32
_PAIR_BYTES = (6 + 10) * 1024 + 4 * 16 * 16 * 4 + 3 * CHUNK_ROWS * 4 + CHUNK_ROWS * 8
"""Of a value head's tile: struct Pairs."""


@attrs.frozen(eq=False)
class DeltaNetConstants:
    """A layer's small tensors on the device, float32."""

    taps: Array
    """[4, channels], last tap = current token."""
    neg_exp_a: Array
    dt_bias: Array
    norm: Array
    """[Dv]."""

    @classmethod
    def upload(cls, device: Device, weights: DeltaNetWeights) -> DeltaNetConstants:
        return cls(
            device.array(np.ascontiguousarray(weights.conv.T)),
            device.array(weights.neg_exp_a),
            device.array(weights.dt_bias),
            device.array(weights.gdn_norm),
        )


@attrs.frozen(eq=False)
class MixerRows:
    """Rows in and out of a pass, on the device."""

    x: Array
    """float32 rows of ``stride``, a multiple of 4: q | k | v | z."""
    stride: int
    gates: Array
    """float32 rows of ``gates_stride``: b | a. Part of ``x`` or another array, from the first row's b on."""
    gates_stride: int
    out: Array
    """Activations (kernels/activation.h) of Hv · Dv values a row."""
    out_rows: int
    out_tile: int


def max_tiles(rows: int, lanes: int) -> int:
    """Most 64-chunks that a pass touches: a lane may begin with one to fold and one half done."""
    return rows // CHUNK_ROWS + 3 * lanes


def scratch_arrays(config: TextConfig, rows: int, lanes: int) -> Iterator[ArraySpec]:
    """What chunk passes of up to ``rows`` rows in ``lanes`` lanes work in; shared by all layers."""
    tiles, hk, hv = max_tiles(rows, lanes), config.key_heads, config.value_heads
    part = "scratch"
    yield ArraySpec(part, "deltanet keys", (tiles, hk, 3 * CHUNK_ROWS * config.key_dim), "uint16")
    yield ArraySpec(part, "deltanet pairs", (tiles, hv, _PAIR_BYTES), "uint8")
    yield ArraySpec(part, "deltanet outputs", (rows, hv * config.value_dim))
    yield ArraySpec(part, "deltanet counts", (tiles * hv,), "uint32")


class DeltaNetLauncher:
    """Queues the mixer's kernels on the current stream; one for all layers of a model."""

    def __init__(
        self, device: Device, config: TextConfig, scratch: Mapping[str, Array], *, tiled: bool = False
    ) -> None:
        """``scratch``: arrays of :func:`scratch_arrays` by name. ``tiled``: the output product takes value heads in the
        order of a GGUF."""
        self.device, self.config = device, config
        self._keys, self._pairs = scratch["deltanet keys"], scratch["deltanet pairs"]
        self._outputs, self._counts = scratch["deltanet outputs"], scratch["deltanet counts"]
        hk, hv, dk, dv = config.key_heads, config.value_heads, config.key_dim, config.value_dim
        shapes: dict[str, int | str] = {"HK": hk, "HV": hv, "DK": dk, "DV": dv}
        if tiled and hk != hv:
            shapes["TILED_OUTPUT"] = 1
        stage, shuttle = 3 * CHUNK_ROWS * dk * 2 + _PAIR_BYTES, 2 * 4096 + dk // 16 * 1024 + 4096 + 16
        stages, self._part_tiles = next(
            (stages, tiles)
            for stages, tiles in ((2, 4), (2, 2), (2, 1), (1, 1), (0, 1))
            if dv // 16 % tiles == 0 and stages * (stage + 8) + tiles * shuttle <= device.shared_limit
        )
        self._scan_shared = stages * (stage + 8) + self._part_tiles * shuttle
        self._prepare_shared = 2 * CHUNK_ROWS * (dk + 8) * 2 + hv // hk * CHUNK_ROWS * 8
        pitch = 16 if device.arch.startswith("gfx") else 20
        self._step_shared = _step_shared(dk, dv, pitch)
        step = {**shapes, "U_PITCH": pitch, "SHARED_BYTES": self._step_shared}
        self._step = device.kernel("deltanet_step.cu", "deltanet_step", step)
        chunk = {
            **shapes,
            "STAGES": stages,
            "PART_TILES": self._part_tiles,
            "SCAN_BYTES": self._scan_shared,
            "SHARED_BYTES": self._prepare_shared,
        }
        self._prepare = device.kernel("deltanet_chunk.cu", "deltanet_prepare", chunk)
        self._scan = device.kernel("deltanet_chunk.cu", "deltanet_scan", chunk)
        self._finish = device.kernel("deltanet_chunk.cu", "deltanet_finish", chunk)
        self._follow = None
        if dv == 128 and hv * dv % 256 == 0:
            self._follow = device.kernel("deltanet_chunk.cu", "deltanet_follow", chunk)
        self._depth = padded_depth(hv * dv)
        self._eps = np.float32(config.rms_eps)

    def step(
        self,
        parts: Mapping[str, Array],
        rows: int,
        at: MixerRows,
        constants: DeltaNetConstants,
        state: Mapping[str, Array],
    ) -> None:
        """One row of each lane.

        Args:
            parts: the pass's descriptors on the device, by name.
            rows: height of the bucket.
            state: the layer's ``s``, ``k``, ``u``, ``g`` and ``conv`` [slots, …].
        """
        c = self.config
        self._step(
            (c.value_heads, rows, 1),
            2 * c.value_dim,
            [
                parts["header"],
                parts["lanes"],
                *self._inputs(at),
                constants.taps,
                constants.neg_exp_a,
                constants.dt_bias,
                constants.norm,
                self._eps,
                *(state[name] for name in ("s", "k", "u", "g", "conv")),
                self._outputs,
                *self._target(at),
            ],
            shared=self._step_shared,
            early=True,
        )
        if c.value_dim % 32:
            self.finish(parts, rows, at, constants, state)

    def chunk(
        self,
        parts: Mapping[str, Array],
        rows: int,
        lanes: int,
        at: MixerRows,
        constants: DeltaNetConstants,
        state: Mapping[str, Array],
    ) -> None:
        """``rows`` rows of ``lanes`` lanes of any length."""
        self.prepare(parts, rows, lanes, at, constants, state)
        self.scan(parts, lanes, at, constants, state)
        if self._follow is None:
            self.finish(parts, rows, at, constants, state)
        else:
            self.follow(parts, rows, lanes, at, constants, state)

    def fold(
        self, parts: Mapping[str, Array], constants: DeltaNetConstants, state: Mapping[str, Array]
    ) -> None:
        """Commit the pass's only lane, which has no rows, up to its ``base_after``."""
        nothing = MixerRows(self._outputs, 0, self._outputs, 0, self._outputs, 0, 0)
        self.prepare(parts, 0, 1, nothing, constants, state)
        self.scan(parts, 1, nothing, constants, state)

    def prepare(
        self,
        parts: Mapping[str, Array],
        rows: int,
        lanes: int,
        at: MixerRows,
        constants: DeltaNetConstants,
        state: Mapping[str, Array],
    ) -> None:
        """What depends on no state S, for all 64-chunks of a chunk pass."""
        self._prepare(
            (self.config.key_heads, max_tiles(rows, lanes), 1),
            256,
            [
                parts["header"],
                parts["lanes"],
                *self._inputs(at),
                constants.taps,
                constants.neg_exp_a,
                constants.dt_bias,
                *(state[name] for name in ("k", "g", "conv")),
                self._keys,
                self._pairs,
                self._counts,
            ],
            shared=self._prepare_shared,
            early=True,
        )

    def scan(
        self,
        parts: Mapping[str, Array],
        lanes: int,
        at: MixerRows,
        constants: DeltaNetConstants,
        state: Mapping[str, Array],
    ) -> None:
        """The recurrence over the chunks of each lane."""
        c = self.config
        self._scan(
            (c.value_heads * c.value_dim // 16 // self._part_tiles, lanes, 1),
            2 * _WARP * self._part_tiles,
            [
                parts["header"],
                parts["lanes"],
                at.x,
                np.int32(at.stride),
                constants.taps,
                state["conv"],
                self._keys,
                self._pairs,
                *(state[name] for name in ("s", "k", "u", "g")),
                self._outputs,
                self._counts,
            ],
            shared=self._scan_shared,
            early=True,
        )

    def finish(
        self,
        parts: Mapping[str, Array],
        rows: int,
        at: MixerRows,
        constants: DeltaNetConstants,
        state: Mapping[str, Array],
    ) -> None:
        """The gated norm of the outputs, and the rows that later convolutions read."""
        self._finish(
            (rows, 1, 1),
            256,
            [
                parts["header"],
                parts["rows"],
                parts["lanes"],
                at.x,
                np.int32(at.stride),
                self._outputs,
                constants.norm,
                self._eps,
                state["conv"],
                *self._target(at),
            ],
            early=True,
        )

    def follow(
        self,
        parts: Mapping[str, Array],
        rows: int,
        lanes: int,
        at: MixerRows,
        constants: DeltaNetConstants,
        state: Mapping[str, Array],
    ) -> None:
        """What :meth:`finish` does, chunk by chunk while the launch before, the scan, still runs. Heads of 128."""
        assert self._follow is not None
        self._follow(
            (self.config.value_heads, max_tiles(rows, lanes) + 1, 1),
            256,
            [
                *(parts["header"], parts["lanes"], at.x, np.int32(at.stride), self._outputs, self._counts),
                *(constants.norm, self._eps, state["conv"], *self._target(at)),
            ],
            early=True,
        )

    def _inputs(self, at: MixerRows) -> list[object]:
        return [at.x, np.int32(at.stride), at.gates, np.int32(at.gates_stride)]

    def _target(self, at: MixerRows) -> list[object]:
        return [at.out, np.int32(at.out_rows), np.int32(at.out_tile), np.int32(self._depth)]


def _step_shared(dk: int, dv: int, pitch: int) -> int:
    """Bytes of struct Shared of the step kernel, rounded up."""
    tasks, tiles = 2 + -(-dv // 128), dv // 16
    floats = tasks * 7 * 4 * _WARP + tiles * CHUNK_ROWS * pitch + 2 * dv + 2 * CHUNK_ROWS + tiles + 2
    halves = CHUNK_ROWS * (dk + 8) + 2 * dk + 4 * CHUNK_ROWS
    return 4 * floats + 2 * halves + 64


def _places(dim: int) -> npt.NDArray[np.intp]:
    """Key places [Dk / 16, 4 (t), 4] of the steps' operands."""
    step, t, e = np.ogrid[: dim // 16, :4, :4]
    if dim % 32 == 0:
        return np.asarray(step // 2 * 32 + 8 * t + step % 2 * 4 + e)
    return np.asarray(step * 16 + 4 * t + e)


def fragments(s: F32) -> F32:
    """S [Hv, Dk, Dv] in the device's order: [Hv, Dv / 16, Dk / 16, 2, 32, 4]."""
    hv, dk, dv = s.shape
    # [Hv, tile, g, column of the pair, step, t, half, e]
    cells = s.reshape(hv, dk, dv // 16, 8, 2)[:, _places(dk)].reshape(hv, dk // 16, 4, 2, 2, dv // 16, 8, 2)
    order = cells.transpose(0, 5, 1, 3, 6, 2, 7, 4)
    return np.ascontiguousarray(order.reshape(hv, dv // 16, dk // 16, 2, _WARP, 4))


def state_matrix(packed: F32, dk: int, dv: int) -> F32:
    """The reverse of :func:`fragments`: S [Hv, Dk, Dv]."""
    hv = len(packed)
    cells = packed.reshape(hv, dv // 16, dk // 16, 2, 8, 4, 2, 2).transpose(0, 2, 5, 3, 7, 1, 4, 6)
    s = np.empty((hv, dk, dv), np.float32)
    s.reshape(hv, dk, dv // 16, 8, 2)[:, _places(dk).ravel()] = cells.reshape(hv, dk, dv // 16, 8, 2)
    return s


def state_shapes(config: TextConfig) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of a slot's part of each array of a layer's state (kernels/deltanet.h)."""
    hk, hv, dk, dv = config.key_heads, config.value_heads, config.key_dim, config.value_dim
    return {
        "s": ((hv, dv // 16, dk // 16, 2, _WARP, 4), "float32"),
        "k": ((hk, RING_ROWS, dk), "uint16"),
        "u": ((hv, RING_ROWS, dv), "float32"),
        "g": ((hv, RING_ROWS), "int64"),
        "conv": ((CONV_ROWS, config.conv_channels), "float32"),
    }
