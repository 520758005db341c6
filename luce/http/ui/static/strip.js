// What the timeline shows of the server as a whole: curves of queue, slots and blocks, tracks of steps and pictures.
// A column of the picture is the same piece of time wherever it stands, so the picture is a ring of columns: as time goes
// on a few are drawn, where the oldest were.
import { color } from "./theme.js";

export const CURVES = 64, TRACK = 15, GAP = 6, HEIGHT = CURVES + 2 * (TRACK + 2);
const SEPARATE = 2; // columns of a step from which on a gap is drawn behind it
const SERIES = [
  { name: "waiting", tone: "queued", most: () => 4, dash: false },
  { name: "running", tone: "decoding", most: (hello) => hello.slots, dash: false },
  { name: "left", tone: "free", most: (hello) => hello.blocks, dash: true },
];

export class Strip {
  constructor(store) {
    this.store = store;
    this.canvas = document.createElement("canvas");
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.reset();
  }

  reset() { this.key = null; }

  // Draw so that it can be shown: `columns` from number `first` on, each `pitch` seconds, `ratio` of them in a CSS pixel.
  draw({ first, columns, pitch, ratio }) {
    const { store } = this, height = Math.round(HEIGHT * ratio), end = first + columns;
    if (this.canvas.width !== columns || this.canvas.height !== height) {
      this.canvas.width = columns; this.canvas.height = height;
      this.key = null;
    }
    Object.assign(this, { columns, pitch, ratio });
    const tops = SERIES.map(({ name, most }) => this.#top(name, Math.max(1, most(store.hello)), first, end));
    const key = `${store.epoch} ${pitch} ${tops}`;
    const changed = Math.max(0, Math.floor(Math.min(store.touched, this.now ?? 0) / pitch));
    const from = key !== this.key || first < this.first || first > this.end ? first : Math.max(first, Math.min(changed, this.end));
    Object.assign(this, { key, tops, first, end, now: store.now });
    store.touched = Infinity;
    for (let start = from; start < end;) { // as pieces that do not go around the ring's end
      const place = start % columns, stop = Math.min(end, start + columns - place);
      this.#piece(start, stop, place);
      start = stop;
    }
  }

  show(context, x, y) {
    const { canvas, columns, first } = this, place = first % columns;
    context.drawImage(canvas, place, 0, columns - place, canvas.height, x, y, columns - place, canvas.height);
    if (place) context.drawImage(canvas, 0, 0, place, canvas.height, x + columns - place, y, place, canvas.height);
  }

  // A round number that the highest value in sight stays below: a new one is a new picture.
  #top(name, least, first, end) {
    const { counts } = this.store;
    let most = least;
    for (let i = Math.max(0, this.#before(first * this.pitch)); i < counts.length && counts[i].t < end * this.pitch; i += 1) most = Math.max(most, counts[i][name]);
    if (most === least) return least;
    const power = 10 ** Math.floor(Math.log10(most));
    return [1, 2, 5, 10].find((k) => k * power >= most) * power;
  }

  // Index of the counts that hold at a time; -1 before the first.
  #before(t) { return globalThis.d3.bisector((item) => item.t).right(this.store.counts, t) - 1; }

  #piece(first, end, place) {
    const { context: c, ratio, store } = this;
    this.left = first - place; // numbers of columns are too large for the canvas, which counts in float32
    c.fillStyle = color("paper");
    c.fillRect(place, 0, end - first, this.canvas.height);
    SERIES.forEach((one, i) => this.#curve(one, this.tops[i], first, end));
    this.#track(store.steps, color("step"), Math.round(CURVES * ratio), first, end);
    this.#track(store.encodes, color("encoding"), Math.round((CURVES + TRACK + 2) * ratio), first, end);
  }

  // Of each column the values that there were in it, so that it joins the one before.
  #curve({ name, tone, dash }, top, first, end) {
    const { context: c, pitch, ratio, store, left } = this, { counts } = store;
    const thick = Math.max(1, Math.round(ratio)), base = Math.round((CURVES - GAP) * ratio), high = (CURVES - 2 * GAP) * ratio;
    const last = Math.min(end, Math.floor(store.now / pitch) + 1); // nothing is known behind it
    const y = (value) => base - Math.round((Math.min(value, top) / top) * high);
    c.fillStyle = color(tone);
    let next = this.#before(first * pitch) + 1, value = counts[next - 1]?.[name];
    for (let column = first; column < last;) {
      let low = value ?? Infinity, most = value ?? -Infinity;
      for (; next < counts.length && counts[next].t < (column + 1) * pitch; next += 1) {
        value = counts[next][name];
        low = Math.min(low, value); most = Math.max(most, value);
      }
      if (value === undefined) { // nothing yet
        column = next < counts.length ? Math.min(last, Math.floor(counts[next].t / pitch)) : last;
        continue;
      }
      let wide = 1; // columns until the next change
      if (!dash) wide = Math.max(1, (next < counts.length ? Math.min(last, Math.floor(counts[next].t / pitch)) : last) - column);
      if (low < most) wide = 1;
      if (!dash || low < most || column % Math.round(7 * ratio) < 4 * ratio) c.fillRect(column - left, y(most), wide, y(low) - y(most) + thick);
      column += wide;
    }
  }

  #track(items, fill, y, first, end) {
    const { context: c, pitch, ratio } = this, high = Math.round((TRACK - 4) * ratio), top = y + Math.round(2 * ratio);
    c.fillStyle = fill;
    let begun = first, right = first; // of what is still to be filled
    const fillUp = () => { if (right > begun) c.fillRect(begun - this.left, top, right - begun, high); };
    for (let i = globalThis.d3.bisector((item) => item.to).left(items, first * pitch); i < items.length && items[i].from < end * pitch; i += 1) {
      const begin = Math.floor(items[i].from / pitch), stop = Math.max(begin + 1, Math.ceil(items[i].to / pitch));
      const gap = stop - begin >= SEPARATE ? 1 : 0;
      const from = Math.max(first, begin), to = Math.min(end, stop - gap);
      if (from > right) { fillUp(); begun = from; }
      right = Math.max(right, to);
    }
    fillUp();
  }
}
