// Answers of a form through the AI SDK and the openai package for Node.js.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, Output, streamObject, tool } from "ai";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { BASE, check, FACTS, KEY, main, MODEL, user } from "./checks.mjs";

const luce = createOpenAICompatible({
  name: "luce",
  baseURL: BASE,
  apiKey: KEY,
  supportsStructuredOutputs: true,
});
const greedy = { model: luce(MODEL), temperature: 0, maxRetries: 0, maxOutputTokens: 200 };
const person = z.object({ name: z.string(), age: z.number().int() });
const prompt = FACTS.record.question;

check("generates_an_object", async () => {
  const answer = await generateObject({ ...greedy, schema: person, prompt });
  assert.deepEqual(answer.object, FACTS.record.value);
});

check("generates_text_with_an_output", async () => {
  const answer = await generateText({ ...greedy, output: Output.object({ schema: person }), prompt });
  assert.deepEqual(answer.output, FACTS.record.value);
});

check("streams_an_object", async () => {
  const answer = streamObject({ ...greedy, schema: person, prompt });
  let parts = 0;
  for await (const _ of answer.partialObjectStream) parts += 1;
  assert(parts > 1);
  assert.deepEqual(await answer.object, FACTS.record.value);
});

check("chooses_from_a_list", async () => {
  const choices = ["good", "bad"];
  const answer = await generateObject({ ...greedy, output: "enum", enum: choices, prompt: "Hello!" });
  assert(choices.includes(answer.object));
});

check("requires_a_call", async () => {
  const multiply = tool({
    description: "Product of two numbers",
    inputSchema: z.object({ a: z.number().int(), b: z.number().int() }),
  });
  for (const toolChoice of ["required", { type: "tool", toolName: "multiply" }]) {
    const fields = { ...greedy, tools: { multiply }, toolChoice, prompt: FACTS.count.question };
    const { toolCalls } = await generateText(fields);
    assert.equal(toolCalls[0].toolName, "multiply");
    assert(Number.isInteger(toolCalls[0].input.a), JSON.stringify(toolCalls));
  }
});

check("calls_tools_in_parallel", async () => {
  const tools = Object.fromEntries(
    FACTS.tools.map(({ function: { name, description } }) => [
      name,
      tool({ description, inputSchema: name === "multiply" ? z.object({ a: z.number(), b: z.number() }) : z.object({ city: z.string() }) }),
    ]),
  );
  const twice = createOpenAICompatible({
    name: "luce",
    baseURL: BASE,
    apiKey: KEY,
    transformRequestBody: (body) => ({ ...body, logit_bias: { [FACTS.end_token]: -100 } }),
  });
  const answer = await generateText({
    ...greedy,
    model: twice(MODEL),
    maxOutputTokens: 40,
    tools,
    toolChoice: "required",
    prompt: FACTS.weather.question,
  });
  assert.deepEqual(
    answer.toolCalls.map((call) => [call.toolName, call.input]),
    [0, 1].map(() => [FACTS.weather.name, FACTS.weather.arguments]),
  );
});

check("openai_parses_into_a_schema", async () => {
  const client = new OpenAI({ baseURL: BASE, apiKey: KEY, maxRetries: 0 });
  const answer = await client.chat.completions.parse({
    model: MODEL,
    temperature: 0,
    max_tokens: 200,
    messages: user(prompt),
    response_format: zodResponseFormat(person, "person"),
  });
  assert.deepEqual(answer.choices[0].message.parsed, FACTS.record.value);
});

await main();
