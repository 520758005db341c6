// What the scripts have in common.
import assert from "node:assert/strict";
import { appendFileSync, readFileSync, writeFileSync } from "node:fs";

export const FACTS = JSON.parse(readFileSync(process.argv[2], "utf8"));
export const BASE = `${FACTS.base}/v1`;
export const TIGHT = `${FACTS.tight}/v1`;
export const { key: KEY, model: MODEL } = FACTS;

const checks = [];

export function check(name, run) {
  checks.push([name, run]);
}

// A conversation of one turn.
export function user(text, ...urls) {
  if (!urls.length) return [{ role: "user", content: text }];
  const pictures = urls.map((url) => ({ type: "image_url", image_url: { url } }));
  return [{ role: "user", content: [...pictures, { type: "text", text }] }];
}

export async function slots(server = FACTS.base) {
  const answer = await fetch(`${server}/slots`, { headers: { authorization: `Bearer ${KEY}` } });
  return await answer.json();
}

export async function waitFor(condition, what, seconds = 30) {
  const end = Date.now() + seconds * 1000;
  while (!(await condition())) {
    assert(Date.now() < end, `${what}: not within ${seconds} s`);
    await new Promise((done) => setTimeout(done, 20));
  }
}

// What was left is gone: no request, every slot free.
export async function nothingRuns(server = FACTS.base) {
  await waitFor(async () => {
    const state = await slots(server);
    return state.requests.length === 0 && state.free === state.slots;
  }, "every slot free again");
}

// Runs every check and writes a line for each into the file of results.
export async function main() {
  writeFileSync(process.argv[3], "");
  for (const [name, run] of checks) {
    let error = null;
    try {
      await run();
    } catch (thrown) {
      error = String(thrown?.stack ?? thrown);
    }
    appendFileSync(process.argv[3], `${JSON.stringify({ check: name, error })}\n`);
  }
  process.exit(0);
}
