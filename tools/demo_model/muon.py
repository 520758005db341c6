"""Muon for the hidden matrices (Jordan et al. 2024; the update size of Liu et al. 2025), AdamW for the rest."""

from collections import defaultdict

import torch
from torch import Tensor


def orthogonal(x: Tensor) -> Tensor:
    """Nearest orthogonal matrices of a batch (N, rows, columns) by five Newton-Schulz steps in bf16."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = x.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.transpose(-1, -2)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.transpose(-1, -2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.transpose(-1, -2) if tall else x


class Muon(torch.optim.Optimizer):
    """Matrices of one shape are orthogonalised together.  The update has the root mean square of an Adam step."""

    def __init__(
        self, params: list[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                by_shape[p.shape].append(p)
            for shape, params in by_shape.items():
                buffers = []
                for p in params:
                    state = self.state[p]
                    if not state:
                        state["momentum"] = torch.zeros_like(p)
                    buffers.append(state["momentum"])
                grads = [p.grad for p in params]
                torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])
                nesterov = torch._foreach_lerp(grads, buffers, group["momentum"])
                update = orthogonal(torch.stack(nesterov).flatten(2)).float().view(-1, *shape)
                size = 0.2 * max(shape[0], update[0].numel() // shape[0]) ** 0.5
                torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(params, list(update.unbind()), alpha=-group["lr"] * size)
