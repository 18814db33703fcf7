"""What programs do with the clients of others; each runs in a process of its own.

Some of these clients leave connections open, warn, or change the process.
"""

import asyncio
import contextlib
import io
import os
import sys

HI = [{"role": "user", "content": "how is the weather?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
CITY = '{"city":"Oslo"}'


def use_openai(url):
    import openai

    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=20) as client:
        for model in ("records", "steps"):
            chat = client.chat.completions.create(model=model, messages=HI, tools=[TOOL])
            [call] = chat.choices[0].message.tool_calls
            assert (call.function.name, call.function.arguments) == ("weather", CITY)
            assert chat.choices[0].finish_reason == "tool_calls"
            answer = [
                *HI,
                chat.choices[0].message,
                {"role": "tool", "tool_call_id": call.id, "content": "fine"},
            ]
            chat = client.chat.completions.create(model=model, messages=answer, tools=[TOOL])
            assert chat.choices[0].message.content.strip() == "it is fine"

            with client.chat.completions.stream(model=model, messages=HI, tools=[TOOL]) as stream:
                final = stream.get_final_completion()
            [call] = final.choices[0].message.tool_calls
            assert (call.function.name, call.function.arguments) == ("weather", CITY)

            with client.responses.stream(model=model, input="hi") as stream:
                deltas = [one.delta for one in stream if one.type == "response.output_text.delta"]
                assert "".join(deltas).strip() == "it is fine"
                assert stream.get_final_response().output_text.strip() == "it is fine"
            function = {"type": "function", **TOOL["function"], "strict": False}
            with client.responses.stream(model=model, input="hi", tools=[function]) as stream:
                [call] = stream.get_final_response().output
            assert (call.name, call.arguments, call.status) == ("weather", CITY, "completed")

        logged = client.chat.completions.create(model="records", messages=HI, logprobs=True)
        assert logged.choices[0].logprobs.content[0].logprob == -0.5
        logged = client.responses.create(
            model="records", input="hi", include=["message.output_text.logprobs"]
        )
        assert logged.output[0].content[0].logprobs[0].logprob == -0.5
        with contextlib.suppress(openai.BadRequestError):
            client.chat.completions.create(model="upper", messages=HI, tools=[TOOL])
            raise AssertionError("it was not refused")

        file = ("a.wav", io.BytesIO(b"RIFF"))
        assert client.audio.transcriptions.create(model="speech", file=file).text == "hello world"
        events = client.audio.transcriptions.create(
            model="speech", file=("a.wav", io.BytesIO(b"RIFF")), stream=True
        )
        *_, done = events
        assert (done.type, done.text) == ("transcript.text.done", "hello world")


def use_agents(url):
    import agents
    import openai

    agents.set_tracing_disabled(True)

    @agents.function_tool
    def weather(city: str) -> str:
        asked.append(city)
        return "fine"

    async def run():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            for name in ("records", "steps"):
                for kind in (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel):
                    model = kind(model=name, openai_client=client)
                    agent = agents.Agent("a", instructions="help", model=model, tools=[weather])
                    result = await agents.Runner.run(agent, "how is it?")
                    assert result.final_output.strip() == "it is fine"
                    streamed = agents.Runner.run_streamed(agent, "how is it?")
                    async for _event in streamed.stream_events():
                        pass
                    assert streamed.final_output.strip() == "it is fine"

    asked = []
    asyncio.run(run())
    assert asked == ["Oslo"] * 8


def use_litellm(url):
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it looks for prices in the net
    import litellm

    to = {"api_base": f"{url}/v1", "api_key": "none"}
    for model in ("openai/records", "openai/steps"):
        chat = litellm.completion(model=model, messages=HI, tools=[TOOL], **to)
        [call] = chat.choices[0].message.tool_calls
        assert (call.function.name, call.function.arguments) == ("weather", CITY)
        chunks = litellm.completion(model=model, messages=HI, stream=True, **to)
        texts = [chunk.choices[0].delta.content or "" for chunk in chunks]
        assert "".join(texts).strip() == "it is fine"
        answer = litellm.responses(model=model, input="hi", **to)
        assert answer.output[0].content[0].text.strip() == "it is fine"
        *_, last = litellm.responses(model=model, input="hi", stream=True, **to)
        assert last.response.output[0].content[0].text.strip() == "it is fine"
    vectors = litellm.embedding(model="openai/embed", input=["a", "bc"], **to)
    assert [one["embedding"] for one in vectors.data] == [[1.0, 0.5], [2.0, 0.5]]
    for model in ("hosted_vllm/rank", "jina_ai/rank", "cohere/rank"):
        base = f"{url}/v1/rerank" if model.startswith("jina") else url
        base = f"{url}/v1" if model.startswith("hosted") else base
        ranked = litellm.rerank(
            model=model, query="q", documents=["a", "bbb"], api_base=base, api_key="none"
        )
        assert [one["index"] for one in ranked.results] == [1, 0]


def use_langchain(url):
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings
    from pydantic import BaseModel

    class City(BaseModel):
        city: str

    to = {"base_url": f"{url}/v1", "api_key": "none"}
    for responses in (False, True):
        for name in ("records", "steps"):
            model = ChatOpenAI(model=name, use_responses_api=responses, **to)
            assert model.invoke("hi").text.strip() == "it is fine"
            assert "".join(one.text for one in model.stream("hi")).strip() == "it is fine"
            [call] = model.bind_tools([TOOL]).invoke("hi").tool_calls
            assert (call["name"], call["args"]) == ("weather", {"city": "Oslo"})
            found = model.with_structured_output(City, method="json_schema").invoke("hi")
            assert found == City(city="Oslo")
    vectors = OpenAIEmbeddings(model="embed", check_embedding_ctx_length=False, **to)
    assert vectors.embed_documents(["a", "bc"]) == [[1.0, 0.5], [2.0, 0.5]]


def use_cohere(url):
    import cohere

    documents = ["a", "bbb", "cc"]
    client = cohere.ClientV2(api_key="none", base_url=url)
    ranked = client.rerank(model="rank", query="q", documents=documents, top_n=2)
    assert [one.index for one in ranked.results] == [1, 2]
    client = cohere.Client(api_key="none", base_url=url)
    ranked = client.rerank(model="rank", query="q", documents=documents, return_documents=True)
    assert [one.document.text for one in ranked.results] == ["bbb", "cc", "a"]


if __name__ == "__main__":
    globals()[f"use_{sys.argv[1]}"](sys.argv[2])
