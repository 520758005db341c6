// What is behind a click: a machine's events, or a state's counts and times.
import { Dwell } from "./store.js";
import { ms } from "./timeline.js";

const SHOWN = 200;
const PERIOD = 200; // milliseconds between two looks: a table of events is written anew

export class Detail {
  constructor(store, { section, title, body, close }) {
    Object.assign(this, { store, section, title, body });
    this.chosen = null;
    close.addEventListener("click", () => this.choose(null));
  }

  choose(chosen) { // {machine} or {chart, state}
    this.chosen = chosen;
    this.section.hidden = !chosen;
    this.size = -1;
    this.draw();
  }

  draw() {
    const now = performance.now();
    if (!this.chosen) return;
    if (this.size !== -1 && now - this.drawn < PERIOD) { this.later ??= setTimeout(() => this.draw(), PERIOD); return; }
    clearTimeout(this.later);
    this.later = null;
    this.drawn = now;
    if (this.chosen.machine) this.#machine(this.chosen.machine);
    else this.#state(this.chosen.chart, this.chosen.state);
  }

  #machine(machine) {
    const last = machine.events.at(-1);
    if (this.last === last && this.size === machine.events.length) return;
    this.last = last; this.size = machine.events.length;
    this.title.textContent = `${machine.chart} ${machine.id}: ${machine.states.join(", ")}`;
    const guards = this.store.charts.get(machine.chart)?.guards ?? [];
    const table = element("table", { className: "events" });
    table.append(row("th", ["at", "event", "guards", "states after"]));
    const bad = machine.events.findLastIndex((one) => one[4]); // what is illegal is shown with what was around it
    const start = Math.max(0, Math.min(machine.events.length - SHOWN, bad < 0 ? Infinity : bad - 20));
    for (const [t, event, bits, states, why] of machine.events.slice(start, start + SHOWN).reverse()) {
      const line = row("td", [
        `${(t - this.store.hello.now).toFixed(4)} s`, event,
        guards.filter((_, bit) => bits >> bit & 1).join(", "), why ? `illegal: ${why}` : states.join(", "),
      ]);
      if (why) line.className = "illegal-row";
      table.append(line);
    }
    this.body.replaceChildren(table);
  }

  #state(chart, state) {
    const dwell = this.store.dwell.get(chart)?.get(state);
    if (!dwell) return;
    let inside = 0;
    for (const machine of this.store.machines.values()) if (machine.chart === chart && machine.ended === null && machine.states.includes(state)) inside += 1;
    const size = `${dwell.entered} ${dwell.left} ${inside}`;
    if (this.size === size) return;
    this.size = size;
    this.title.textContent = `${chart}: ${state}`;
    const bars = element("div", { className: "bars" });
    const most = Math.max(1, ...dwell.counts);
    dwell.counts.forEach((count, i) => {
      if (!count) return;
      const label = i === 21 ? `from ${ms(Dwell.from(i))}` : `${ms(Dwell.from(i))} to ${ms(Dwell.from(i + 1))}`;
      bars.append(element("span", { textContent: label }), element("meter", { value: count, max: most, ariaLabel: `${label}: ${count}` }), element("span", { textContent: count }));
    });
    this.body.replaceChildren(
      element("p", { textContent: `${inside} here now, entered ${dwell.entered} times` + (dwell.left ? `, left ${dwell.left} times after ${ms(dwell.total / dwell.left)} on average` : "") }),
      bars,
    );
  }
}

export function element(name, fields) { return Object.assign(document.createElement(name), fields); }

export function row(cell, texts) {
  const line = document.createElement("tr");
  line.append(...texts.map((text) => element(cell, { textContent: text })));
  return line;
}
