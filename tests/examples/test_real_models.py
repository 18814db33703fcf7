"""The examples of real models. Those whose packages are missing are skipped."""

from importlib.util import find_spec

import pytest
from starlette.testclient import TestClient

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


def with_package(*names):
    missing = [name for name in names if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


@with_package("magika")
def test_magika_names_types_of_files_as_its_own_package_does():
    from magika import Magika

    from examples.models.file_types import FileTypes, app
    from examples.models.items import FILES

    files = [*FILES[:12], b'{"a": [1, 2, 3]}', b"<!doctype html><html><body>text</body></html>"]
    own = Magika()
    expected = [str(own.identify_bytes(content).dl.label) for content in files]
    assert FileTypes()(files) == expected
    with TestClient(app) as client:
        headers = {"content-type": "application/octet-stream"}
        answer = client.post("/identify", content=FILES[0], headers=headers)
        assert answer.json() == expected[0] == "python"


@with_package("sklearn", "lightgbm")
def test_the_models_of_tables_predict_alike_in_batches_and_alone():
    from sklearn.datasets import load_diabetes, load_digits

    from examples.models.tables import Diabetes, Digits, app

    images, digits = (part[:300] for part in load_digits(return_X_y=True))
    model = Digits()
    found = model(images.tolist())
    assert sum(one == digit for one, digit in zip(found, digits, strict=True)) > 280
    assert found[:5] == [model([image])[0] for image in images[:5].tolist()]
    patients = load_diabetes().data[:5].tolist()
    booster = Diabetes()
    assert booster(patients) == pytest.approx([booster([one])[0] for one in patients])
    with TestClient(app) as client:
        assert client.post("/digits", json=images[0].tolist()).json() == found[0]
        assert client.post("/diabetes", json=patients[0]).json() == pytest.approx(
            booster(patients)[0]
        )
        assert client.post("/diabetes", json=patients[0][:9]).status_code == 422


@with_package("rapidocr", "onnxruntime")
def test_a_page_is_read_by_two_models():
    from examples.models.items import page
    from examples.models.text_lines import app

    with TestClient(app) as client:
        headers = {"content-type": "application/octet-stream"}
        lines = client.post("/read", content=page(), headers=headers).json()
    assert len(lines) == 8
    assert sum("coffee" in line and "EUR" in line for line in lines) == 8


@with_package("torch", "transformers")
def test_embeddings_do_not_depend_on_the_batch_that_pads_them():
    from examples.models.sentences import Embedder, app

    texts = ["one", "a somewhat longer sentence", "two"]
    model = Embedder()
    together = model(texts)
    for vector, text in zip(together, texts, strict=True):
        assert model([text])[0] == pytest.approx(vector, abs=1e-5)
    with TestClient(app) as client:
        assert client.post("/embed", json="one").json() == pytest.approx(together[0], abs=1e-5)


@pytest.fixture(scope="module")
def chat():
    from examples.models.chat import Chat

    return Chat()


def alone(chat, prompt, tokens):
    from examples.models.chat import tokenizer

    read = tokenizer([prompt], add_special_tokens=False, return_tensors="pt")
    written = chat.model.generate(**read, max_new_tokens=tokens, do_sample=False)
    return written[0, read["input_ids"].shape[1] :].tolist()


@with_package("torch", "transformers")
def test_texts_that_join_and_leave_are_what_generate_writes(chat):
    from examples.models.chat import tokenizer
    from examples.models.generation import Texts

    prompts = {"a": "hello world", "b": "x", "c": "a much longer prompt than the others", "d": "y"}
    joins = {0: ["a", "b"], 2: ["c"], 6: ["d"]}
    texts = Texts(chat.model, tokenizer)
    written = {key: [] for key in prompts}
    for step in range(16):
        joined = {key: prompts[key] for key in joins.get(step, [])}
        ended = [key for key in texts.keys if len(written[key]) == 8]
        for key, token in texts.write(joined, ended).items():
            written[key].append(token)
    assert written == {key: alone(chat, prompt, 8) for key, prompt in prompts.items()}


@with_package("torch", "transformers")
def test_a_chat_of_openai_s_clients_uses_the_template_of_the_tokenizer(chat):
    from examples.models.chat import app, tokenizer

    with TestClient(app) as client:
        messages = [{"role": "user", "content": "Hi"}]
        body = {"model": "chat", "messages": messages, "max_tokens": 6}
        answer = client.post("/v1/chat/completions", json=body).json()
    tokens = alone(chat, "<user>Hi\n<assistant>", 6)
    expected = "".join(tokenizer.decode([token]) for token in tokens)
    assert answer["choices"][0]["message"]["content"] == expected
    assert answer["usage"]["completion_tokens"] <= 6


@with_package("sklearn", "lightgbm")
async def test_the_load_test_counts_results():
    from examples.models import load

    assert await load.rate(load.CASES["diabetes"], 8, 0.2) > 0
