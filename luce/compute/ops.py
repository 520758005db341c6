"""Row-wise operators with fixed bits per row.

Two facts carry them, and tests/compute checks both on the machine at hand: numpy's float32 ufuncs give an element
the same bits whatever the array's length, alignment and strides; and a reduction over a contiguous last axis is one
fixed tree per row, whatever the number of rows. All arrays are float32; ``out`` may be the input where it says so.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = [
    "erf",
    "gelu_erf",
    "gelu_tanh",
    "layer_norm",
    "rms_scale",
    "sigmoid",
    "silu",
    "softplus",
    "swiglu",
    "unit_norm",
]

F32 = npt.NDArray[np.float32]

_ONE = np.float32(1.0)
_HALF = np.float32(0.5)


def unit_norm(x: F32, eps: np.float32, out: F32) -> F32:
    """``x / sqrt(Σx² + eps)`` over the contiguous last axis. In place is fine.

    RMS norm over C values is this with C · eps, times ``rms_scale(scale)``, a factor that the weights take in.
    """
    square = np.vecdot(x, x)
    square += eps
    np.sqrt(square, out=square)
    np.divide(x, square[..., None], out=out)
    return out


def rms_scale(scale: F32) -> F32:
    """What is left of an RMS norm with ``scale`` [C] after :func:`unit_norm`: ``scale · sqrt(C)``."""
    return scale * np.float32(len(scale) ** 0.5)


def layer_norm(x: F32, weight: F32, bias: F32, eps: np.float32, out: F32) -> F32:
    """LayerNorm over the contiguous last axis [..., C] with weight and bias [C]."""
    scale = np.float32(1.0 / x.shape[-1])
    mean = np.add.reduce(x, axis=-1)
    mean *= scale
    np.subtract(x, mean[..., None], out=out)
    square = np.vecdot(out, out)
    square *= scale
    square += eps
    np.sqrt(square, out=square)
    np.divide(out, square[..., None], out=out)
    np.multiply(out, weight, out=out)
    return np.add(out, bias, out=out)


def sigmoid(x: F32, out: F32) -> F32:
    """``1 / (1 + exp(-x))``. In place is fine."""
    np.negative(x, out=out)
    np.exp(out, out=out)
    out += _ONE
    return np.divide(_ONE, out, out=out)


def silu(x: F32, out: F32) -> F32:
    """``x / (1 + exp(-x))``. ``out`` is another array than x."""
    np.negative(x, out=out)
    np.exp(out, out=out)
    out += _ONE
    return np.divide(x, out, out=out)


def swiglu(gate_up: F32, out: F32) -> F32:
    """``silu(gate) · up`` of rows [R, gate | up]. ``out`` [R, half as wide] is another array."""
    half = gate_up.shape[-1] // 2
    silu(gate_up[:, :half], out)
    return np.multiply(out, gate_up[:, half:], out=out)


def softplus(x: F32) -> F32:
    """``log(1 + exp(x))``, and x itself above 20 as in the reference. A new array."""
    small = np.minimum(x, np.float32(20.0))
    np.exp(small, out=small)
    np.log1p(small, out=small)
    np.copyto(small, x, where=x > np.float32(20.0))
    return small


def gelu_tanh(x: F32) -> F32:
    """``0.5 x (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))``. A new array."""
    inner = x * x
    inner *= np.float32(0.044715)
    inner += _ONE
    inner *= x
    inner *= np.float32(0.7978845608028654)
    np.tanh(inner, out=inner)
    inner += _ONE
    inner *= x
    inner *= _HALF
    return inner


_ERF_P = [-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05]
_ERF_P += [-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02]
_ERF_Q = [-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03]
_ERF_Q += [-7.37332916720468e-03, -1.42647390514189e-02]


def _polynomial(coefficients: list[float], x: F32) -> F32:
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total *= x
        total += np.float32(coefficient)
    return total


def erf(x: F32) -> F32:
    """The error function to about 2e-7: a rational minimax form on [-4, 4] in float32. A new array."""
    clipped = np.clip(x, np.float32(-4.0), np.float32(4.0))
    square = clipped * clipped
    value = _polynomial(_ERF_P, square)
    value *= clipped
    value /= _polynomial(_ERF_Q, square)
    return value


def gelu_erf(x: F32) -> F32:
    """``0.5 x (1 + erf(x / sqrt 2))``, the exact GELU. A new array."""
    value = erf(x * np.float32(0.7071067811865476))
    value += _ONE
    value *= x
    value *= _HALF
    return value
