// Lanes of requests under the strip of the server as a whole, on one canvas that d3 zooms. A pixel is a piece of time that
// starts at a multiple of its length, so that nothing flickers as time goes on.
import { CURVES, HEIGHT, Strip, TRACK } from "./strip.js";
import { color, onTheme } from "./theme.js";

const LANE = 15, HEAD = 18, LABEL = 112;

export class Timeline {
  constructor(store, { canvas, tip, span, choose, ask }) {
    Object.assign(this, { store, canvas, tip, span, choose, ask });
    this.seconds = 20; // shown
    this.right = null; // time at the right edge; null: now
    this.top = 0; // lanes scrolled by
    this.frames = 0;
    this.strip = new Strip(store);
    this.size = { width: 0, height: 0, ratio: 1 };
    const d3 = globalThis.d3;
    this.zoom = d3.zoom().filter((event) => !event.button).on("zoom", (event) => { this.#zoomed(event); ask(); });
    d3.select(canvas).call(this.zoom).on("dblclick.zoom", null)
      .on("wheel.lanes", (event) => { if (event.shiftKey) { this.top = Math.max(0, this.top + Math.sign(event.deltaY) * 3 * LANE); event.preventDefault(); ask(); } });
    this.last = d3.zoomIdentity;
    canvas.addEventListener("pointermove", (event) => this.#hover(event));
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    canvas.addEventListener("click", (event) => { const box = this.#at(event); if (box?.id !== undefined) this.choose(box.id); });
    canvas.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -0.2, ArrowRight: 0.2 }[event.key];
      if (move) this.pan(move * this.seconds);
      else if (event.key === "+" || event.key === "=") this.scale(0.5);
      else if (event.key === "-") this.scale(2);
      else if (event.key === "ArrowDown" || event.key === "ArrowUp") this.top = Math.max(0, this.top + (event.key === "ArrowDown" ? 3 : -3) * LANE);
      else if (event.key === "End") this.follow();
      else return;
      event.preventDefault();
      ask();
    });
    const observer = new ResizeObserver(([entry]) => this.#resized(entry.devicePixelContentBoxSize?.[0]));
    try { observer.observe(canvas, { box: "device-pixel-content-box" }); } catch { observer.observe(canvas); }
    onTheme(() => { this.strip.reset(); this.seen = null; ask(); });
  }

  get paused() { return this.right !== null; }
  pause() { this.right ??= this.store.now; this.ask(); }
  follow() { this.right = null; this.ask(); }
  pan(seconds) { this.pause(); this.right = Math.min(this.right + seconds, this.store.now + this.seconds / 2); }

  scale(factor, around = null) {
    const most = Math.max(60, 2 * (this.store.now - this.#begin()));
    const seconds = Math.min(most, Math.max(0.002, this.seconds * factor));
    if (this.right !== null && around !== null) this.right = around + (this.right - around) * (seconds / this.seconds);
    this.seconds = seconds;
    this.ask();
  }

  // All of the traffic: a server may have stood idle long before and after it.
  showAll() {
    const { lanes, steps, encodes, illegal, now } = this.store;
    let from = Infinity, to = -Infinity;
    const seen = (begin, end) => { from = Math.min(from, begin); to = Math.max(to, end); };
    for (const lane of lanes.values()) seen(lane[0].from, lane.at(-1).to ?? now);
    for (const one of [...steps, ...encodes]) seen(one.from, one.to);
    for (const one of illegal) seen(one.t, one.t);
    if (from > to) { from = this.#begin(); to = now; }
    this.seconds = Math.max(0.01, 1.05 * (to - from));
    this.right = to + 0.02 * this.seconds;
    this.ask();
  }

  #begin() {
    const { store } = this;
    return Math.min(store.now, store.order[0]?.[1][0].from ?? Infinity, store.counts[0]?.t ?? Infinity);
  }

  #zoomed({ transform, sourceEvent }) {
    if (!sourceEvent) return;
    const { k, x } = transform, width = this.size.width - LABEL;
    if (k !== this.last.k) {
      const at = (sourceEvent.offsetX ?? width) - LABEL;
      if (sourceEvent.type === "wheel" && !this.paused && at < width * 0.9) this.pause();
      const right = this.right ?? this.store.now;
      this.scale(this.last.k / k, right - (1 - at / width) * this.seconds);
    } else {
      this.pan(-((x - this.last.x) / width) * this.seconds);
      if (sourceEvent.movementY) this.top = Math.max(0, this.top - sourceEvent.movementY);
    }
    this.last = transform;
  }

  #at({ offsetX, offsetY }) {
    return this.boxes.findLast((box) => offsetX >= box.x && offsetX <= box.x + Math.max(box.w, 3) && offsetY >= box.y && offsetY <= box.y + box.h);
  }

  #hover(event) {
    const box = this.#at(event);
    this.tip.hidden = !box;
    if (!box) return;
    this.tip.textContent = box.text();
    this.tip.style.left = `${Math.min(event.offsetX + 12, this.size.width - 240)}px`;
    this.tip.style.top = `${event.offsetY + 30}px`;
  }

  // `box`: in the screen's own pixels, where the browser tells; one that is not drawn as it is costs twice to show.
  #resized(box) {
    const { canvas } = this, ratio = devicePixelRatio || 1;
    const wide = box?.inlineSize ?? Math.round(canvas.clientWidth * ratio), high = box?.blockSize ?? Math.round(canvas.clientHeight * ratio);
    if (canvas.width !== wide || canvas.height !== high) { canvas.width = wide; canvas.height = high; }
    this.size = { width: wide / ratio, height: high / ratio, ratio };
    this.seen = null;
    this.ask();
  }

  // What is in sight: columns by their numbers, and where a time is, in CSS pixels.
  #view() {
    const { width, ratio } = this.size;
    const columns = Math.max(1, Math.round((width - LABEL) * ratio)), pitch = this.seconds / columns;
    const to = this.right ?? this.store.now, first = Math.floor(to / pitch) - columns + 1;
    const x = (t) => LABEL + (Math.floor(t / pitch) - first) / ratio;
    return { columns, pitch, first, ratio, x, from: first * pitch, to };
  }

