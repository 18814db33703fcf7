"""The prompts of one chat whose texts are written by backends that take different items."""

from types import SimpleNamespace

import pytest

from shoal.http.openai.text_request import TextJob

MESSAGES = [{"role": "user", "content": "one two three"}]


def maker(*, takes_messages):
    return SimpleNamespace(
        fields=frozenset(), takes_messages=takes_messages, item=lambda prompt, _: prompt
    )


@pytest.mark.parametrize("first", [True, False], ids=["messages first", "text first"])
def test_a_text_is_made_by_the_template_whichever_backend_came_before(first):
    model = SimpleNamespace(
        endpoint=SimpleNamespace(name="chat"),
        completions=None,
        chats=None,
        count=None,
        prompt_count=lambda text: len(text.split()),
        maker=lambda batcher: batcher,
        prompt=lambda messages: f"<{messages[0]['content']}> and go on",
    )
    job = TextJob(None, model, {}, (), MESSAGES, (), 2, 2)
    call = SimpleNamespace(streams=False)
    items = [
        job.item(call, maker(takes_messages=takes_messages), nth)[0]
        for nth, takes_messages in enumerate((first, not first))
    ]
    template = "<one two three> and go on"
    assert items == ([None, template] if first else [template, None])
    assert job.prompt_tokens() == 6
