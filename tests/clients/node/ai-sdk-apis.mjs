// The AI SDK with the providers that are meant for OpenAI and Anthropic, pointed at luce: the Responses API, which
// createOpenAI takes by itself, and the Messages API.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { BASE, check, FACTS, KEY, main, MODEL, nothingRuns } from "./checks.mjs";

const openai = createOpenAI({ baseURL: BASE, apiKey: KEY });
const anthropic = createAnthropic({ baseURL: BASE, apiKey: KEY });
const apis = { responses: openai(MODEL), chat: openai.chat(MODEL), messages: anthropic(MODEL) };

async function everywhere(run) {
  for (const [name, model] of Object.entries(apis)) {
    try {
      await run({ model, temperature: 0, maxRetries: 0, maxOutputTokens: 400 });
    } catch (error) {
      throw new Error(`${name}: ${error?.stack ?? error}`);
    }
  }
}

check("answers", () =>
  everywhere(async (fields) => {
    const answer = await generateText({ ...fields, prompt: FACTS.count.question });
    assert.equal(answer.text, FACTS.count.answer);
    assert.equal(answer.finishReason, "stop");
  }));

check("streams_with_usage", () =>
  everywhere(async (fields) => {
    const answer = streamText({ ...fields, prompt: FACTS.count.question });
    let text = "";
    for await (const part of answer.fullStream) {
      assert.notEqual(part.type, "error", String(part.error));
      if (part.type === "text-delta") text += part.text;
    }
    assert.equal(text, FACTS.count.answer);
    assert.equal((await answer.usage).outputTokens, 92);
  }));

check("reads_a_picture", () =>
  everywhere(async (fields) => {
    const image = Buffer.from(FACTS.chart.url.split(",")[1], "base64");
    const content = [
      { type: "image", image },
      { type: "text", text: FACTS.chart.question },
    ];
    const answer = await generateText({ ...fields, messages: [{ role: "user", content }] });
    assert.equal(answer.text, FACTS.chart.answer);
  }));

check("runs_tools", () =>
  everywhere(async (fields) => {
    const task = FACTS.product;
    const multiply = tool({
      description: "Product of two numbers",
      inputSchema: z.object({ a: z.number().int(), b: z.number().int() }),
      execute: async ({ a, b }) => String(a * b),
    });
    const answer = await generateText({
      ...fields,
      tools: { multiply },
      stopWhen: stepCountIs(3),
      prompt: task.question,
    });
    assert.equal(answer.text, task.answer);
    assert.equal(answer.steps.length, 2);
  }));

check("generates_an_object", () =>
  everywhere(async (fields) => {
    const schema = z.object({ name: z.string(), age: z.number().int() });
    const { object } = await generateObject({ ...fields, schema, prompt: FACTS.record.question });
    // for names that are not Anthropic's its provider requires a call instead, of a tool that the model was not taught
    if (fields.model === apis.messages) assert.deepEqual(Object.keys(object).sort(), ["age", "name"]);
    else assert.deepEqual(object, FACTS.record.value);
  }));

check("requires_a_call", () =>
  everywhere(async (fields) => {
    const multiply = tool({
      description: "Product of two numbers",
      inputSchema: z.object({ a: z.number().int(), b: z.number().int() }),
    });
    const prompt = FACTS.product.question;
    const { toolCalls } = await generateText({ ...fields, tools: { multiply }, toolChoice: "required", prompt });
    assert.deepEqual(toolCalls[0].input, FACTS.product.arguments);
  }));

check("is_aborted_in_mid_stream", () =>
  everywhere(async (fields) => {
    const controller = new AbortController();
    const answer = streamText({
      ...fields,
      prompt: FACTS.long_count.question,
      abortSignal: controller.signal,
    });
    for await (const part of answer.fullStream) {
      if (part.type === "text-delta") controller.abort();
    }
    await nothingRuns();
  }));

await main();
