// A chart as Graphviz draws it from its file, with a token for every machine where it stands.
import { instance } from "./vendor/viz.js";

const MOST_TOKENS = 400;
let viz;

export class Charts {
  constructor(store, { tabs, panel, choose, chooseState }) {
    Object.assign(this, { store, tabs, panel, choose, chooseState });
    this.shown = "request";
    this.drawn = new Map();
    this.places = new Map();
    panel.addEventListener("keydown", (event) => { if (panel.querySelector("svg")?.zoomBy(event.key)) event.preventDefault(); });
  }

  async reset() {
    viz ??= await instance();
    this.drawn.clear();
    this.tabs.replaceChildren(...[...this.store.charts.keys()].map((name) => {
      const tab = Object.assign(document.createElement("button"), { type: "button", textContent: name, id: `tab-${name}` });
      tab.setAttribute("role", "tab");
      tab.addEventListener("click", () => this.show(name));
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const all = [...this.tabs.children];
        const next = all[(all.indexOf(tab) + step + all.length) % all.length];
        next.focus(); next.click();
      });
      return tab;
    }));
    if (!this.store.charts.has(this.shown)) this.shown = [...this.store.charts.keys()][0];
    if (this.shown) this.show(this.shown);
  }

  show(name) {
    this.shown = name;
    for (const tab of this.tabs.children) {
      const here = tab.id === `tab-${name}`;
      tab.setAttribute("aria-selected", here);
      tab.tabIndex = here ? 0 : -1;
    }
    this.panel.setAttribute("aria-labelledby", `tab-${name}`);
    let svg = this.drawn.get(name);
    if (!svg) {
      svg = viz.renderSVGElement(this.store.charts.get(name).dot);
      svg.removeAttribute("width"); svg.removeAttribute("height");
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", `Statechart ${name}`);
      for (const node of svg.querySelectorAll('[id^="state-"]')) {
        node.addEventListener("click", (event) => { event.stopPropagation(); this.chooseState(name, node.id.slice(6)); });
      }
      this.#zoomable(svg);
      this.drawn.set(name, svg);
    }
    this.panel.replaceChildren(svg);
    this.places.clear();
    this.last = null;
    this.draw();
  }

  // Wheel and drag, or plus, minus, arrows and 0 while the panel has the focus.
  #zoomable(svg) {
    const d3 = globalThis.d3;
    const graph = svg.querySelector(".graph"), inner = document.createElementNS(svg.namespaceURI, "g");
    graph.replaceWith(inner);
    inner.append(graph);
    const zoom = d3.zoom().scaleExtent([1, 12]).on("zoom", ({ transform }) => inner.setAttribute("transform", transform));
    const picture = d3.select(svg).call(zoom).on("dblclick.zoom", null);
    svg.zoomBy = (key) => {
      const step = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[key];
      if (step) picture.call(zoom.translateBy, ...step);
      else if (key === "+" || key === "=") picture.call(zoom.scaleBy, 1.4);
      else if (key === "-") picture.call(zoom.scaleBy, 1 / 1.4);
      else if (key === "0") picture.call(zoom.transform, d3.zoomIdentity);
      else return false;
      return true;
    };
  }

  #place(svg, state) {
    const key = `${this.shown} ${state}`;
    if (!this.places.has(key)) {
      const node = svg.getElementById(`state-${state}`);
      const shape = node?.querySelector("polygon, path");
      this.places.set(key, node ? { node, box: (shape ?? node).getBBox() } : null);
    }
    return this.places.get(key);
  }

  // How many of those that ended are still shown.
  #fading() {
    let count = 0;
    for (const machine of this.store.machines.values()) if (machine.ended !== null && this.store.now - machine.ended <= 1.5) count += 1;
    return count;
  }

  draw() {
    const svg = this.drawn.get(this.shown);
    if (!svg || !svg.isConnected) return;
    const graph = svg.querySelector(".graph");
    const size = Math.max(4, 6 / (graph.getScreenCTM()?.a ?? 1)); // seen at any zoom
    const news = `${this.shown} ${this.store.version} ${size} ${this.#fading()}`;
    if (news === this.last) return; // nothing moved
    this.last = news;
    const chart = this.store.charts.get(this.shown);
    const compound = new Set([...svg.querySelectorAll(".cluster")].map((node) => node.id.slice(6)));
    const by = new Map();
    const tokens = [];
    for (const machine of this.store.machines.values()) {
      if (machine.chart !== this.shown || (machine.ended !== null && this.store.now - machine.ended > 1.5)) continue;
      for (const state of machine.states) {
        const count = (by.get(state) ?? 0);
        by.set(state, count + 1);
        if (!compound.has(state) && tokens.length < MOST_TOKENS) tokens.push({ key: `${machine.id} ${state}`, machine, state, index: count });
      }
    }
    for (const state of chart.states) {
      const place = this.#place(svg, state);
      if (place) place.node.classList.toggle("here", (by.get(state) ?? 0) > 0);
    }
    for (const one of this.store.illegal) if (one.machine === this.shown) {
      for (const state of one.states) this.#place(svg, state)?.node.classList.add("illegal");
    }
    const d3 = globalThis.d3;
    const at = (token) => {
      const place = this.#place(svg, token.state);
      if (!place) return [0, 0];
      const { x, y, width, height } = place.box;
      const row = Math.max(1, Math.floor(width / (2.2 * size)));
      return [x + size * (1.1 + 2.2 * (token.index % row)), y + height + 2.2 * size * Math.floor(token.index / row)];
    };
    d3.select(graph).selectAll("circle.token").data(tokens, (token) => token.key).join(
      (enter) => enter.append("circle").attr("class", "token")
        .attr("cx", (token) => at(token)[0]).attr("cy", (token) => at(token)[1])
        .on("click", (event, token) => { event.stopPropagation(); this.choose(token.machine); })
        .call((made) => made.append("title").text((token) => `${token.machine.chart} ${token.machine.id}`)),
      (update) => update.attr("cx", (token) => at(token)[0]).attr("cy", (token) => at(token)[1]),
    ).attr("r", size).attr("fill", (token) => (token.machine.illegal ? "var(--alarm)" : "var(--token)"))
      .attr("data-machine", (token) => `${token.machine.chart} ${token.machine.id}`).attr("data-state", (token) => token.state);
    const many = [...by].filter(([state, count]) => count > 1 && !compound.has(state));
    d3.select(graph).selectAll("text.count").data(many, ([state]) => state).join("text").attr("class", "count")
      .attr("font-size", 2.5 * size).text(([, count]) => count)
      .attr("x", ([state]) => { const place = this.#place(svg, state); return place ? place.box.x + place.box.width + 3 : 0; })
      .attr("y", ([state]) => { const place = this.#place(svg, state); return place ? place.box.y + 10 : 0; });
  }
}
