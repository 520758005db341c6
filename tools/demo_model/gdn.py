"""The gated delta rule in chunks of 64 tokens (Yang et al., Gated Delta Networks), batched over all chunks.

Only the scan from chunk to chunk runs in order, and it is one matrix product a chunk: with T the inverse of the
unit lower triangular matrix of a chunk, S' = P S + R where P = e^G_end I - K'^T W and R = K'^T U.
"""

import torch
from torch import Tensor

CHUNK = 64


class UnitLowerInverse(torch.autograd.Function):
    """Inverse of I + A, A strictly lower triangular, (..., C, C) float32.

    By substitution: a sum of powers of A loses all digits when the keys of a chunk are much alike.
    """

    @staticmethod
    def forward(ctx, a: Tensor) -> Tensor:
        eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
        inverse = torch.linalg.solve_triangular(a + eye, eye.expand_as(a), upper=False, unitriangular=True)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        transposed = inverse.transpose(-1, -2)
        return -(transposed @ grad @ transposed).tril(-1)


def chunk_matrix(k: Tensor, beta: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A of every chunk, the decay matrix and the summed log decay.  k (N, H, C, D); beta, g (N, H, C)."""
    total = g.cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=k.device).tril()
    difference = total[..., :, None] - total[..., None, :]
    decay = difference.masked_fill(~lower, -1e9).exp()
    a = (beta[..., :, None] * (k @ k.transpose(-1, -2)) * decay).tril(-1)
    return a, decay, total


def chunk_parts(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, total: Tensor, decay: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """U and W (N, H, C, D), the attention inside a chunk (N, H, C, C), and P and R of the scan (N, H, D, D)."""
    end = total[..., -1:]
    grown = total.exp()[..., None]
    u = inverse @ (beta[..., None] * v)
    w = inverse @ (beta[..., None] * grown * k)
    inside = (q @ k.transpose(-1, -2)) * decay
    left = ((end - total).exp()[..., None] * k).transpose(-1, -2)
    eye = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
    p = end.exp()[..., None] * eye - left @ w
    return u, w, inside, p, left @ u


def scan(p: Tensor, r: Tensor) -> Tensor:
    """State at the start of every chunk, (B, chunks, H, D, D); p and r have the same shape."""
    batch, chunks, heads, dim, _ = p.shape
    state = torch.zeros(batch * heads, dim, dim, dtype=p.dtype, device=p.device)
    states = [state]
    p_steps = p.transpose(1, 2).reshape(batch * heads, chunks, dim, dim).unbind(1)
    r_steps = r.transpose(1, 2).reshape(batch * heads, chunks, dim, dim).unbind(1)
    for step in range(chunks - 1):
        state = torch.baddbmm(r_steps[step], p_steps[step], state)
        states.append(state)
    stacked = torch.stack(states, 1).reshape(batch, heads, chunks, dim, dim)
    return stacked.transpose(1, 2)


def chunk_output(q: Tensor, u: Tensor, w: Tensor, inside: Tensor, total: Tensor, state: Tensor) -> Tensor:
    """Outputs (N, H, C, D) from the state at the start of each chunk (N, H, D, D)."""
    return (total.exp()[..., None] * q) @ state + inside @ (u - w @ state)
