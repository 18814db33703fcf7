// What a program does with the AI SDK; test_openai_clients.py runs it.
import assert from 'node:assert/strict';
import { createOpenAI } from '@ai-sdk/openai';
import * as ai from 'ai';
import { z } from 'zod';

globalThis.AI_SDK_LOG_WARNINGS = false;
const [url] = process.argv.slice(2);
const statuses = [];
const openai = createOpenAI({
  baseURL: `${url}/v1`,
  apiKey: 'none',
  fetch: async (...request) => {
    const response = await fetch(...request);
    statuses.push(response.status);
    return response;
  },
});
const City = z.object({ city: z.string() });
const output = ai.Output.object({ schema: City });
const tools = {
  weather: ai.tool({ inputSchema: City, execute: async ({ city }) => `fine in ${city}` }),
};
const WAV = new Uint8Array([...'RIFF\0\0\0\0WAVE'].map(one => one.charCodeAt(0)));
const ignore = () => {};

async function streamed(options) {
  const errors = [];
  const result = ai.streamText({ ...options, onError: ({ error }) => errors.push(error) });
  const parts = [];
  for await (const part of result.stream) parts.push(part);
  if (errors.length) return { errors, parts };
  const [text, steps, usage, messages] = await Promise.all([
    result.text,
    result.steps,
    result.usage,
    result.responseMessages,
  ]);
  return { parts, text, steps, usage, responseMessages: messages };
}

// A conversation with a tool. The server keeps no responses, so the client must send all of it.
async function talk(model, generate) {
  const options = { model, providerOptions: { openai: { store: false } } };
  const messages = [{ role: 'user', content: 'how is it?' }];
  const first = await generate({ ...options, messages, tools, stopWhen: ai.isStepCount(3) });
  assert.equal(first.text.trim(), 'it is fine');
  assert.equal(first.steps.length, 2);
  assert.deepEqual(first.steps[0].toolCalls[0].input, { city: 'Oslo' });
  assert.equal(first.steps[0].toolResults[0].output, 'fine in Oslo');
  assert.deepEqual(first.steps.map(one => one.finishReason), ['tool-calls', 'stop']);
  messages.push(...first.responseMessages, { role: 'user', content: 'and now?' });
  const second = await generate({ ...options, messages });
  assert.equal(second.text.trim(), 'it is fine');
  assert.equal(second.usage.outputTokens, 3);
}

async function useTexts(model) {
  for (const name of ['records', 'steps']) {
    await talk(model(name), ai.generateText);
    await talk(model(name), streamed);
    const forced = { type: 'tool', toolName: 'weather' };
    const { toolCalls } = await ai.generateText({
      ...{ model: model(name), prompt: 'hi', tools, toolChoice: forced },
    });
    assert.equal(toolCalls.length, 1);

    const typed = { model: model(name), prompt: 'hi' };
    assert.deepEqual((await ai.generateText({ ...typed, output })).output, { city: 'Oslo' });
    const found = ai.streamText({ ...typed, output });
    assert.deepEqual(await found.output, { city: 'Oslo' });
    const object = await ai.generateObject({ ...typed, schema: City });
    assert.deepEqual(object.object, { city: 'Oslo' });

    const image = { type: 'file', mediaType: 'image/png', data: new Uint8Array([137, 80, 78, 71]) };
    const content = [{ type: 'text', text: 'what is it?' }, image];
    const seen = await ai.generateText({
      ...{ model: model(name), instructions: 'be brief', messages: [{ role: 'user', content }] },
    });
    assert.equal(seen.text.trim(), 'it is fine');
  }
  const { parts } = await streamed({ model: model('steps'), prompt: 'hi' });
  const deltas = parts.filter(one => one.type === 'text-delta').map(one => one.text);
  assert.deepEqual(deltas, ['it ', 'is ', 'fine ']);
  const short = await ai.generateText({ model: model('words'), prompt: 'a b', maxOutputTokens: 2 });
  assert.equal(short.finishReason, 'length');
}

async function useErrors(model) {
  const wrong = [
    [{ model: model('upper'), tools }, 400, "its items have no field 'tools'"],
    [{ model: model('gpt') }, 404, "The model 'gpt' does not exist"],
    [{ model: model('broken'), maxRetries: 0 }, 500, 'The call failed'],
  ];
  for (const [options, statusCode, message] of wrong) {
    const expected = error => {
      assert.equal(error.name, 'AI_APICallError');
      assert.equal(error.statusCode, statusCode);
      assert.equal(error.isRetryable, statusCode === 500);
      assert.ok(error.message.includes(message), error.message);
      return true;
    };
    await assert.rejects(ai.generateText({ ...options, prompt: 'hi' }), expected);
    const { errors } = await streamed({ ...options, prompt: 'hi' });
    expected(errors[0]);
  }
  const { errors, parts } = await streamed({ model: model('breaks'), prompt: 'hi', maxRetries: 0 });
  assert.match(errors[0].message, /The call failed/);
  assert.ok(parts.some(one => one.type === 'text-delta' && one.text === 'one '));
}

// One call runs and one waits, so that the third is refused.
async function useBusy(model) {
  const holders = new AbortController();
  const held = { model: model('busy'), maxRetries: 0, abortSignal: holders.signal };
  const calls = [1, 2, 3].map(() => ai.generateText({ ...held, prompt: 'hold' }));
  const error = await Promise.race(calls.map(call => call.then(ignore, error => error)));
  assert.equal(error.statusCode, 503);
  assert.equal(error.isRetryable, true);
  assert.equal(error.responseHeaders['retry-after'], '1');
  assert.match(error.message, /overloaded/);

  statuses.length = 0;
  const retried = ai.generateText({ model: model('busy'), prompt: 'go' });
  retried.catch(ignore);
  while (!statuses.length) await new Promise(resolve => setTimeout(resolve, 5));
  holders.abort();
  assert.match((await retried).text, /go/);
  assert.deepEqual(statuses.filter(one => one !== 499), [503, 200]);
  await Promise.allSettled(calls);
}

async function useAbort(model) {
  const controller = new AbortController();
  const { stream } = ai.streamText({
    ...{ model: model('writer'), prompt: 'a '.repeat(2000), abortSignal: controller.signal },
    onError: ({ error }) => assert.fail(error),
  });
  const kinds = [];
  for await (const part of stream) {
    kinds.push(part.type);
    if (part.type === 'text-delta') controller.abort();
  }
  assert.equal(kinds.at(-1), 'abort');
}

async function useOthers() {
  const vector = await ai.embed({ model: openai.embedding('embed'), value: 'abc' });
  assert.deepEqual(vector.embedding, [3, 0.5]);
  const vectors = await ai.embedMany({ model: openai.embedding('embed'), values: ['a', 'bc'] });
  assert.deepEqual(vectors.embeddings, [[1, 0.5], [2, 0.5]]);
  const heard = await ai.transcribe({ model: openai.transcription('speech'), audio: WAV });
  assert.equal(heard.text, 'hello world');

  // The SDK's default refers to texts that a server keeps.
  const first = await ai.generateText({ model: openai('records'), prompt: 'hi' });
  const messages = [...first.responseMessages, { role: 'user', content: 'and?' }];
  await assert.rejects(ai.generateText({ model: openai('records'), messages }), /store: false/);
}

for (const model of [name => openai(name), name => openai.chat(name)]) {
  await useTexts(model);
  await useErrors(model);
  await useBusy(model);
  await useAbort(model);
}
await useOthers();
