// Tokens, counts and frames of occupied states of one chart, in a picture that lies over Graphviz' own: it changes with
// every step, the one below does not and need not be painted again. Only what moved is touched.

const MOST = 400; // tokens; of more there is the count
const COLUMNS = 8; // of tokens below a state at least
const STAY = 1.5; // seconds that one is seen at its end

export class Tokens {
  constructor(svg, chart, choose) {
    Object.assign(this, { chart, choose });
    this.svg = make(svg, "svg", { class: "tokens", viewBox: svg.getAttribute("viewBox"), "aria-hidden": true });
    this.moving = make(svg, "g"); // as far as the chart is moved and zoomed
    const graph = svg.querySelector(".graph");
    this.layer = make(svg, "g", { transform: graph.getAttribute("transform") });
    this.frames = make(svg, "g", { class: "frames" });
    this.layer.append(this.frames);
    this.moving.append(this.layer);
    this.svg.append(this.moving);
    this.states = new Map(chart.states.map((state) => [state, this.#state(state, svg.getElementById(`state-${state}`))]));
    this.of = new Map(); // machine → its tokens
    this.ending = []; // machines at their end, oldest first
    this.spare = []; // circles that nobody needs just now
    this.shown = 0;
    this.size = 0;
  }

  #state(name, node) {
    if (!node) return null;
    const shape = node.querySelector("polygon, path") ?? node;
    return { name, node, shape, box: null, compound: node.classList.contains("cluster"), inside: 0, said: "", taken: [], frame: null, text: null };
  }

  // Units of the chart that a token's radius takes, so that it is seen at any zoom.
  resize(size) {
    if (size === this.size) return;
    this.size = size;
    for (const tokens of this.of.values()) for (const token of tokens) this.#put(token);
    for (const state of this.states.values()) if (state?.text) this.#label(state);
  }

  // Something that the chart forbids happened there.
  alarm(name) {
    const state = this.states.get(name);
    for (const drawn of [state?.node, state?.frame]) drawn?.classList.add("illegal");
  }

  // From nothing: every machine of the chart.
  fill(machines, now) {
    for (const machine of this.of.keys()) this.#drop(machine, []);
    this.ending = [];
    for (const machine of machines) this.#stand(machine, now);
    this.#count();
  }

  // Those that moved since the last time, and those at their end for long enough.
  move(machines, now) {
    for (const machine of machines) if (machine.chart === this.chart.name) this.#stand(machine, now);
    while (this.fades && now - this.ending[0].ended > STAY) this.#drop(this.ending.shift(), []);
    this.#count();
  }

  get fades() { return this.ending.length > 0; }

  // Where the machine stands it has a token, and nowhere else.
  #stand(machine, now) {
    const ended = machine.ended !== null;
    if (ended && now - machine.ended > STAY) return this.#drop(machine, []);
    if (ended && !this.ending.includes(machine)) this.ending.push(machine);
    const kept = this.#drop(machine, machine.states);
    for (const name of machine.states) {
      const state = this.states.get(name);
      if (!state || kept.some((token) => token.state === state)) continue;
      state.inside += 1;
      kept.push(this.#token(machine, name, state));
    }
    for (const { circle } of kept) circle?.classList.toggle("illegal", machine.illegal);
    this.of.set(machine, kept);
  }

  // All of its tokens but those in the states named, which are given back.
  #drop(machine, states) {
    const kept = [];
    for (const token of this.of.get(machine) ?? []) {
      const { state, index, circle } = token;
      if (states.includes(state.name)) { kept.push(token); continue; }
      state.inside -= 1;
      if (!circle) continue;
      state.taken[index] = undefined;
      this.shown -= 1;
      circle.machine = null;
      this.spare.push(circle);
    }
    this.of.delete(machine);
    return kept;
  }

  #token(machine, name, state) {
    if (state.compound || this.shown >= MOST) return { state, index: -1, circle: null };
    this.shown += 1;
    let index = 0;
    while (state.taken[index]) index += 1;
    const circle = this.#circle();
    const token = { state, index, circle };
    state.taken[index] = token;
    circle.machine = machine;
    circle.lastChild.textContent = `${machine.chart} ${machine.id}`;
    circle.setAttribute("data-machine", `${machine.chart} ${machine.id}`);
    circle.setAttribute("data-state", name);
    this.#put(token);
    return token;
  }

  #circle() {
    const old = this.spare.pop();
    if (old) return old;
    const circle = make(this.svg, "circle", { class: "token" });
    circle.append(make(this.svg, "title"));
    circle.addEventListener("click", (event) => { event.stopPropagation(); if (circle.machine) this.choose(circle.machine); });
    this.layer.append(circle);
    return circle;
  }

  #box(state) { return (state.box ??= state.shape.getBBox()); }

  #put({ state, index, circle }) {
    if (!circle) return;
    const { x, y, width, height } = this.#box(state), pitch = 2.2 * this.size;
    const row = Math.max(COLUMNS, Math.floor(width / pitch));
    set(circle, "cx", x + pitch * (0.5 + (index % row)));
    set(circle, "cy", y + height + pitch * Math.floor(index / row));
    set(circle, "r", this.size);
  }

  // What follows from how many there are: frames, numbers; and circles that nobody needed again are gone.
  #count() {
    for (const circle of this.spare) circle.remove();
    this.spare = [];
    for (const state of this.states.values()) {
      if (!state) continue;
      if (!state.frame && state.inside) {
        this.frames.append((state.frame = state.shape.cloneNode()));
        state.frame.classList.toggle("illegal", state.node.classList.contains("illegal"));
      }
      if (state.frame && state.framed !== state.inside > 0) {
        state.framed = state.inside > 0;
        state.frame.style.display = state.framed ? "" : "none";
      }
      const said = state.inside > 1 && !state.compound ? String(state.inside) : "";
      if (said === state.said) continue;
      state.said = said;
      if (!state.text) { this.layer.append((state.text = make(this.svg, "text", { class: "count" }))); this.#label(state); }
      state.text.textContent = said;
    }
  }

  #label(state) {
    const { x, y, width } = this.#box(state);
    set(state.text, "font-size", 2.5 * this.size);
    set(state.text, "x", x + width + 3);
    set(state.text, "y", y + 10);
  }
}

function make(like, name, attributes = {}) {
  const made = document.createElementNS(like.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
  return made;
}

function set(element, name, value) { element.setAttribute(name, Math.round(100 * value) / 100); }
