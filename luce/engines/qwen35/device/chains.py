"""Which products of a step go in one launch: a layer's output, feed-forward and what the next layer's mixer reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from luce.compute.activations import BUCKETS
from luce.compute.device import Array, Device
from luce.compute.gemm import Epilogue, GemmScratch, WeightMatrix
from luce.compute.gemm_chain import ChainPlan, Gates, Link, LinkShape, Source, launch_chain, plan_chain
from luce.engines.qwen35.device.small import SmallMatrix
from luce.engines.qwen35.device.weights import DeltaNet, Dense, Matrix, Part, Text, Vector

__all__ = ["Chain", "ChainRows", "Chains", "chain_plans", "find_chain", "has_chains"]

CHAIN_ROWS = 16
"""Most rows of such a step; more go through warpgroup products."""
EACH_NORMS = 1
"""Rows up to which every CTA makes the norms for itself."""


def has_chains(device: Device) -> bool:
    """Do all CTAs of such a launch run at once, with bulk copies?"""
    return device.arch == "sm_90a" or (device.arch == "host" and getattr(device, "chains", False))


@attrs.frozen(eq=False)
class Chain:
    """The products behind a layer's mixer."""

    out: Part
    gate_up: Part
    down: Part
    inputs: tuple[Part, ...]
    """Of the next layer's mixer; none where they are of another format, or there is no next layer."""
    gates: SmallMatrix | None
    """Beside those."""
    post_norm: Vector
    next_norm: Vector | None

    @property
    def format(self) -> str:
        return self.out.format

    def shapes(self, rows: int) -> tuple[LinkShape, ...]:
        norm = Source.NORM if rows <= EACH_NORMS else Source.ROWS
        sources = [Source.SUMMED, norm, Source.BARE, norm] + [Source.SAME] * (len(self.inputs) - 1)
        parts = (self.out, self.gate_up, self.down, *self.inputs)
        return tuple(
            LinkShape(part.rows, part.depth, source) for part, source in zip(parts, sources, strict=False)
        )

    def plan(self, device: Device, rows: int) -> ChainPlan | None:
        """The launch for a bucket of rows; None where none fits."""
        return plan_chain(
            self.format,
            self.shapes(rows),
            rows,
            device.multiprocessors,
            device.shared_limit,
            self.gates.rows if self.gates is not None and self.inputs else 0,
        )


def find_chain(text: Text, number: int) -> Chain | None:
    """The chain behind a layer's mixer; None where its products are of several formats, or experts."""
    layer = text.layers[number]
    if not isinstance(layer.ffn, Dense):
        return None
    matrices = (layer.mixer.out, layer.ffn.gate_up, layer.ffn.down)
    parts = [part for matrix in matrices for part in matrix.parts]
    if len(parts) != 3 or len({part.format for part in parts}) > 1:
        return None
    inputs: tuple[Part, ...] = ()
    gates: SmallMatrix | None = None
    following = text.layers[number + 1] if number + 1 < len(text.layers) else None
    if following is not None and _one_format(following.mixer.inputs, parts[0].format):
        beside = following.mixer.gates if isinstance(following.mixer, DeltaNet) else None
        if beside is None or isinstance(beside, SmallMatrix):
            inputs, gates = following.mixer.inputs.parts, beside
    norm = None if following is None else following.input_norm
    out, gate_up, down = parts
    return Chain(out, gate_up, down, inputs, gates, layer.post_norm, norm)


def _one_format(matrix: Matrix, name: str) -> bool:
    return all(part.format == name for part in matrix.parts)


def chain_plans(device: Device, text: Text) -> Iterator[ChainPlan]:
    """Of all layers and buckets."""
    if not has_chains(device):
        return
    for number in range(len(text.layers)):
        chain = find_chain(text, number)
        for rows in BUCKETS:
            if chain is not None and rows <= CHAIN_ROWS and (plan := chain.plan(device, rows)) is not None:
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
            chain = None
            if rows <= CHAIN_ROWS and has_chains(self._device):
                chain = find_chain(self._text, number)
            plan = None if chain is None else chain.plan(self._device, rows)
            self._found[key] = None if chain is None or plan is None else (chain, plan)
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
        gates = chain.gates
        for part, source in zip(chain.inputs, sources[3:], strict=True):
            assert chain.next_norm is not None
            to, last = at.inputs.reshape(-1)[part.first :], part is chain.inputs[-1]
            beside = None
            if last and gates is not None:
                beside = Gates(gates.data, gates.rows, at.gates, int(at.gates.shape[1]))
            stride, scale = int(at.inputs.shape[1]), chain.next_norm.data
            links.append(Link(self._weights(part), at.x, source, to, Epilogue.STORE, stride, scale, beside))
        launch_chain(self._device, links, at.rows, at.rows, at.eps, self._scratch, plan, at.normed)
