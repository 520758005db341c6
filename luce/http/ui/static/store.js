// What is known: machines, their last events, times in states, and the strips that the timeline draws. Bounded.

export const PHASES = ["following", "queued", "encoding", "staging", "decoding", "parked", "ending"];
export const ENDS = ["finished", "failed", "cancelled"];
const WINDOW = 900; // seconds kept of a running server
const EVENTS = 400; // of a machine
const GONE = 2000; // machines that have ended and are kept for those who click on them
const FORGET = 5; // seconds between two looks for what is too old

// Times in a state, in classes from 0.1 ms to a thousand seconds, three to a decade.
export class Dwell {
  constructor() { this.entered = 0; this.left = 0; this.total = 0; this.counts = new Array(22).fill(0); }
  add(seconds) {
    this.left += 1; this.total += seconds;
    this.counts[Math.max(0, Math.min(21, Math.floor(3 * (Math.log10(Math.max(seconds, 1e-9)) + 4)) + 1))] += 1;
  }
  static from(index) { return index ? 10 ** (-4 + (index - 1) / 3) : 0; }
}

export class Store {
  constructor() { this.clear({ live: true, now: 0, wall: 0, charts: [], machines: [], slots: 0, blocks: 0, model: "" }); }

  clear(hello) {
    this.moved = new Set(); // machines that went somewhere since the charts were drawn…
    this.jumped = true; // …or too many did
    this.hello = hello;
    this.now = hello.now;
    this.charts = new Map(hello.charts.map((chart) => [chart.name, chart]));
    this.machines = new Map();
    this.gone = [];
    this.dwell = new Map(hello.charts.map((chart) => [chart.name, new Map(chart.states.map((s) => [s, new Dwell()]))]));
    this.finals = new Map(hello.charts.map((chart) => [chart.name, new Set(chart.finals)]));
    this.known = new Map(); // each list of states once
    this.lanes = new Map(); // request → [{phase, from, to}]
    this.order = []; // [request, its lane], as they began
    this.epoch = (this.epoch ?? 0) + 1; // of that list, behind whose end alone something is put in one epoch
    this.touched = hello.now; // the earliest moment that something was said of since the timeline was drawn
    this.forgot = hello.now;
    this.steps = []; this.encodes = []; this.counts = []; this.faults = []; this.illegal = [];
    this.lost = 0; this.records = 0; this.board = null; this.end = null;
    for (const [machine, id, states] of hello.machines) {
      this.#start(machine, id, this.#states(states), hello.now);
      const phase = machine === "request" && states.find((s) => PHASES.includes(s));
      if (phase) this.#lane(id, phase, hello.now);
    }
    for (const strip of hello.strips ?? []) this.#strip(strip);
  }

  machine(chart, id) { return this.machines.get(`${chart} ${id}`); }

  take(news) {
    this.now = Math.max(this.now, news.now);
    this.lost += news.lost || 0;
    this.records += news.steps.length + (news.thinned || 0);
    for (const step of news.steps) this.#step(step);
    for (const strip of news.strips) this.#strip(strip);
    for (const one of news.illegal) {
      this.illegal.push(one);
      const machine = this.machine(one.machine, one.id);
      if (machine) {
        const later = machine.events.findIndex((event) => event[0] >= one.t && event[1] !== one.event);
        machine.events.splice(later < 0 ? machine.events.length : later, 0, [one.t, one.event, 0, one.states, one.why]);
        machine.illegal = true;
        this.#moves(machine);
      }
    }
    if (news.board) this.board = news.board;
    if (this.hello.live && this.now - this.forgot > FORGET) { this.forgot = this.now; this.#forget(this.now - WINDOW); }
  }

  #start(chart, id, states, t) {
    const machine = { chart, id, states, since: t, entries: new Map(), events: [], illegal: false, ended: null };
    this.machines.set(`${chart} ${id}`, machine);
    for (const state of states) this.#enter(chart, state);
    this.#moves(machine);
    return machine;
  }

  #moves(machine) {
    if (this.jumped) return;
    this.moved.add(machine);
    if (this.moved.size > GONE) { this.jumped = true; this.moved.clear(); } // nobody draws: the tab is hidden
  }

  #enter(chart, state) { const dwell = this.dwell.get(chart)?.get(state); if (dwell) dwell.entered += 1; }

  // One list for all that say the same: lists are many, and compared by being one.
  #states(given) {
    const key = given.join();
    const known = this.known.get(key);
    if (!known) this.known.set(key, given);
    return known ?? given;
  }

  #step([t, chart, id, event, bits, given]) {
    const finals = this.finals.get(chart);
    if (!finals) return;
    const states = this.#states(given);
    let machine = this.machines.get(`${chart} ${id}`);
    if (!machine) machine = this.#start(chart, id, states, t);
    else if (machine.states !== states) {
      const dwell = this.dwell.get(chart);
      for (const state of machine.states) if (!states.includes(state)) {
        dwell.get(state)?.add(t - (machine.entries.get(state) ?? machine.since));
        machine.entries.delete(state);
      }
      for (const state of states) if (!machine.states.includes(state)) { this.#enter(chart, state); machine.entries.set(state, t); }
      machine.states = states;
      machine.since = t;
      this.#moves(machine);
    }
    machine.events.push([t, event, bits, states]);
    if (machine.events.length > EVENTS) machine.events.splice(0, EVENTS / 4);
    if (machine.ended === null && states.some((state) => finals.has(state))) {
      machine.ended = t;
      this.gone.push(`${chart} ${id}`);
      if (this.gone.length > GONE) this.machines.delete(this.gone.shift());
    }
  }

  #lane(id, phase, t) {
    let lane = this.lanes.get(id);
    if (!lane) { this.lanes.set(id, (lane = [])); this.order.push([id, lane]); }
    const last = lane.at(-1);
    if (last && last.to === null) last.to = t;
    this.#touch(t);
    lane.push({ phase, from: t, to: ENDS.includes(phase) ? t : null });
  }

  #strip([kind, ...fields]) {
    if (kind === "phase") { const [t, id, phase] = fields; this.#lane(id, phase, t); }
    else if (kind === "step") { const [number, from, to, lanes, rows, device] = fields; this.steps.push({ number, from, to, lanes, rows, device }); this.#touch(from); }
    else if (kind === "encode") { const [from, to, request, digest, rows] = fields; this.encodes.push({ from, to, request, digest, rows }); this.#touch(from); }
    else if (kind === "counts") { const [t, waiting, running, parked, free, cached] = fields; this.counts.push({ t, waiting, running, parked, free, cached, left: free + cached }); this.#touch(t); }
    else if (kind === "fault") { const [t, slot, what, message] = fields; this.faults.push({ t, slot, what, message }); }
    else if (kind === "lost") { const [, records] = fields; this.lost += records; }
  }

  #touch(t) { if (t < this.touched) this.touched = t; }

  #forget(before) {
    for (const list of [this.steps, this.encodes]) { let n = 0; while (n < list.length && list[n].to < before) n += 1; if (n > 1000) list.splice(0, n); }
    let n = 0; while (n + 1 < this.counts.length && this.counts[n + 1].t < before) n += 1; if (n > 1000) this.counts.splice(0, n);
    const size = this.lanes.size;
    for (const [id, lane] of size > 400 ? this.lanes : []) { const last = lane.at(-1); if (last.to !== null && last.to < before) this.lanes.delete(id); }
    if (this.lanes.size < size) { this.order = [...this.lanes]; this.epoch += 1; }
    if (this.known.size > GONE) this.known.clear();
  }
}