  draw() {
    const { store, canvas } = this, { width, height, ratio } = this.size;
    if (!width || !height) return;
    const view = this.#view();
    const seen = `${store.epoch} ${view.first} ${view.pitch} ${this.top} ${store.illegal.length} ${Math.min(store.touched, view.to)}`;
    if (seen === this.seen) return; // nothing that could be seen
    this.seen = seen;
    this.frames += 1;
    const c = (this.context ??= canvas.getContext("2d", { alpha: false }));
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.fillStyle = color("paper");
    c.fillRect(0, 0, width, height);
    c.font = "11px system-ui, sans-serif"; c.textBaseline = "middle";
    this.strip.draw(view);
    c.setTransform(1, 0, 0, 1, 0, 0);
    this.strip.show(c, Math.round(LABEL * ratio), Math.round(HEAD * ratio));
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.#names(c, view);
    this.#ticks(c, view);
    this.#lanes(c, view);
    for (const one of store.illegal) if (one.t >= view.from && one.t <= view.to) {
      c.fillStyle = color("alarm");
      c.fillRect(view.x(one.t), HEAD, 1, height);
      c.fillText("illegal event", view.x(one.t) + 3, HEAD + 6);
    }
    const said = `${this.seconds < 1 ? ms(this.seconds) : `${this.seconds.toFixed(1)} s`}${this.paused ? ", held" : ""}`;
    if (said !== this.said) this.span.textContent = this.said = said;
  }

