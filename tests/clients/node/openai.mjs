// The openai package for Node.js: another HTTP stack and another reader of event streams than Python's.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { BASE, check, FACTS, KEY, main, MODEL, nothingRuns, slots, TIGHT, user, waitFor } from "./checks.mjs";

const client = new OpenAI({ baseURL: BASE, apiKey: KEY, maxRetries: 0, timeout: 120_000 });
const greedy = { model: MODEL, temperature: 0 };
const endless = { ...greedy, messages: user(FACTS.long_count.question), ignore_eos: true };

check("lists_models", async () => {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.deepEqual(names, [MODEL]);
});

check("answers", async () => {
  const answer = await client.chat.completions.create({ ...greedy, messages: user(FACTS.count.question) });
  assert.equal(answer.choices[0].message.content, FACTS.count.answer);
  assert.equal(answer.choices[0].finish_reason, "stop");
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
});

check("streams_with_usage", async () => {
  const stream = await client.chat.completions.create({
    ...greedy,
    messages: user(FACTS.count.question),
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, FACTS.count.answer);
  assert(usage.completion_tokens > 20, JSON.stringify(usage));
});

check("helper_streams", async () => {
  const runner = client.chat.completions.stream({ ...greedy, messages: user(FACTS.count.question) });
  let text = "";
  runner.on("content", (delta) => (text += delta));
  const final = await runner.finalChatCompletion();
  assert.equal(text, FACTS.count.answer);
  assert.equal(final.choices[0].message.content, text);
});

check("reads_a_picture", async () => {
  const { question, url, answer: right } = FACTS.chart;
  const answer = await client.chat.completions.create({ ...greedy, messages: user(question, url) });
  assert.equal(answer.choices[0].message.content, right);
});

check("keeps_a_conversation", async () => {
  const messages = user(FACTS.chart.question, FACTS.chart.url);
  const first = await client.chat.completions.create({ ...greedy, messages });
  messages.push(first.choices[0].message, { role: "user", content: "What is the title?" });
  const second = await client.chat.completions.create({ ...greedy, messages });
  assert.equal(second.choices[0].message.content, FACTS.chart.title);
});

check("runs_tools", async () => {
  for (const task of [FACTS.weather, FACTS.product]) {
    const called = [];
    const tools = FACTS.tools.map((tool) => ({
      type: "function",
      function: {
        ...tool.function,
        parse: JSON.parse,
        function: (given) => {
          called.push([tool.function.name, given]);
          return task.result;
        },
      },
    }));
    const runner = client.chat.completions.runTools({ ...greedy, messages: user(task.question), tools });
    assert.equal(await runner.finalContent(), task.answer);
    assert.deepEqual(called, [[task.name, task.arguments]]);
  }
});

check("streams_a_tool_call", async () => {
  const task = FACTS.product;
  const runner = client.chat.completions.stream({
    ...greedy,
    messages: user(task.question),
    tools: FACTS.tools,
  });
  const { choices } = await runner.finalChatCompletion();
  const [call] = choices[0].message.tool_calls;
  assert.equal(choices[0].finish_reason, "tool_calls");
  assert.equal(call.function.name, task.name);
  assert.deepEqual(JSON.parse(call.function.arguments), task.arguments);
});

check("tells_reasoning_apart", async () => {
  const stream = await client.chat.completions.create({
    ...greedy,
    messages: user(FACTS.sum.question),
    stream: true,
    chat_template_kwargs: { enable_thinking: true },
  });
  const parts = { reasoning_content: "", content: "" };
  for await (const chunk of stream) {
    for (const name of Object.keys(parts)) parts[name] += chunk.choices[0].delta[name] ?? "";
  }
  assert.deepEqual(parts, { reasoning_content: FACTS.sum.reasoning, content: FACTS.sum.answer });
});

check("gives_log_probabilities", async () => {
  const answer = await client.chat.completions.create({
    ...greedy,
    messages: user(FACTS.copy.question),
    logprobs: true,
    top_logprobs: 2,
  });
  const rows = answer.choices[0].logprobs.content;
  const spelled = Buffer.from(rows.flatMap((row) => row.bytes)).toString();
  assert.equal(spelled.replace(/<\|im_end\|>$/, ""), FACTS.copy.answer);
  assert(rows.every((row) => row.top_logprobs.length === 2 && row.logprob <= 0));
});

check("seeds_reproduce", async () => {
  const sample = async (seed) => {
    const answer = await client.chat.completions.create({
      model: MODEL,
      messages: user("Hello!"),
      temperature: 4,
      seed,
      max_tokens: 24,
    });
    return answer.choices[0].message.content;
  };
  assert.equal(await sample(11), await sample(11));
  assert.notEqual(await sample(11), await sample(12));
});

check("stops", async () => {
  const answer = await client.chat.completions.create({
    ...greedy,
    messages: user(FACTS.count.question),
    stop: ", 12",
  });
  assert.equal(answer.choices[0].message.content, "7, 8, 9, 10, 11");
});

check("maps_errors", async () => {
  const ask = (fields, from = client) =>
    from.chat.completions.create({ ...greedy, messages: user("Hello!"), ...fields });
  await assert.rejects(ask({ model: "gpt-9" }), (error) => {
    assert(error instanceof OpenAI.NotFoundError, String(error));
    assert.equal(error.code, "model_not_found");
    assert.equal(error.param, "model");
    return true;
  });
  await assert.rejects(ask({ messages: user(FACTS.too_long) }), (error) => {
    assert(error instanceof OpenAI.BadRequestError, String(error));
    assert.equal(error.code, "context_length_exceeded");
    return true;
  });
  const stranger = client.withOptions({ apiKey: "wrong" });
  await assert.rejects(ask({}, stranger), (error) => {
    assert(error instanceof OpenAI.AuthenticationError, String(error));
    assert.equal(error.code, "invalid_api_key");
    return true;
  });
});

check("asks_again_when_the_server_is_full", async () => {
  const busy = new OpenAI({ baseURL: TIGHT, apiKey: KEY, maxRetries: 0, timeout: 120_000 });
  const running = [];
  for (const place of [1, 2]) {
    running.push(await busy.chat.completions.create({ ...endless, stream: true }));
    await waitFor(async () => (await slots(FACTS.tight)).requests.length === place, "a place");
  }
  const statuses = [];
  const patient = new OpenAI({
    baseURL: TIGHT,
    apiKey: KEY,
    maxRetries: 2,
    fetch: async (...request) => {
      const response = await fetch(...request);
      statuses.push(response.status);
      if (response.status === 503) {
        for (const stream of running) stream.controller.abort();
        await nothingRuns(FACTS.tight);
      }
      return response;
    },
  });
  const answer = await patient.chat.completions.create({ ...greedy, messages: user(FACTS.copy.question) });
  assert.equal(answer.choices[0].message.content, FACTS.copy.answer);
  assert.deepEqual(statuses, [503, 200]);
});

check("is_aborted_in_mid_stream", async () => {
  const stream = await client.chat.completions.create({ ...endless, stream: true });
  for await (const chunk of stream) {
    if (chunk.choices[0].delta.content) break;
  }
  await nothingRuns();
});

check("is_aborted_before_an_answer", async () => {
  const controller = new AbortController();
  const asked = client.chat.completions.create(endless, { signal: controller.signal });
  const seen = assert.rejects(asked, OpenAI.APIUserAbortError);
  await waitFor(async () => (await slots()).requests.length === 1, "a request");
  controller.abort();
  await seen;
  await nothingRuns();
});

check("gives_up_waiting", async () => {
  const asked = client.chat.completions.create(endless, { timeout: 300 });
  await assert.rejects(asked, OpenAI.APIConnectionTimeoutError);
  await nothingRuns();
});

check("hears_of_an_error_in_a_stream", async () => {
  const read = async () => {
    const stream = await client.chat.completions.create({ ...endless, stream: true, timeout: 1.0 });
    for await (const _ of stream);
  };
  await assert.rejects(read(), (error) => {
    assert(error instanceof OpenAI.APIError, String(error));
    assert.equal(error.code, "timeout");
    return true;
  });
  await nothingRuns();
});

await main();
