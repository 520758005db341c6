"""Which products of a step go in one launch: a layer's output, feed-forward and what the next layer's mixer reads."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator

import attrs

from luce.compute.activations import BUCKETS
from luce.compute.device import Array, Device
from luce.compute.gemm import Epilogue, GemmScratch, WeightMatrix
from luce.compute.gemm_chain import (
    ChainPlan,
    Gates,
    Link,
    LinkShape,
    Source,
    chain_runs,
    launch_chain,
    plan_chain,
)
from luce.engines.qwen35.device.small import SmallMatrix
from luce.engines.qwen35.device.weights import DeltaNet, Dense, Part, Text, Vector

__all__ = ["Chain", "ChainRows", "Chains", "chain_plans", "find_chain", "has_chains"]

log = logging.getLogger(__name__)

CHAIN_ROWS = 16
"""Most rows of such a step."""
LEAST_BYTES = 90 << 20
"""Of a chain's weights that make it quicker than its products one by one (9B Q4_K: 126 MB, its last layer's 97)."""
LEAST_ROWS = {"BF16": 16}
"""Formats whose products are bound by their bytes, one by one as well: from so many rows on."""
EACH_NORMS = 1
"""Rows up to which every CTA makes the norms for itself."""


def has_chains(device: Device) -> bool:
    """Has such a device what the kernel is made of? :func:`chain_runs` says whether a launch runs there."""
    return device.arch in ("sm_90a", "host")


@attrs.frozen(eq=False)
class Chain:
    """The products behind a layer's mixer."""

    out: Part
    gate_up: Part
    down: Part
    inputs: Part | None
    """Of the next layer's mixer; None where they are of another format, or there is no next layer."""
    gates: SmallMatrix | None
    """Beside those."""
    post_norm: Vector
    next_norm: Vector | None

    @property
    def format(self) -> str:
        return self.out.format

    def shapes(self, rows: int) -> tuple[LinkShape, ...]:
        norm = Source.NORM if rows <= EACH_NORMS else Source.ROWS
        sources = (Source.SUMMED, norm, Source.BARE, norm)
        return tuple(
            LinkShape(part.rows, part.depth, source)
            for part, source in zip(self.parts, sources[: len(self.parts)], strict=True)
        )

    @property
    def parts(self) -> tuple[Part, ...]:
        parts = (self.out, self.gate_up, self.down)
        return parts if self.inputs is None else (*parts, self.inputs)

    @property
    def nbytes(self) -> int:
        return sum(math.prod(part.shape) for part in self.parts)

    def plan(self, device: Device, rows: int) -> ChainPlan | None:
        """The launch for a bucket of rows; None where none fits, or where products one by one are as quick."""
        if not LEAST_ROWS.get(self.format, 1) <= rows <= CHAIN_ROWS:
            return None
        return plan_chain(
            self.format,
            self.shapes(rows),
            rows,
            device.multiprocessors,
            device.shared_limit,
            0 if self.gates is None else self.gates.rows,
        )


def find_chain(device: Device, text: Text, number: int) -> Chain | None:
    """The chain behind a layer's mixer; None where it does not pay, or products are experts' or of several formats."""
    layer = text.layers[number]
    if not (has_chains(device) and isinstance(layer.ffn, Dense)):
        return None
    matrices = (layer.mixer.out, layer.ffn.gate_up, layer.ffn.down)
    parts = [part for matrix in matrices for part in matrix.parts]
    if len(parts) != 3 or len({part.format for part in parts}) > 1:
        return None
    out, gate_up, down = parts
    chain = Chain(out, gate_up, down, None, None, layer.post_norm, None)
    if number + 1 < len(text.layers):
        following = text.layers[number + 1]
        mixer = following.mixer
        inputs = mixer.inputs.parts
        if len(inputs) == 1 and inputs[0].format == chain.format:
            gates = mixer.gates if isinstance(mixer, DeltaNet) else None
            chain = attrs.evolve(chain, inputs=inputs[0], gates=gates, next_norm=following.input_norm)
    return chain if chain.nbytes >= LEAST_BYTES else None


def chain_plans(device: Device, text: Text) -> Iterator[ChainPlan]:
    """Of all layers and buckets."""
    for number in range(len(text.layers)):
        chain = find_chain(device, text, number)
        for rows in BUCKETS:
            if chain is not None and (plan := chain.plan(device, rows)) is not None:
                yield plan


@attrs.frozen(eq=False)
class ChainRows:
    """What a chain reads and writes."""

    rows: int
    """A bucket, all of which count."""
    mixed: Array
    """Activations of what the mixer gives."""
    x: Array
    """f32 [rows, hidden]."""
    middle: Array
    """Activations between gate and up, and down."""
    normed: Array
    """Activations of normed rows, where not every CTA makes its own."""
    inputs: Array
    """f32 [rows, stride]: what the next layer's mixer reads."""
    gates: Array
    """f32 [rows, stride] of its gates."""
    eps: float


class Chains:
    """The chains of a model."""

    def __init__(
        self, device: Device, text: Text, weights: Callable[[Part], WeightMatrix], scratch: GemmScratch
    ) -> None:
        """``scratch``: enough for :func:`chain_plans`."""
        self._device, self._text, self._weights, self._scratch = device, text, weights, scratch
        self._found: dict[tuple[int, int], tuple[Chain, ChainPlan] | None] = {}

    def find(self, number: int, rows: int) -> Chain | None:
        """The chain behind the mixer of layer ``number`` for a bucket of rows, if :meth:`launch` takes it."""
        found = self._planned(number, rows)
        return None if found is None else found[0]

    def _planned(self, number: int, rows: int) -> tuple[Chain, ChainPlan] | None:
        key = number, rows
        if key not in self._found:
            chain = find_chain(self._device, self._text, number)
            plan = None if chain is None else chain.plan(self._device, rows)
            self._found[key] = None
            if chain is not None and plan is not None:
                if chain_runs(self._device, chain.format, rows, plan):
                    self._found[key] = chain, plan
                else:
                    log.info("blocks of a chain of products cannot all run at once here: one by one instead")
        return self._found[key]

    def launch(self, number: int, at: ChainRows) -> None:
        """Queue the products, gates included."""
        planned = self._planned(number, at.rows)
        assert planned is not None
        chain, plan = planned
        sources = [shape.source for shape in chain.shapes(at.rows)]
        out, gate_up, down = (self._weights(part) for part in (chain.out, chain.gate_up, chain.down))
        hidden = int(at.x.shape[1])
        links = [
            Link(out, at.mixed, sources[0], at.x, Epilogue.ADD, hidden),
            Link(gate_up, at.x, sources[1], at.middle, Epilogue.SWIGLU, scale=chain.post_norm.data),
            Link(down, at.middle, sources[2], at.x, Epilogue.ADD, hidden),
        ]
        if chain.inputs is not None:
            assert chain.next_norm is not None
            gates = None
            if chain.gates is not None:
                gates = Gates(chain.gates.data, chain.gates.rows, at.gates, int(at.gates.shape[1]))
            stride, scale = int(at.inputs.shape[1]), chain.next_norm.data
            links.append(
                Link(
                    self._weights(chain.inputs),
                    at.x,
                    sources[3],
                    at.inputs,
                    Epilogue.STORE,
                    stride,
                    scale,
                    gates,
                )
            )
        launch_chain(self._device, links, at.rows, at.rows, at.eps, self._scratch, plan, at.normed)
