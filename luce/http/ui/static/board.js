// The requests that live, one a row, slots first. Rows stay, and of each only what is new is written: all of a row in
// sight, and of those out of sight now and then.
import { element } from "./detail.js";
import { ms, short } from "./timeline.js";

const MOST = 300;
const COLUMNS = 10;
const ALL = 8; // every so many looks the rows out of sight are written, too

export class Board {
  constructor(store, { rows, slots, choose, ask }) {
    Object.assign(this, { store, rows, slots, choose });
    this.rates = new Map();
    this.lines = [];
    this.looks = this.top = this.height = 0;
    this.view = rows.closest(".scroll");
    this.view.addEventListener("scroll", () => { this.top = this.view.scrollTop; this.scrolled = true; this.looks = 0; ask(); });
    new ResizeObserver(() => { this.height = this.view.clientHeight; this.looks = 0; }).observe(this.view);
  }

  draw() {
    const { board } = this.store;
    const fresh = board !== this.drawn;
    if (!fresh && !this.scrolled) return;
    this.drawn = board;
    this.scrolled = false;
    const requests = board ? [...board.requests].sort((a, b) => (a.slot ?? 1e6) - (b.slot ?? 1e6)).slice(0, MOST) : [];
    write(this.slots, board ? `${board.slots - board.free} of ${board.slots} slots` : "");
    if (fresh) this.#look(requests);
    while (this.lines.length > requests.length) this.lines.pop().line.remove();
    while (this.lines.length < requests.length) this.#line();
    const all = this.looks++ % ALL === 0;
    const pitch = (this.pitch ||= this.lines[0]?.line.offsetHeight), { top } = this;
    requests.forEach((one, i) => {
      if (all || !pitch || ((i + 3) * pitch > top && (i - 2) * pitch < top + this.height)) this.#write(this.lines[i], one);
    });
  }

  #line() {
    const line = element("tr"), cells = Array.from({ length: COLUMNS }, () => element("td"));
    const button = element("button", { type: "button" }), phase = element("span"), mark = element("span", { className: "dot" });
    cells[1].append(button);
    cells[2].append(mark, phase);
    line.append(...cells);
    const made = { line, button, mark, texts: cells.with(1, button).with(2, phase), one: null };
    line.addEventListener("click", () => this.choose(made.one));
    this.lines.push(made);
    this.rows.append(line);
  }

  #write(made, one) {
    const told = [
      one.slot ?? "", short(one.id), one.phase, ms(one.seconds_in_state), one.position, one.cached_tokens || "", one.blocks,
      one.pictures ? `${one.pictures_encoded}/${one.pictures}` : "", `${one.generated_tokens}/${one.max_tokens}`, this.#rate(one),
    ];
    told.forEach((text, i) => write(made.texts[i], String(text)));
    if (made.phase !== one.phase) { made.phase = one.phase; paint(made.mark, one.phase); }
    if (made.one?.id !== one.id) { made.button.title = one.request_id ?? one.id; made.line.dataset.request = one.id; }
    made.one = one;
  }

  // Tokens of each now, for the rates.
  #look(requests) {
    const before = this.rates;
    this.rates = new Map();
    for (const one of requests) {
      const seen = before.get(one.id) ?? [];
      seen.push([this.store.now, one.generated_tokens]);
      if (seen.length > 8) seen.shift();
      this.rates.set(one.id, seen);
    }
  }

  // Tokens a second over the last few looks.
  #rate(one) {
    const [t, tokens] = this.rates.get(one.id)[0];
    return this.store.now > t ? ((one.generated_tokens - tokens) / (this.store.now - t)).toFixed(0) : "";
  }
}

function write(element, text) {
  if (element.said === text) return;
  element.said = text;
  if (element.firstChild) element.firstChild.data = text; // the node stays: less to lay out
  else element.textContent = text;
}

function paint(mark, phase) { mark.style.setProperty("background", `var(--${phase})`); }

export function dot(phase) {
  const mark = element("span", { className: "dot" });
  paint(mark, phase);
  return mark;
}
