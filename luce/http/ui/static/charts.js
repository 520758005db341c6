// A chart as Graphviz draws it from its file, with a token for every machine where it stands.
import { Tokens } from "./tokens.js";
import { instance } from "./vendor/viz.js";

const LEGIBLE = 11; // pixels of a chart's smallest text at first sight
const ABOVE = 100; // pixels between the panel's upper edge and where machines begin

let viz;

export class Charts {
  constructor(store, { tabs, panel, buttons, choose, chooseState, ask }) {
    Object.assign(this, { store, tabs, panel, buttons, choose, chooseState, ask });
    this.shown = "request";
    this.drawn = new Map(); // name → {svg, tokens}
    panel.addEventListener("keydown", (event) => { if (this.drawn.get(this.shown)?.zoomBy(event.key)) event.preventDefault(); });
    for (const button of buttons.children) button.addEventListener("click", () => this.drawn.get(this.shown)?.zoomBy(button.value));
    new ResizeObserver(() => { this.scale = null; this.placed = false; ask(); }).observe(panel);
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
    if (!this.drawn.has(name)) this.drawn.set(name, this.#picture(name));
    const { svg, tokens } = this.drawn.get(name);
    this.panel.replaceChildren(svg, tokens.svg);
    this.scale = null;
    this.placed = false;
    this.alarms = -1;
    this.draw();
  }

  #picture(name) {
    const svg = viz.renderSVGElement(this.store.charts.get(name).dot);
    svg.removeAttribute("width"); svg.removeAttribute("height");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `Statechart ${name}`);
    for (const node of svg.querySelectorAll('[id^="state-"]')) {
      node.addEventListener("click", (event) => { event.stopPropagation(); this.chooseState(name, node.id.slice(6)); });
    }
    const tokens = new Tokens(svg, this.store.charts.get(name), this.choose);
    return { svg, tokens, ...this.#zoomable(svg, tokens, name) };
  }

  // Wheel and drag; plus, minus, arrows, 0 and 1 while the panel has the focus; or buttons. Tokens lie above the chart and
  // take wheel and drag as well. Until somebody moves it, a chart is shown as at first sight, however large the panel is.
  #zoomable(svg, tokens, name) {
    const d3 = globalThis.d3;
    const graph = svg.querySelector(".graph"), inner = document.createElementNS(svg.namespaceURI, "g");
    graph.replaceWith(inner);
    inner.append(graph);
    let moved = false;
    const zoom = d3.zoom().scaleExtent([1, 12]).on("zoom", ({ transform, sourceEvent }) => {
      moved ||= !!sourceEvent;
      for (const group of [inner, tokens.moving]) group.setAttribute("transform", transform);
      for (const one of [svg, tokens.svg]) one.__zoom = transform; // where d3 keeps it
      this.scale = null;
      this.ask();
    });
    d3.select(tokens.svg).call(zoom).on("dblclick.zoom", null);
    const picture = d3.select(svg).call(zoom).on("dblclick.zoom", null);
    const first = () => {
      const { x, y, scale } = firstSight(svg, graph, name, this.panel);
      picture.call(zoom.transform, d3.zoomIdentity.translate(x, y).scale(scale));
    };
    const place = () => { if (!moved) first(); };
    const zoomBy = (key) => {
      const step = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[key];
      if (step) picture.call(zoom.translateBy, ...step);
      else if (key === "+" || key === "=") picture.call(zoom.scaleBy, 1.4);
      else if (key === "-") picture.call(zoom.scaleBy, 1 / 1.4);
      else if (key === "0") picture.call(zoom.transform, d3.zoomIdentity);
      else if (key === "1") first();
      else return false;
      moved = key !== "1";
      return true;
    };
    return { place, zoomBy };
  }

  draw() {
    const { store } = this, drawn = this.drawn.get(this.shown);
    if (!drawn || !drawn.svg.isConnected) return;
    const { svg, tokens } = drawn;
    if (this.scale === null) { // asked when it may have changed: the browser has to lay out to know
      store.jumped = true;
      if (!this.panel.clientWidth) return; // another view is shown, and nothing has a place
      if (!this.placed) drawn.place();
      this.placed = true;
      this.scale = svg.querySelector(".graph").getScreenCTM()?.a ?? 1;
      tokens.resize(Math.max(4, 6 / this.scale));
    }
    if (store.jumped) tokens.fill([...store.machines.values()].filter((one) => one.chart === this.shown), store.now);
    else if (store.moved.size || tokens.fades) tokens.move(store.moved, store.now);
    store.jumped = false;
    store.moved.clear();
    if (this.alarms === store.illegal.length) return;
    this.alarms = store.illegal.length;
    for (const one of store.illegal) if (one.machine === this.shown) {
      for (const state of one.states) tokens.alarm(state);
    }
  }
}

// The chart as large as its panel, or so large that its labels can be read; then it shows where machines begin.
function firstSight(svg, graph, name, panel) {
  const { width, height } = svg.viewBox.baseVal;
  const fitted = Math.min(panel.clientWidth / width, panel.clientHeight / height); // pixels of a unit
  const smallest = Math.min(...[...graph.querySelectorAll("text")].map((text) => parseFloat(text.getAttribute("font-size"))));
  const scale = Math.max(1, LEGIBLE / (smallest * fitted));
  const start = [...graph.querySelectorAll(".node")].find((node) => node.querySelector("title")?.textContent === `initial of ${name}`) ?? graph;
  const box = start.getBBox(), { a, d, e, f } = graph.transform.baseVal.consolidate().matrix;
  const from = { x: a * (box.x + box.width / 2) + e, y: d * box.y + f };
  // Along one side: `size` units of the chart, of which `seen` are seen, `at` so far behind the first of them.
  const along = (size, seen, from, at) => {
    const low = (size - seen) / 2, least = size - low - scale * size;
    return least > low ? (size - scale * size) / 2 : Math.min(low, Math.max(least, low + at - scale * from));
  };
  const across = panel.clientWidth / fitted, down = panel.clientHeight / fitted;
  return { scale, x: along(width, across, from.x, across / 2), y: along(height, down, from.y, ABOVE / fitted) };
}
