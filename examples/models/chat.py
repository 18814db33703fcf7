"""A chat model of Transformers whose texts join and leave the batch between two tokens.

pip install torch transformers
shoal serve examples.models.chat:app
curl localhost:8000/v1/chat/completions -H 'content-type: application/json' \\
     -d '{"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20}'

The weights are random, so it writes noise. Load yours with `from_pretrained`.
"""

from dataclasses import dataclass

import torch
from anyio import to_thread
from transformers import ByT5Tokenizer, LlamaConfig, LlamaForCausalLM

import shoal
from examples.models.generation import Texts
from shoal.http.openai import OpenAI

tokenizer = ByT5Tokenizer(padding_side="left", extra_ids=0)  # or AutoTokenizer.from_pretrained
tokenizer.chat_template = (  # a trained tokenizer has one
    "{% for one in messages %}<{{ one.role }}>{{ one.content }}\n{% endfor %}<assistant>"
)
CONFIG = LlamaConfig(
    vocab_size=len(tokenizer), hidden_size=512, intermediate_size=1376, num_hidden_layers=8
)


@dataclass
class Prompt:
    prompt: str
    max_tokens: int = 64


class Chat:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = LlamaForCausalLM(CONFIG).eval()  # or AutoModelForCausalLM.from_pretrained

    async def __call__(self, batch: shoal.OpenBatch[Prompt, str]) -> None:
        texts: Texts[shoal.OpenRequest[Prompt, str]] = Texts(self.model, tokenizer)
        left: dict[shoal.OpenRequest[Prompt, str], int] = {}
        async for joined in batch.steps():
            left |= {request: request.item.max_tokens for request in joined}
            prompts = {request: request.item.prompt for request in joined}
            ended = [request for request in texts.keys if request.ended]
            written = await to_thread.run_sync(texts.write, prompts, ended)
            await batch.send({one: tokenizer.decode([new]) for one, new in written.items()})
            for request, token in written.items():
                left[request] -= 1
                if not left[request] or token == tokenizer.eos_token_id:
                    request.finish()


protocol = OpenAI(
    chat_template=lambda messages: tokenizer.apply_chat_template(messages, tokenize=False)
)
app = shoal.App(protocols=[protocol])
app.endpoint("/chat", name="chat", fill="continuous", streams=True, max_batch_size=16)(Chat)
