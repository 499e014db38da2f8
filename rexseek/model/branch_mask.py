"""The block mask of packed rows."""

import torch
from torch import Tensor

from rexseek.tokens import PADDING, PREFIX

MASKED = -6e4  # lowest value of an additive mask: finite in every float type, so that no row becomes NaN


def branch_mask(branches: Tensor, dtype: torch.dtype) -> Tensor:
    """A token sees what precedes it in the prefix and in its own branch.

    Args:
        branches: int64 [B, T], 0 for the prefix, 1.. for branches, -1 for padding (which sees itself only).

    Returns:
        Additive float mask [B, 1, T, T]: 0 where seen, `MASKED` elsewhere.
    """
    length = branches.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=branches.device).tril()
    query, key = branches[:, :, None], branches[:, None, :]
    seen = causal & ((key == PREFIX) | (key == query)) & (query != PADDING)  # [B, T, T]
    seen |= torch.eye(length, dtype=torch.bool, device=branches.device)
    mask = torch.zeros(seen.shape, dtype=dtype, device=branches.device)
    return mask.masked_fill_(~seen, MASKED)[:, None]