  #ticks(c, { x, from, to }) {
    const { width, height } = this.size, start = this.store.hello.now;
    const digits = this.seconds < 0.1 ? 4 : this.seconds < 2 ? 2 : 1;
    const ticks = globalThis.d3.scaleLinear([from - start, to - start], [0, 1]).ticks(Math.max(2, width / 110));
    c.fillStyle = color("line");
    for (const tick of ticks) for (const [top, high] of [[HEAD, CURVES], [HEAD + HEIGHT, height]]) c.fillRect(x(tick + start), top, 1, high);
    c.fillStyle = color("soft");
    for (const tick of ticks) c.fillText(`${tick.toFixed(digits)} s`, x(tick + start) + 3, HEAD / 2);
  }

  // Of the curves and tracks, with the newest numbers in sight.
  #names(c, { to }) {
    const last = this.#counts(to);
    ["waiting", "running", "left"].forEach((name, i) => {
      c.fillStyle = color({ waiting: "queued", running: "decoding", left: "free" }[name]);
      c.fillText(`${name === "left" ? "blocks left" : name} ${last ? last[name] : "–"}`, 2, HEAD + 10 + 16 * i);
    });
    c.fillStyle = color("soft");
    c.fillText("steps", 2, HEAD + CURVES + TRACK / 2);
    c.fillText("pictures", 2, HEAD + CURVES + TRACK + 2 + TRACK / 2);
  }

  #counts(to) { return this.store.counts[globalThis.d3.bisector((item) => item.t).right(this.store.counts, to) - 1]; }

  // Requests in sight, as [id, lane]. While time goes on some come and some go, and those before are not asked again.
  #shown({ from, to }) {
    const { order, epoch } = this.store, here = ([, lane]) => lane[0].from <= to && (lane.at(-1).to ?? to) >= from;
    const known = this.known;
    const on = known && known.epoch === epoch && !this.paused && from >= known.from && to >= known.to && known.live;
    const shown = on ? [...known.shown.filter(here), ...order.slice(known.size).filter(here)] : order.filter(here);
    this.known = { shown, size: order.length, from, to, epoch, live: !this.paused };
    return shown;
  }

  #lanes(c, view) {
    const { width, height } = this.size, { x, from, to } = view, { illegal, now } = this.store;
    const y = HEAD + HEIGHT, shown = this.#shown(view);
    this.top = Math.min(this.top, Math.max(0, shown.length * LANE - (height - y)));
    const bad = illegal.length ? new Set(illegal.filter((one) => one.machine === "request").map((one) => String(one.id))) : null;
    c.save();
    c.beginPath(); c.rect(0, y, width, height - y); c.clip();
    for (let i = Math.floor(this.top / LANE); i < shown.length; i += 1) {
      const [id, lane] = shown[i], at = y - this.top + i * LANE;
      if (at >= height) break;
      c.fillStyle = color(bad?.has(String(id)) ? "alarm" : "ink");
      c.fillText(short(String(id)), 2, at + LANE / 2);
      for (const [phase, left, right] of this.#bars(lane, from, to, now, x)) {
        c.fillStyle = color(phase);
        c.fillRect(left, at + 2, right - left, LANE - 4);
      }
    }
    c.restore();
  }

  // What is in sight of a lane, the latest first: phase, left and right, and its entry.
  * #bars(lane, from, to, now, x) {
    for (let i = lane.length - 1; i >= 0; i -= 1) {
      const { phase, from: begin, to: end } = lane[i], stop = end ?? Math.min(now, to);
      if (stop < from) return;
      if (begin > to) continue;
      const left = Math.max(LABEL, x(begin)), right = Math.max(left + 1, Math.min(this.size.width, x(stop)));
      yield [phase, left, right, lane[i]];
    }
  }

  // All that can be pointed at, as it was drawn last. Asked for when somebody points.
  get boxes() {
    const { store } = this, { width, height } = this.size, view = this.#view(), { x, from, to } = view;
    const y = HEAD + CURVES, boxes = [];
    const last = this.#counts(to);
    boxes.push({ x: LABEL, y: HEAD, w: 1e5, h: CURVES, text: () => (last ? `waiting ${last.waiting}\nrunning ${last.running}\nparked ${last.parked}\nblocks left ${last.left}: ${last.free} free, ${last.cached} cached` : "nothing yet") });
    const track = (items, top, text) => {
      for (let i = globalThis.d3.bisector((item) => item.to).left(items, from); i < items.length && items[i].from <= to; i += 1) {
        const item = items[i], left = Math.max(LABEL, x(item.from)), w = Math.min(width, x(item.to)) - left;
        if (w > 2) boxes.push({ x: left, y: top, w, h: TRACK, text: () => text(item) });
      }
    };
    track(store.steps, y, (s) => `step ${s.number}\n${s.lanes} lanes, ${s.rows} rows\n${ms(s.to - s.from)}, on the device ${ms(s.device)}`);
    track(store.encodes, y + TRACK + 2, (e) => `picture of ${e.request}\n${e.rows} rows in ${ms(e.to - e.from)}`);
    this.#shown(view).forEach(([id, lane], i) => {
      const at = HEAD + HEIGHT - this.top + i * LANE;
      if (at + LANE <= HEAD + HEIGHT || at >= height) return;
      for (const [phase, left, right, bar] of this.#bars(lane, from, to, store.now, x)) {
        boxes.push({ x: left, y: at, w: right - left, h: LANE, id, text: () => `${id}\n${phase} ${ms((bar.to ?? store.now) - bar.from)}` });
      }
    });
    for (const one of store.illegal) if (one.t >= from && one.t <= to) {
      boxes.push({ x: x(one.t) - 3, y: HEAD, w: 6, h: height, text: () => `illegal event ${one.event}\n${one.machine} ${one.id}\n${one.why}` });
    }
    return boxes;
  }
}

export function ms(seconds) { return seconds >= 10 ? `${seconds.toFixed(1)} s` : seconds >= 0.1 ? `${(seconds * 1000).toFixed(0)} ms` : `${(seconds * 1000).toFixed(2)} ms`; }
export function short(id) { return id.length > 17 ? `${id.slice(0, 8)}…${id.slice(-7)}` : id; }
