"""Sentence embeddings with PyTorch and Transformers; batches have a budget of tokens.

pip install torch transformers
shoal serve examples.models.sentences:app
curl localhost:8000/embed -H 'content-type: application/json' -d '"a sentence"'

The weights are random. Load yours with `from_pretrained`.
"""

import torch
from transformers import BertConfig, BertModel, ByT5Tokenizer

import shoal

CONFIG = BertConfig(
    vocab_size=384,
    hidden_size=256,
    num_hidden_layers=6,
    num_attention_heads=8,
    intermediate_size=1024,
)


def count_tokens(text: str) -> int:
    return len(text.encode()) + 1  # this tokenizer makes a token of each byte, and one for the end


def length(text: str) -> int:
    """Texts of a batch are padded to the longest, so only similar ones share a batch."""
    return -(-count_tokens(text) // 32)


class Embedder:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.tokenizer = ByT5Tokenizer()  # or AutoTokenizer.from_pretrained(name)
        self.model = BertModel(CONFIG).eval()  # or AutoModel.from_pretrained(name)

    def __call__(self, texts: list[str]) -> list[list[float]]:
        inputs = self.tokenizer(texts, padding=True, return_tensors="pt")
        with torch.inference_mode():
            states = self.model(**inputs).last_hidden_state
            mask = inputs["attention_mask"].unsqueeze(-1)
            means = (states * mask).sum(1) / mask.sum(1)
            vectors: list[list[float]] = torch.nn.functional.normalize(means).tolist()
        return vectors


app = shoal.App()
app.endpoint(
    "/embed",
    name="embed",
    max_batch_size=64,  # texts
    max_batch_cost=2048,  # tokens
    batch_size_fn=count_tokens,
    bucket_by=length,
)(Embedder)
