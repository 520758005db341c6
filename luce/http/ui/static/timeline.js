// Lanes of requests, tracks of steps and pictures, curves of queue and free blocks, on one canvas that d3 zooms.
const LANE = 15, HEAD = 18, CURVES = 64, GAP = 6, LABEL = 112;
const colors = new Map(); // asked for once a frame: every question to the style sheet costs
const color = (name) => {
  let found = colors.get(name);
  if (!found) colors.set(name, (found = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || "#888"));
  return found;
};

export class Timeline {
  constructor(store, { canvas, tip, span, choose }) {
    Object.assign(this, { store, canvas, tip, span, choose });
    this.seconds = 20; // shown
    this.right = null; // time at the right edge; null: now
    this.top = 0; // lanes scrolled by
    this.boxes = [];
    this.frames = 0;
    const d3 = globalThis.d3;
    this.zoom = d3.zoom().filter((event) => !event.button).on("zoom", (event) => this.#zoomed(event));
    d3.select(canvas).call(this.zoom).on("dblclick.zoom", null)
      .on("wheel.lanes", (event) => { if (event.shiftKey) { this.top = Math.max(0, this.top + Math.sign(event.deltaY) * 3 * LANE); event.preventDefault(); } });
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
    });
  }

  get paused() { return this.right !== null; }
  pause() { this.right ??= this.store.now; }
  follow() { this.right = null; }
  pan(seconds) { this.pause(); this.right = Math.min(this.right + seconds, this.store.now + this.seconds / 2); }

  scale(factor, around = null) {
    const most = Math.max(60, 2 * (this.store.now - this.#begin()));
    const seconds = Math.min(most, Math.max(0.002, this.seconds * factor));
    if (this.right !== null && around !== null) this.right = around + (this.right - around) * (seconds / this.seconds);
    this.seconds = seconds;
  }

  showAll() { this.right = this.store.now; this.seconds = Math.max(0.01, 1.05 * (this.store.now - this.#begin())); }

  #begin() {
    let first = this.store.now;
    for (const lane of this.store.lanes.values()) first = Math.min(first, lane[0].from);
    return this.store.counts.length ? Math.min(first, this.store.counts[0].t) : first;
  }

  #zoomed({ transform, sourceEvent }) {
    if (!sourceEvent) return;
    const { k, x } = transform, width = this.canvas.clientWidth - LABEL;
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
    this.tip.style.left = `${Math.min(event.offsetX + 12, this.canvas.clientWidth - 240)}px`;
    this.tip.style.top = `${event.offsetY + 30}px`;
  }

  draw() {
    const { canvas, store } = this, d3 = globalThis.d3;
    const width = canvas.clientWidth, height = canvas.clientHeight, ratio = devicePixelRatio || 1;
    if (!width || !height) return;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    }
    this.frames += 1;
    colors.clear();
    const c = canvas.getContext("2d");
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, width, height);
    c.font = "11px system-ui, sans-serif"; c.textBaseline = "middle";
    const to = this.right ?? store.now, from = to - this.seconds;
    const x = d3.scaleLinear([from, to], [LABEL, width]);
    this.boxes = [];
    const ink = color("ink"), soft = color("soft"), line = color("line");
    const start = store.hello.now;
    const format = (t) => `${(t - start).toFixed(this.seconds < 0.1 ? 4 : this.seconds < 2 ? 2 : 1)} s`;
    c.strokeStyle = line; c.fillStyle = soft;
    for (const tick of x.ticks(Math.max(2, width / 110))) {
      c.beginPath(); c.moveTo(x(tick), HEAD); c.lineTo(x(tick), height); c.stroke();
      c.fillText(format(tick), x(tick) + 3, HEAD / 2);
    }
    let y = HEAD;
    y = this.#curves(c, x, y, from, to);
    y = this.#track(c, x, y, "steps", store.steps, from, to, color("step"), (s) => `step ${s.number}\n${s.lanes} lanes, ${s.rows} rows\n${ms(s.to - s.from)}, on the device ${ms(s.device)}`);
    y = this.#track(c, x, y, "pictures", store.encodes, from, to, color("encoding"), (e) => `picture of ${e.request}\n${e.rows} rows in ${ms(e.to - e.from)}`);
    c.save();
    c.beginPath(); c.rect(0, y, width, height - y); c.clip();
    const lanes = [...store.lanes].filter(([, lane]) => lane[0].from <= to && (lane.at(-1).to ?? to) >= from);
    this.top = Math.min(this.top, Math.max(0, lanes.length * LANE - (height - y)));
    let at = y - this.top;
    const bad = new Set(store.illegal.filter((one) => one.machine === "request").map((one) => String(one.id)));
    for (const [id, lane] of lanes) {
      if (at + LANE > y && at < height) {
        c.fillStyle = bad.has(String(id)) ? color("alarm") : ink;
        c.fillText(short(String(id)), 2, at + LANE / 2);
        for (const { phase, from: a, to: b } of lane) {
          const left = Math.max(LABEL, x(a)), right = Math.min(width, x(b ?? Math.min(store.now, to)));
          if (right < LABEL || left > width) continue;
          c.fillStyle = color(phase);
          const w = Math.max(1, right - left);
          c.fillRect(left, at + 2, w, LANE - 4);
          this.boxes.push({ x: left, y: at, w, h: LANE, id, text: () => `${id}\n${phase} ${ms((b ?? store.now) - a)}` });
        }
      }
      at += LANE;
    }
    c.restore();
    for (const one of store.illegal) if (one.t >= from && one.t <= to) {
      c.strokeStyle = c.fillStyle = color("alarm");
      c.beginPath(); c.moveTo(x(one.t), HEAD); c.lineTo(x(one.t), height); c.stroke();
      c.fillText("illegal event", x(one.t) + 3, HEAD + 6);
      this.boxes.push({ x: x(one.t) - 3, y: HEAD, w: 6, h: height, text: () => `illegal event ${one.event}\n${one.machine} ${one.id}\n${one.why}` });
    }
    this.span.textContent = `${this.seconds < 1 ? ms(this.seconds) : `${this.seconds.toFixed(1)} s`}${this.paused ? ", held" : ""}`;
  }

  #track(c, x, y, name, items, from, to, fill, text) {
    c.fillStyle = color("soft"); c.fillText(name, 2, y + LANE / 2);
    c.fillStyle = fill;
    const d3 = globalThis.d3;
    let last = -1;
    for (let i = Math.max(0, d3.bisector((item) => item.to).left(items, from)); i < items.length && items[i].from <= to; i += 1) {
      const item = items[i], left = Math.max(LABEL, x(item.from)), right = Math.max(left + 0.6, x(item.to));
      if (right < last + 0.5) continue; // nothing that could be seen
      last = right;
      c.fillRect(left, y + 2, Math.max(0.6, right - left - 0.3), LANE - 4);
      if (right - left > 2) this.boxes.push({ x: left, y, w: right - left, h: LANE, text: () => text(item) });
    }
    return y + LANE + 2;
  }

  #curves(c, x, y, from, to) {
    const { counts } = this.store, d3 = globalThis.d3, bottom = y + CURVES - GAP;
    const first = Math.max(0, d3.bisector((item) => item.t).left(counts, from) - 1);
    let end = d3.bisector((item) => item.t).right(counts, to);
    const step = Math.max(1, Math.floor((end - first) / 1500));
    const shown = counts.filter((_, i) => i >= first && i < end && (i - first) % step === 0);
    for (const [name, most, tone, dash] of [
      ["waiting", null, "queued", []], ["running", this.store.hello.slots, "decoding", []], ["free", this.store.hello.blocks, "free", [4, 3]],
    ]) {
      const top = Math.max(1, most ?? 0, ...shown.map((item) => item[name]));
      c.strokeStyle = color(tone); c.setLineDash(dash);
      let before = 0;
      c.beginPath();
      shown.forEach((item, i) => {
        const px = Math.max(LABEL, x(item.t)), py = bottom - (item[name] / top) * (CURVES - 2 * GAP);
        if (i === 0) c.moveTo(px, py);
        else { c.lineTo(px, before); c.lineTo(px, py); } // as it was until then
        before = py;
      });
      if (shown.length && this.right === null) c.lineTo(x(to), bottom - (shown.at(-1)[name] / top) * (CURVES - 2 * GAP));
      c.stroke();
    }
    c.setLineDash([]);
    const last = shown.at(-1);
    ["waiting", "running", "free"].forEach((name, i) => {
      c.fillStyle = color({ waiting: "queued", running: "decoding", free: "free" }[name]);
      c.fillText(`${name === "free" ? "free blocks" : name} ${last ? last[name] : "–"}`, 2, y + 10 + 16 * i);
    });
    this.boxes.push({ x: LABEL, y, w: 1e5, h: CURVES, text: () => (last ? `waiting ${last.waiting}\nrunning ${last.running}\nparked ${last.parked}\nfree blocks ${last.free}\ncached blocks ${last.cached}` : "nothing yet") });
    return y + CURVES;
  }
}

export function ms(seconds) { return seconds >= 10 ? `${seconds.toFixed(1)} s` : seconds >= 0.1 ? `${(seconds * 1000).toFixed(0)} ms` : `${(seconds * 1000).toFixed(2)} ms`; }
export function short(id) { return id.length > 17 ? `${id.slice(0, 8)}…${id.slice(-7)}` : id; }
