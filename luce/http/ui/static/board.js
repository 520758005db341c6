// The requests that live, one a row, slots first.
import { element, row } from "./detail.js";
import { ms, short } from "./timeline.js";

export class Board {
  constructor(store, { rows, slots, choose }) {
    Object.assign(this, { store, rows, slots, choose });
    this.rates = new Map();
  }

  draw() {
    const board = this.store.board;
    if (board === this.drawn) return;
    this.drawn = board;
    if (!board) { this.rows.replaceChildren(); this.slots.textContent = ""; return; }
    this.slots.textContent = `${board.slots - board.free} of ${board.slots} slots`;
    const names = new Set();
    const sorted = [...board.requests].sort((a, b) => (a.slot ?? 1e6) - (b.slot ?? 1e6));
    const lines = sorted.slice(0, 300).map((one) => {
      names.add(one.id);
      const line = row("td", [
        one.slot ?? "", "", one.phase, ms(one.seconds_in_state), one.position, one.cached_tokens || "", one.blocks,
        one.pictures ? `${one.pictures_encoded}/${one.pictures}` : "", `${one.generated_tokens}/${one.max_tokens}`, this.#rate(one),
      ]);
      const button = element("button", { type: "button", textContent: short(one.id), title: one.request_id ?? one.id });
      line.children[1].append(button);
      line.children[2].prepend(dot(one.phase));
      line.dataset.request = one.id;
      line.addEventListener("click", () => this.choose(one));
      return line;
    });
    this.rows.replaceChildren(...lines);
    for (const name of this.rates.keys()) if (!names.has(name)) this.rates.delete(name);
  }

  // Tokens a second over the last few looks.
  #rate(one) {
    const seen = this.rates.get(one.id) ?? [];
    seen.push([this.store.now, one.generated_tokens]);
    if (seen.length > 8) seen.shift();
    this.rates.set(one.id, seen);
    const [t, tokens] = seen[0];
    return this.store.now > t ? ((one.generated_tokens - tokens) / (this.store.now - t)).toFixed(0) : "";
  }
}

export function dot(phase) {
  const mark = element("span", { className: "dot" });
  mark.style.setProperty("background", `var(--${phase})`);
  return mark;
}
