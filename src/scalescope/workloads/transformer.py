"""A transformer encoder that classifies sequences of tokens."""

import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    """Embeddings with learned positions, encoder layers, and scores from the mean over the sequence."""

    def __init__(
        self, layers: int, width: int, heads: int, sequence: int, vocab: int, classes: int, dropout: float
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Parameter(0.02 * torch.randn(sequence, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.scores = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of every class for tokens of shape (n, sequence)."""
        embedded = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        scores: Tensor = self.scores(self.encoder(embedded).mean(dim=1))
        return scores


def transformer(
    layers: int = 4,
    width: int = 256,
    heads: int = 4,
    sequence: int = 128,
    vocab: int = 30000,
    classes: int = 10,
    dropout: float = 0.1,
) -> nn.Module:
    """An encoder of `layers` layers of `width` features over `sequence` tokens."""
    if width % heads:
        raise ValueError(f"heads={heads} must divide width={width}")
    return Encoder(layers, width, heads, sequence, vocab, classes, dropout)
