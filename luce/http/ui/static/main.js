// Puts the page together: one store, four views, drawn when something is new.
import { Board, dot } from "./board.js";
import { Charts } from "./charts.js";
import { Chat } from "./chat.js";
import { Detail, element } from "./detail.js";
import { follow, openTrace, setKey } from "./feed.js";
import { PHASES, Store } from "./store.js";
import { isDark, showTheme } from "./theme.js";
import { Timeline } from "./timeline.js";

const PERIOD = 25; // milliseconds between two frames at least, however fast a trace is read or somebody drags
const CHARTS = 70; // the same of charts and board: tokens that move all over the page are dear to paint
const $ = (id) => document.getElementById(id);
const store = new Store();
const detail = new Detail(store, { section: $("detail"), title: $("detail-title"), body: $("detail-body"), close: $("detail-close") });
const choose = (machine) => detail.choose(machine && { machine });
const chooseId = (id) => choose([...store.machines.values()].findLast((one) => one.chart === "request" && String(one.id) === String(id)));
const charts = new Charts(store, { tabs: $("chart-tabs"), panel: $("chart"), buttons: $("chart-buttons"), choose, chooseState: (chart, state) => detail.choose({ chart, state }), ask });
const timeline = new Timeline(store, { canvas: $("lanes"), tip: $("tip"), span: $("span"), choose: chooseId, ask });
const board = new Board(store, {
  rows: $("rows"), slots: $("slots"), ask,
  choose: (one) => chooseId(one.choice ? `${one.id}/${one.choice}` : one.id) ?? chooseId(one.id),
});
new Chat({ turns: $("turns"), form: $("chat-form"), question: $("question"), picture: $("picture"), pictures: $("pictures"), send: $("send"), stop: $("stop") });

let connection = new AbortController();
let alarms = 0;
let paused = null;

function status(state, error) {
  const text = { connecting: "connecting", live: "live", lost: `no connection: ${error?.message ?? ""}`, trace: "saved trace" }[state];
  if ($("status").textContent !== text) $("status").textContent = text;
  if ($("status").dataset.state !== state) $("status").dataset.state = state;
  if (error?.status === 401) { $("key-form").hidden = false; $("key").focus(); }
}

function message(one) {
  if (one.kind === "hello") {
    store.clear(one);
    $("model").textContent = one.model;
    detail.choose(null);
    alarms = -1;
    if (one.live) timeline.follow();
    charts.reset().then(ask);
  } else if (one.kind === "news") store.take(one);
  else if (one.kind === "end") {
    store.end = one;
    timeline.showAll();
    const warnings = one.warnings ?? [];
    status("trace");
    $("status").textContent = `saved trace, ${one.records} records${one.more ? " of more" : ""}${warnings.length ? `; ${warnings.join("; ")}` : ""}`;
  }
  ask();
}

function live() {
  connection.abort();
  connection = new AbortController();
  $("live").hidden = true;
  follow({ signal: connection.signal, message, state: status });
}

async function open(file) {
  connection.abort();
  connection = new AbortController();
  $("live").hidden = false;
  status("trace");
  try { await openTrace(file, { signal: connection.signal, message }); } catch (error) {
    status("lost", error);
    $("status").textContent = `the trace cannot be shown: ${error.message}`;
  }
}

function alarm() {
  if (store.illegal.length === alarms) return;
  alarms = store.illegal.length;
  $("alarms").hidden = !alarms;
  $("alarms").replaceChildren(...store.illegal.slice(-3).map((one) => {
    const button = element("button", { type: "button", textContent: `illegal event ${one.event} of ${one.machine} ${one.id}: ${one.why}` });
    button.addEventListener("click", () => {
      if (store.charts.has(one.machine)) charts.show(one.machine);
      choose(store.machine(one.machine, one.id));
      timeline.right = one.t + timeline.seconds / 2;
      ask();
    });
    return button;
  }));
}

// A frame is drawn for what has come or was done, and none while nothing does: live news come some twenty times a second.
let asked = false;
let drawn = 0;
let charted = 0;
let late;
function ask() {
  if (asked) return;
  asked = true;
  const wait = drawn + PERIOD - performance.now();
  if (wait > 0) setTimeout(() => requestAnimationFrame(draw), wait);
  else requestAnimationFrame(draw);
}
function draw() {
  asked = false;
  drawn = performance.now();
  if (paused !== timeline.paused) {
    paused = timeline.paused;
    $("pause").setAttribute("aria-pressed", paused);
    $("pause").textContent = paused ? "Go on" : "Pause";
  }
  alarm();
  clearTimeout(late);
  if (drawn - charted >= CHARTS || charts.scale === null || board.scrolled) { // or at once what somebody does
    charted = drawn;
    charts.draw(); board.draw();
  } else late = setTimeout(ask, CHARTS);
  detail.draw(); timeline.draw();
}

function hold(held) {
  if (held) timeline.pause(); else timeline.follow();
}

$("pause").addEventListener("click", () => hold(!timeline.paused));
$("live").addEventListener("click", live);
$("trace").addEventListener("change", () => { if ($("trace").files.length) open($("trace").files[0]); $("trace").value = ""; });
$("zoom-in").addEventListener("click", () => timeline.scale(0.5));
$("zoom-out").addEventListener("click", () => timeline.scale(2));
$("key-form").addEventListener("submit", (event) => { event.preventDefault(); setKey($("key").value); $("key").value = ""; $("key-form").hidden = true; live(); });
const themed = localStorage.getItem("luce-theme");
if (themed) showTheme(themed);
$("theme").addEventListener("click", () => {
  showTheme(isDark() ? "light" : "dark");
  localStorage.setItem("luce-theme", document.documentElement.dataset.theme);
});
document.addEventListener("keydown", (event) => {
  if (event.key === " " && !/^(INPUT|TEXTAREA|BUTTON|A)$/.test(event.target.tagName)) { event.preventDefault(); hold(!timeline.paused); }
  if (event.key === "Escape") detail.choose(null);
});
document.body.dataset.view = "charts";
$("views").append(...["charts", "board", "timeline", "chat"].map((name) => {
  const button = element("button", { type: "button", textContent: name });
  button.setAttribute("aria-pressed", name === "charts");
  button.addEventListener("click", () => {
    document.body.dataset.view = name;
    for (const other of $("views").children) other.setAttribute("aria-pressed", other === button);
  });
  return button;
}));
$("legend").append(...PHASES.filter((phase) => phase !== "ending").map((phase) => { const mark = element("span", { textContent: phase }); mark.prepend(dot(phase)); return mark; }));
window.luce = { store, timeline, charts }; // for tests and for who looks with the browser's tools
live();
