"""Many translation models on two replicas: ``shoal serve examples.many_models.app:app``.

The field ``model`` of each item names its model::

    curl localhost:8000/translate -H 'content-type: application/json' \\
        -d '{"model": "en-fr", "text": "hello"}'
"""

from dataclasses import dataclass

import shoal


@dataclass
class Sentence:
    model: str
    text: str


class Translator:
    """Stands in for models of many languages, two of which fit into the memory of a replica."""

    known = ("en-fr", "en-de", "en-it", "en-es")

    def __init__(self) -> None:
        self.words: dict[str, dict[str, str]] = {}

    def load_model(self, model: str) -> None:
        if model not in self.known:
            raise ValueError(f"there is no model {model}")
        language = model.removeprefix("en-")
        self.words[model] = {"hello": f"hello in {language}"}

    def unload_model(self, model: str) -> None:
        del self.words[model]

    def __call__(self, sentences: list[Sentence]) -> list[str]:
        model = shoal.current_model()
        assert model is not None
        words = self.words[model]
        return [words.get(sentence.text, sentence.text) for sentence in sentences]


app = shoal.App()
app.backend(
    "translator",
    Translator,
    placement="process",
    num_replicas=2,
    max_batch_size=16,
    models=shoal.Models(most=2, field="model"),
)
app.route("translate", backend="translator", path="/translate")
