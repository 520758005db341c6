// Puts the page together: one store, four views, drawn once a frame when something is new.
import { Board, dot } from "./board.js";
import { Charts } from "./charts.js";
import { Chat } from "./chat.js";
import { Detail, element } from "./detail.js";
import { follow, openTrace, setKey } from "./feed.js";
import { PHASES, Store } from "./store.js";
import { Timeline } from "./timeline.js";

const $ = (id) => document.getElementById(id);
const store = new Store();
const detail = new Detail(store, { section: $("detail"), title: $("detail-title"), body: $("detail-body"), close: $("detail-close") });
const choose = (machine) => detail.choose(machine && { machine });
const chooseId = (id) => choose([...store.machines.values()].findLast((one) => one.chart === "request" && String(one.id) === String(id)));
const charts = new Charts(store, { tabs: $("chart-tabs"), panel: $("chart"), choose, chooseState: (chart, state) => detail.choose({ chart, state }) });
const timeline = new Timeline(store, { canvas: $("lanes"), tip: $("tip"), span: $("span"), choose: chooseId });
const board = new Board(store, {
  rows: $("rows"), slots: $("slots"),
  choose: (one) => chooseId(one.choice ? `${one.id}/${one.choice}` : one.id) ?? chooseId(one.id),
});
new Chat({ turns: $("turns"), form: $("chat-form"), question: $("question"), picture: $("picture"), pictures: $("pictures"), send: $("send"), stop: $("stop") });

let connection = new AbortController();
let ready = Promise.resolve();
let alarms = 0;

function status(state, error) {
  const text = { connecting: "connecting", live: "live", lost: `no connection: ${error?.message ?? ""}`, trace: "saved trace" }[state];
  if ($("status").textContent !== text) $("status").textContent = text;
  $("status").dataset.state = state;
  if (error?.status === 401) { $("key-form").hidden = false; $("key").focus(); }
}

function message(one) {
  if (one.kind === "hello") {
    store.clear(one);
    $("model").textContent = one.model;
    detail.choose(null);
    alarms = -1;
    if (one.live) timeline.follow();
    ready = charts.reset();
  } else if (one.kind === "news") store.take(one);
  else if (one.kind === "end") {
    store.end = one;
    timeline.showAll();
    const warnings = one.warnings ?? [];
    status("trace");
    $("status").textContent = `saved trace, ${one.records} records${one.more ? " of more" : ""}${warnings.length ? `; ${warnings.join("; ")}` : ""}`;
  }
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
    $("status").textContent = error.message;
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
    });
    return button;
  }));
}

const PERIOD = 30; // milliseconds between two frames at least: the news come twenty times a second
let paused = null;
let drawn = 0;
function hold(held) {
  if (held) timeline.pause(); else timeline.follow();
}
function draw(at) {
  requestAnimationFrame(draw);
  if (at - drawn < PERIOD) return;
  drawn = at;
  if (paused !== timeline.paused) {
    paused = timeline.paused;
    $("pause").setAttribute("aria-pressed", paused);
    $("pause").textContent = paused ? "Go on" : "Pause";
  }
  alarm();
  charts.draw(); board.draw(); detail.draw(); timeline.draw();
}

$("pause").addEventListener("click", () => hold(!timeline.paused));
$("live").addEventListener("click", live);
$("trace").addEventListener("change", () => { if ($("trace").files.length) open($("trace").files[0]); $("trace").value = ""; });
$("zoom-in").addEventListener("click", () => timeline.scale(0.5));
$("zoom-out").addEventListener("click", () => timeline.scale(2));
$("key-form").addEventListener("submit", (event) => { event.preventDefault(); setKey($("key").value); $("key").value = ""; $("key-form").hidden = true; live(); });
const themed = localStorage.getItem("luce-theme");
if (themed) document.documentElement.dataset.theme = themed;
$("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
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
requestAnimationFrame(draw);
