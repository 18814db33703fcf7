"""Several texts of one causal model of Transformers; texts join and leave between tokens."""

from collections.abc import Hashable, Iterable
from typing import Any, Generic, TypeVar

import torch
from torch.nn.functional import pad
from transformers import DynamicCache

K = TypeVar("K", bound=Hashable)


class Texts(Generic[K]):
    """Each unfinished text is a row of the mask, the last tokens and the cache."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.keys: list[K] = []
        self.mask: Any = None
        self.tokens: Any = None
        self.cache: Any = None

    def run(self, tokens: Any, mask: Any, cache: Any) -> Any:
        """Returns the next tokens. A row's positions begin after the blanks on its left."""
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        output = self.model(tokens, attention_mask=mask, position_ids=positions, cache=cache)
        return output.logits[:, -1:].argmax(2)

    def write(self, joined: dict[K, str], ended: Iterable[K]) -> dict[K, int]:
        """Drops texts, appends one token to each other, and adds texts with their first."""
        self.drop(set(ended))
        with torch.inference_mode():
            if self.keys:
                self.mask = pad(self.mask, (0, 1), value=1)
                self.tokens = self.run(self.tokens, self.mask, self.cache)
            if joined:
                self.add(joined)
        return dict(zip(self.keys, self.tokens.flatten().tolist(), strict=True))

    def add(self, joined: dict[K, str]) -> None:
        prompts = self.tokenizer(
            list(joined.values()), padding=True, add_special_tokens=False, return_tensors="pt"
        )
        mask, cache = prompts["attention_mask"], DynamicCache()
        tokens = self.run(prompts["input_ids"], mask, cache)
        if self.keys:
            width = max(mask.shape[1], self.mask.shape[1])
            mask = torch.cat([pad(one, (width - one.shape[1], 0)) for one in (self.mask, mask)])
            tokens = torch.cat([self.tokens, tokens])
            layers = [
                [rows(a, b, width) for a, b in zip(old[:2], new[:2], strict=True)]
                for old, new in zip(self.cache, cache, strict=True)
            ]
            cache = DynamicCache(layers)
        self.keys += joined
        self.mask, self.tokens, self.cache = mask, tokens, cache

    def drop(self, ended: set[K]) -> None:
        kept = [row for row, key in enumerate(self.keys) if key not in ended]
        if len(kept) < len(self.keys):
            self.keys = [self.keys[row] for row in kept]
            blank = int(self.mask[kept].any(0).int().argmax())  # columns of dropped texts alone
            self.mask, self.tokens = self.mask[kept, blank:], self.tokens[kept]
            layers = [[one[kept, :, blank:] for one in layer[:2]] for layer in self.cache]
            self.cache = DynamicCache(layers)


def rows(old: Any, new: Any, width: int) -> Any:
    """The rows of two caches in one, with blanks on the left of the shorter."""
    return torch.cat([pad(one, (0, 0, width - one.shape[2], 0)) for one in (old, new)])
