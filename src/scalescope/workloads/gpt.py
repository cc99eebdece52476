"""A decoder-only language model in the shape of GPT-2."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class CausalAttention(nn.Module):
    """Self-attention in which a token sees itself and the tokens before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, features: Tensor) -> Tensor:
        """Mixed features, of the shape (n, sequence, width) of the input."""
        n, sequence, width = features.shape
        projected = self.queries_keys_values(features).view(n, sequence, 3, self.heads, width // self.heads)
        queries, keys, values = projected.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        output: Tensor = self.output(mixed.transpose(1, 2).reshape(n, sequence, width))
        return output


class Block(nn.Module):
    """Attention and a feed-forward layer, each normalised before and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), CausalAttention(width, heads))
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Features of the same shape."""
        features = features + self.attention(features)
        output: Tensor = features + self.feed_forward(features)
        return output


class Decoder(nn.Module):
    """Embeddings with learned positions, blocks, and scores that share the embedding's weights."""

    def __init__(self, layers: int, width: int, heads: int, sequence: int, vocab: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.positions = nn.Parameter(0.02 * torch.randn(sequence, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores (n, sequence, vocab) of the token that follows each of `tokens` (n, sequence)."""
        embedded = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        return functional.linear(self.norm(self.blocks(embedded)), self.tokens.weight)


def gpt(layers: int = 4, width: int = 256, heads: int = 4, sequence: int = 128, vocab: int = 8192) -> nn.Module:
    """A decoder of `layers` blocks of `width` features over `sequence` tokens."""
    if width % heads:
        raise ValueError(f"heads={heads} must divide width={width}")
    return Decoder(layers, width, heads, sequence, vocab)
