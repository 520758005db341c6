// The AI SDK with its provider for servers that speak OpenAI's chat completions.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { BASE, check, FACTS, KEY, main, MODEL, nothingRuns, slots, TIGHT, user, waitFor } from "./checks.mjs";

const luce = createOpenAICompatible({ name: "luce", baseURL: BASE, apiKey: KEY, includeUsage: true });
const greedy = { model: luce(MODEL), temperature: 0, maxRetries: 0 };
const thinking = createOpenAICompatible({
  name: "luce",
  baseURL: BASE,
  apiKey: KEY,
  transformRequestBody: (body) => ({ ...body, chat_template_kwargs: { enable_thinking: true } }),
});
const endless = createOpenAICompatible({
  name: "luce",
  baseURL: BASE,
  apiKey: KEY,
  transformRequestBody: (body) => ({ ...body, ignore_eos: true }),
});

const picture = (chart) => [
  {
    role: "user",
    content: [
      { type: "image", image: Buffer.from(chart.url.split(",")[1], "base64") },
      { type: "text", text: chart.question },
    ],
  },
];

const calls = [];
const run = (task) => async (given) => {
  calls.push([task.name, given]);
  return task.result;
};
const tools = {
  get_weather: tool({
    description: "Weather in a city",
    inputSchema: z.object({ city: z.string() }),
    execute: run(FACTS.weather),
  }),
  multiply: tool({
    description: "Product of two numbers",
    inputSchema: z.object({ a: z.number().int(), b: z.number().int() }),
    execute: run(FACTS.product),
  }),
};

check("answers", async () => {
  const answer = await generateText({ ...greedy, prompt: FACTS.count.question });
  assert.equal(answer.text, FACTS.count.answer);
  assert.equal(answer.finishReason, "stop");
  assert.equal(answer.usage.totalTokens, answer.usage.inputTokens + answer.usage.outputTokens);
});

check("streams_with_usage", async () => {
  const answer = streamText({ ...greedy, prompt: FACTS.count.question });
  let text = "";
  let pieces = 0;
  for await (const delta of answer.textStream) {
    text += delta;
    pieces += 1;
  }
  assert.equal(text, FACTS.count.answer);
  assert(pieces > 5);
  const whole = await generateText({ ...greedy, prompt: FACTS.count.question });
  assert.equal((await answer.usage).outputTokens, whole.usage.outputTokens);
  assert.equal(await answer.finishReason, "stop");
});

check("reads_a_picture", async () => {
  const answer = await generateText({ ...greedy, messages: picture(FACTS.chart) });
  assert.equal(answer.text, FACTS.chart.answer);
});

check("keeps_a_conversation", async () => {
  const messages = picture(FACTS.chart);
  const first = await generateText({ ...greedy, messages });
  messages.push(...first.response.messages, { role: "user", content: "What is the title?" });
  const second = await generateText({ ...greedy, messages });
  assert.equal(second.text, FACTS.chart.title);
});

check("runs_tools", async () => {
  for (const task of [FACTS.weather, FACTS.product]) {
    calls.length = 0;
    const answer = await generateText({ ...greedy, tools, stopWhen: stepCountIs(3), prompt: task.question });
    assert.deepEqual(calls, [[task.name, task.arguments]]);
    assert.equal(answer.text, task.answer);
    assert.deepEqual(
      answer.steps.map((step) => step.finishReason),
      ["tool-calls", "stop"],
    );
  }
});

check("streams_tools", async () => {
  calls.length = 0;
  const task = FACTS.product;
  const answer = streamText({ ...greedy, tools, stopWhen: stepCountIs(3), prompt: task.question });
  const kinds = new Set();
  for await (const part of answer.fullStream) {
    assert.notEqual(part.type, "error", String(part.error));
    kinds.add(part.type);
  }
  assert(kinds.has("tool-call") && kinds.has("tool-result") && kinds.has("text-delta"), [...kinds].join());
  assert.deepEqual(calls, [[task.name, task.arguments]]);
  assert.equal(await answer.text, task.answer);
});

check("tells_reasoning_apart", async () => {
  const fields = { ...greedy, model: thinking(MODEL), prompt: FACTS.sum.question };
  const whole = await generateText(fields);
  assert.equal(whole.reasoningText, FACTS.sum.reasoning);
  assert.equal(whole.text, FACTS.sum.answer);
  const streamed = streamText(fields);
  const parts = { "reasoning-delta": "", "text-delta": "" };
  for await (const part of streamed.fullStream) {
    if (part.type in parts) parts[part.type] += part.text;
  }
  assert.deepEqual(parts, { "reasoning-delta": FACTS.sum.reasoning, "text-delta": FACTS.sum.answer });
});

check("seeds_reproduce", async () => {
  const sample = async (seed) => {
    const fields = { ...greedy, temperature: 4, maxOutputTokens: 24, seed };
    return (await generateText({ ...fields, prompt: "Hello!" })).text;
  };
  assert.equal(await sample(11), await sample(11));
  assert.notEqual(await sample(11), await sample(12));
});

check("stops", async () => {
  const answer = await generateText({ ...greedy, prompt: FACTS.count.question, stopSequences: [", 12"] });
  assert.equal(answer.text, "7, 8, 9, 10, 11");
});

check("maps_errors", async () => {
  const refused = (fields, status, words) =>
    assert.rejects(generateText({ ...greedy, prompt: "Hello!", ...fields }), (error) => {
      assert(APICallError.isInstance(error), String(error));
      assert.equal(error.statusCode, status);
      assert.equal(error.isRetryable, false);
      assert(error.message.includes(words), error.message);
      return true;
    });
  await refused({ model: luce("gpt-9") }, 404, "gpt-9");
  await refused({ prompt: FACTS.too_long }, 400, "maximum context length");
  const stranger = createOpenAICompatible({ name: "luce", baseURL: BASE, apiKey: "wrong" });
  await refused({ model: stranger(MODEL) }, 401, "key");
});

check("asks_again_when_the_server_is_full", async () => {
  const leave = new AbortController();
  const body = { model: MODEL, messages: user(FACTS.long_count.question), stream: true, ignore_eos: true };
  for (const place of [1, 2]) {
    await fetch(`${TIGHT}/chat/completions`, {
      method: "POST",
      headers: { authorization: `Bearer ${KEY}`, "content-type": "application/json" },
      body: JSON.stringify(body),
      signal: leave.signal,
    });
    await waitFor(async () => (await slots(FACTS.tight)).requests.length === place, "a place");
  }
  const statuses = [];
  const patient = createOpenAICompatible({
    name: "luce",
    baseURL: TIGHT,
    apiKey: KEY,
    fetch: async (...request) => {
      const response = await fetch(...request);
      statuses.push(response.status);
      if (response.status === 503) {
        leave.abort();
        await nothingRuns(FACTS.tight);
      }
      return response;
    },
  });
  const answer = await generateText({
    model: patient(MODEL),
    temperature: 0,
    maxRetries: 2,
    prompt: FACTS.copy.question,
  });
  assert.equal(answer.text, FACTS.copy.answer);
  assert.deepEqual(statuses, [503, 200]);
});

check("is_aborted_in_mid_stream", async () => {
  const controller = new AbortController();
  const answer = streamText({
    ...greedy,
    model: endless(MODEL),
    prompt: FACTS.long_count.question,
    abortSignal: controller.signal,
  });
  let aborted = false;
  for await (const part of answer.fullStream) {
    if (part.type === "text-delta") controller.abort();
    aborted ||= part.type === "abort";
  }
  assert(aborted);
  await nothingRuns();
});

await main();
