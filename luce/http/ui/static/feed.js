// Where events come from: the server's stream, or a trace file sent to it. Both speak as luce/http/ui/wire.py says.

let key = sessionStorage.getItem("luce-key") || "";

export function setKey(value) { key = value; sessionStorage.setItem("luce-key", value); }

export function withKey(headers = {}) { return key ? { ...headers, Authorization: `Bearer ${key}` } : headers; }

// Server-sent events of a response, one JSON value after the other. `signal` ends it.
export async function* messages(response) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += decoder.decode(value, { stream: true });
    const events = rest.split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const lines = event.split("\n").filter((line) => line.startsWith("data: "));
      if (lines.length) yield lines.map((line) => line.slice(6)).join("\n");
    }
  }
}

// A message of a stream; one that broke ends with an error.
function parsed(text) {
  const one = JSON.parse(text);
  if (one.error) throw new Error(one.error.message);
  return one;
}

async function fault(response) {
  let text = `${response.status} ${response.statusText}`;
  try { text = (await response.json()).error.message; } catch { /* no JSON */ }
  return Object.assign(new Error(text), { status: response.status });
}

// Follow the server until aborted; comes back after a lost connection.
export async function follow({ signal, message, state }) {
  for (let wait = 500; !signal.aborted; wait = Math.min(2 * wait, 8000)) {
    try {
      state("connecting");
      const response = await fetch("/ui/events", { headers: withKey(), signal, cache: "no-store" });
      if (!response.ok) throw await fault(response);
      for await (const text of messages(response)) {
        wait = 500;
        state("live");
        message(parsed(text));
      }
    } catch (error) {
      if (signal.aborted) return;
      state("lost", error);
      if (error.status === 401) return;
    }
    await new Promise((go) => setTimeout(go, wait));
  }
}

export async function openTrace(file, { signal, message, skip = 0 }) {
  const response = await fetch(`/ui/trace?skip=${skip}`, {
    method: "POST", body: file, signal, headers: withKey({ "Content-Type": "application/octet-stream" }),
  });
  if (!response.ok) throw await fault(response);
  let ended = false;
  for await (const text of messages(response)) {
    const one = parsed(text);
    ended ||= one.kind === "end";
    message(one);
  }
  if (!ended) throw new Error("the rest of the trace did not come: the server ended its answer");
}
