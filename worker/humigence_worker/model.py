"""A decoder-only, pre-norm transformer over bytes.

Positions are rotary: they cost no parameters, and short training runs reach a lower loss with
them than with learned positions. Dropout sits on the embedding and on each sublayer's output,
not on the attention weights, so that attention keeps its fused kernels on every device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from humigence_worker.settings import WorkerSettings

IGNORED: Final = -100
"""Target of a position that carries no loss."""

VOCABULARY: Final = 256
"""Every byte; 0xFF, which UTF-8 never contains, separates documents (see samples.py)."""

_INIT_STD: Final = 0.02
_ROTARY_BASE: Final = 10_000.0


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What decides the parameters' shapes, and the two settings of the forward pass."""

    seq_len: int
    d_model: int
    n_layers: int
    n_heads: int
    dropout: float = 0.0
    gradient_checkpointing: bool = False
    vocabulary: int = VOCABULARY


def model_shape(settings: WorkerSettings) -> ModelShape:
    """Return the shape that `settings` describe."""
    return ModelShape(
        seq_len=settings.seq_len,
        d_model=settings.d_model,
        n_layers=settings.n_layers,
        n_heads=settings.n_heads,
        dropout=settings.dropout,
        gradient_checkpointing=settings.gradient_checkpointing,
    )


class Transformer(nn.Module):
    """The language model. Its initial weights are a function of torch's seed alone."""

    def __init__(self, shape: ModelShape) -> None:
        """Build and initialize on the CPU in float32."""
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.d_model)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layers))
        self.norm = nn.LayerNorm(shape.d_model, bias=False)
        cos, sin = _rotary_table(shape.seq_len, shape.d_model // shape.n_heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialize()

    def forward(
        self, inputs: Tensor, targets: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the logits [B, T, vocabulary] and, given targets [B, T], the mean loss in nats.

        The mean is over the targets that are not `IGNORED`; with none at all the loss is 0 and
        every gradient is defined (and zero), so that no rank of a group waits for another.
        """
        length = inputs.shape[1]
        rotary = (self.get_buffer("cos")[:length], self.get_buffer("sin")[:length])
        hidden = self.dropout(self.embedding(inputs))
        for block in self.blocks:
            if self.shape.gradient_checkpointing and self.training:
                hidden = checkpoint(block, hidden, rotary, use_reentrant=False)
            else:
                hidden = block(hidden, rotary)
        logits = functional.linear(self.norm(hidden), self.embedding.weight)  # the tied head
        return logits, None if targets is None else _mean_loss(logits, targets)

    def _initialize(self) -> None:
        """Small normal weights; those that write to the residual stream smaller with depth."""
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:  # noqa: PLR2004 - the norms' gains stay 1
                continue
            writes_residual = name.endswith(("project.weight", "down.weight"))
            depth = math.sqrt(2 * self.shape.n_layers) if writes_residual else 1.0
            nn.init.normal_(parameter, std=_INIT_STD / depth)


class Block(nn.Module):
    """Attention, then a feed-forward layer, each on a normalized copy of the residual stream."""

    def __init__(self, shape: ModelShape) -> None:
        """Build the two sublayers."""
        super().__init__()
        self.norm_attention = nn.LayerNorm(shape.d_model, bias=False)
        self.attention = Attention(shape)
        self.norm_feed = nn.LayerNorm(shape.d_model, bias=False)
        self.feed = FeedForward(shape)

    def forward(self, hidden: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """Return [B, T, d_model] for [B, T, d_model]."""
        hidden = hidden + self.attention(self.norm_attention(hidden), rotary)
        feed: Tensor = self.feed(self.norm_feed(hidden))
        return hidden + feed


class Attention(nn.Module):
    """Causal multi-head self-attention with rotary positions."""

    def __init__(self, shape: ModelShape) -> None:
        """Build one projection for queries, keys and values together, and one back."""
        super().__init__()
        self.n_heads = shape.n_heads
        self.query_key_value = nn.Linear(shape.d_model, 3 * shape.d_model, bias=False)
        self.project = nn.Linear(shape.d_model, shape.d_model, bias=False)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, hidden: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """Return [B, T, d_model] for [B, T, d_model]."""
        batch, length, width = hidden.shape
        split = self.query_key_value(hidden).view(batch, length, 3, self.n_heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each [B, heads, T, width of a head]
        mixed = functional.scaled_dot_product_attention(
            _rotate(query, rotary), _rotate(key, rotary), value, is_causal=True
        )
        joined = mixed.transpose(1, 2).reshape(batch, length, width)
        result: Tensor = self.dropout(self.project(joined))
        return result


class FeedForward(nn.Module):
    """Four times wider inside, GELU between."""

    def __init__(self, shape: ModelShape) -> None:
        """Build the two layers."""
        super().__init__()
        self.up = nn.Linear(shape.d_model, 4 * shape.d_model, bias=False)
        self.down = nn.Linear(4 * shape.d_model, shape.d_model, bias=False)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return [B, T, d_model] for [B, T, d_model]."""
        result: Tensor = self.dropout(self.down(functional.gelu(self.up(hidden))))
        return result


def _mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    total = functional.cross_entropy(
        logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return total / (targets != IGNORED).sum().clamp(min=1)


def _rotary_table(seq_len: int, width: int) -> tuple[Tensor, Tensor]:
    """Return cosine and sine [seq_len, width / 2] of position times frequency, in float32."""
    frequency = _ROTARY_BASE ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angle = torch.outer(torch.arange(seq_len, dtype=torch.float32), frequency)
    return angle.cos(), angle.sin()


def _rotate(heads: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the pairs (i, i + width / 2) of [B, heads, T, width] by their position's angle."""
    cos, sin = (table.to(heads.dtype) for table in rotary)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
