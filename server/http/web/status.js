"use strict";
// Reads /api/status once a second, keeps three minutes of samples, and shows them.

const WINDOW = 60, RATE_WINDOW = 10;  // seconds of percentiles and of rates
const HISTORY = 180;                  // seconds of the plots
const STALE = 5;                      // seconds without an answer after which the numbers are old
const samples = [];                   // {time, metrics}, oldest first; of one process of the server
const points = [];                    // what is drawn, oldest first
let key = "";                         // the API key
let ready = false;
let model = null;   // as GetModel describes it
let answered = null;  // {clock, date} of the last answer
const $ = (id) => document.getElementById(id);
const seconds = () => performance.now() / 1000;

const P = "polysketch_";
const COUNTERS = ["generation_tokens_total", "prompt_tokens_total"].map((name) => P + name);
const FIRST = P + "time_to_first_token_seconds", BETWEEN = P + "inter_token_latency_seconds";
const HISTOGRAMS = [FIRST, BETWEEN, P + "e2e_request_latency_seconds"];

// Fetches a path with the key, and asks for one where it is needed.
async function ask(path, options = {}) {
  const authorization = key ? {Authorization: "Bearer " + key} : {};
  const answer = await fetch(path, {...options, headers: {...options.headers, ...authorization}});
  if (answer.status === 401) $("key_form").hidden = false;
  return answer;
}

// A number, or null: JSON has neither NaN nor infinity.
const finite = (x) => (Number.isFinite(x) ? x : null);
// The sum of the series of a gauge or a counter; null without any.
function value(metrics, name) {
  const series = metrics[name] || [];
  return series.length ? finite(series.reduce((sum, one) => sum + (one.value ?? NaN), 0)) : null;
}

// The oldest sample of the last `length` seconds.
const start = (now, length) => samples.find(({time}) => time >= now.time - length - 0.5) || now;

function rate(now, name) {
  const before = start(now, RATE_WINDOW), a = value(before.metrics, name), b = value(now.metrics, name);
  return now.time > before.time && a !== null && b !== null ? Math.max(0, b - a) / (now.time - before.time) : null;
}

// A percentile of the observations of a histogram in the last minute, interpolated in its bucket; null without
// observations.
function percentile(now, name, share) {
  const b = now.metrics[name], a = start(now, WINDOW).metrics[name];
  if (!a || !b || !a.length || !b.length) return null;
  const counts = b[0].buckets.map(([bound, count], i) => [bound, count - a[0].buckets[i][1]]);
  const total = counts[counts.length - 1][1];
  if (!(total > 0)) return null;
  const rank = share * total;
  let lower = 0, below = 0;
  for (const [bound, count] of counts) {
    if (count >= rank) {
      if (bound === null) return lower;  // above the last bound
      return count === below ? bound : lower + (bound - lower) * (rank - below) / (count - below);
    }
    lower = bound;
    below = count;
  }
  return lower;
}

const number = (x, digits = 0) =>
  x === null || x === undefined ? "–" : x.toLocaleString("en", {maximumFractionDigits: digits});
function milliseconds(x) {
  if (x === null) return "–";
  return x < 1 ? number(x * 1000, x < 0.01 ? 2 : x < 0.1 ? 1 : 0) + " ms" : number(x, x < 10 ? 2 : 1) + " s";
}
// A size in the unit in which it has at most four digits before the point.
function bytes(x) {
  if (x === null) return "–";
  const unit = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]].find(([, size]) => x >= size);
  return unit ? number(x / unit[1], x < 10 * unit[1] ? 1 : 0) + " " + unit[0] : number(x) + " bytes";
}
function duration(x) {
  if (x === null) return "–";
  if (x < 120) return number(x) + " s";
  if (x < 7200) return number(x / 60) + " min";
  return x < 172800 ? number(x / 3600) + " h" : number(x / 86400) + " days";
}

function element(tag, ...children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
// How full: "" below four fifths, then "warn", from 95% on "full".
const fullness = (used, limit) => (!(limit > 0) || used < 0.8 * limit ? "" : used < 0.95 * limit ? "warn" : "full");

// Shows [name, text, class] as tiles, which are made once.
function showTiles(box, tiles) {
  if (!box.firstChild) box.append(...tiles.map(([name]) => element("div", element("span", name), element("b"))));
  tiles.forEach(([, text, level = ""], i) => {
    box.children[i].className = "tile " + level;
    setText(box.children[i].lastChild, text);
  });
}

// Shows memory pools as bars: [name, used, limit, and what of it gives way to anything else].
function showBars(box, pools) {
  if (!box.firstChild) {
    box.append(...pools.map(([name]) => {
      const bar = element("div", element("i"), element("i"));
      bar.setAttribute("role", "meter");
      bar.setAttribute("aria-label", name);
      return element("div", element("span", name), element("b"), bar);
    }));
  }
  pools.forEach(([name, used, limit, yielding = 0], i) => {
    const [, text, bar] = box.children[i].children, level = fullness(used, limit), all = used === null ? null : used + yielding;
    const percent = (x) => (limit > 0 ? Math.min(100, 100 * x / limit) : 0) + "%";
    box.children[i].className = "bar " + level;
    box.children[i].hidden = !(limit > 0);
    setText(text, bytes(all) + " of " + bytes(limit) + (level && (level === "full" ? ", full" : ", nearly full")));
    bar.children[0].style.width = percent(used);
    bar.children[1].style.width = percent(yielding);
    bar.setAttribute("aria-valuenow", parseFloat(percent(all)).toFixed());
    bar.setAttribute("aria-valuetext", text.textContent);
  });
}

function show(now, hasStore) {
  const m = now.metrics, read = (name) => value(m, P + name);
  const of = (used, limit) => number(read(used)) + (read(limit) === null ? "" : " of " + number(read(limit)));
  const waiting = read("num_requests_waiting");
  const latency = (name, share) => milliseconds(percentile(now, name, share));
  showTiles($("now"), [
    ["running", of("num_requests_running", "max_sequences")],
    ["waiting", of("num_requests_waiting", "max_queue"), fullness(waiting, read("max_queue"))],
    ["tokens/s", number(rate(now, COUNTERS[0]))],
    ["first token, p50", latency(FIRST, 0.5)],
    ["first token, p99", latency(FIRST, 0.99)],
    ["between tokens, p50", latency(BETWEEN, 0.5)],
    ["between tokens, p99", latency(BETWEEN, 0.99)],
  ]);
  const pools = ["slot", "preempted", "session", "request", "response"].map((pool) =>
    [pool + " memory", read(pool + "_memory_bytes"), read(pool + "_memory_limit_bytes")]);
  const cache = read("prefix_cache_bytes");
  pools[2] = ["sessions and prefix cache", ...pools[2].slice(1), cache || 0];  // sessions take the place of the cache
  showBars($("memory"), [...pools, ["state store", read("state_store_bytes"), read("state_store_limit_bytes")]]);

  const [hits, queries] = [read("prefix_cache_hits_total"), read("prefix_cache_queries_total")];
  const share = queries > 0 ? ", " + number(100 * hits / queries) + "% hits" : "";
  const states = pools.slice(0, 3).reduce((sum, [, used]) => sum + used, cache);
  const began = value(m, "process_start_time_seconds");
  showTiles($("tiles"), [
    ["model", model ? model.name : "loading"],
    ["attention", model ? model.attention : "–"],
    ["parameters", model ? number(Number(model.parameters) / 1e6, 1) + " M, " + model.weight_format : "–"],
    ["device", model ? model.device + ", " + model.threads + " threads" : "–"],
    ["version", model ? model.version + ", commit " + model.commit : "–"],
    ["idle", number(read("num_requests_idle"))],
    ["preempted", number(read("num_requests_preempted"))],
    ["end to end, p50", latency(HISTOGRAMS[2], 0.5)],
    ["memory of states", bytes(states)],
    ["sessions", number(read("sessions")) + ", " + bytes(read("session_memory_bytes"))],
    ["prefix cache", number(read("prefix_cache_entries")) + " states, " + bytes(cache) + share],
    ["state store", hasStore ? bytes(read("state_store_bytes")) : "none"],
    ["memory of the process", bytes(value(m, "process_resident_memory_bytes"))],
    ["uptime", duration(began === null ? null : Math.max(0, Date.now() / 1000 - began))],
  ]);
}

const CHARTS = {
  throughput: [["generated", "--a"], ["prompt", "--b"]],
  requests: [["running", "--a"], ["waiting", "--b"], ["idle", "--c"]],
  first: [["p50", "--a"], ["p90", "--b"], ["p99", "--c"]],
  between: [["p50", "--a"], ["p90", "--b"], ["p99", "--c"]],
};

function pointOf(now) {
  const percentiles = (name) => [0.5, 0.9, 0.99].map((share) => {
    const x = percentile(now, name, share);
    return x === null ? null : x * 1000;
  });
  return {
    time: now.time,
    throughput: COUNTERS.map((name) => rate(now, name)),
    requests: ["running", "waiting", "idle"].map((name) => value(now.metrics, P + "num_requests_" + name)),
    first: percentiles(FIRST),
    between: percentiles(BETWEEN),
  };
}

// The smallest of 1, 2 and 5 times a power of ten that is at least x.
function roundUp(x) {
  const power = 10 ** Math.floor(Math.log10(x));
  return [1, 2, 5, 10].map((f) => f * power).find((y) => y >= x * 0.999);
}

function draw(id) {
  const canvas = $(id), box = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
  if (box.width === 0) return;  // folded
  canvas.width = box.width * ratio;
  canvas.height = box.height * ratio;
  const g = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  g.scale(ratio, ratio);
  g.font = "11px system-ui, sans-serif";
  const left = 46, right = box.width - 6, top = 18, bottom = box.height - 18;
  const all = points.flatMap((point) => point[id]).filter((v) => v !== null);
  const maxValue = roundUp(Math.max(1e-3, ...all));
  const end = points.length ? points[points.length - 1].time : 0;
  // At least half a minute, at most HISTORY.
  const span = Math.min(HISTORY, Math.max(30, points.length ? end - points[0].time : 0));
  const x = (time) => right - (end - time) / span * (right - left);
  const y = (v) => bottom - v / maxValue * (bottom - top);

  g.strokeStyle = color("--line");
  g.fillStyle = color("--faint");
  g.textAlign = "right";
  for (const v of [0, maxValue / 2, maxValue]) {
    g.beginPath();
    g.moveTo(left, y(v));
    g.lineTo(right, y(v));
    g.stroke();
    g.fillText(number(v, maxValue < 10 ? 2 : 0), left - 5, y(v) + 4);
  }
  g.textAlign = "center";
  const step = span > 90 ? 60 : 10;
  for (let ago = 0; ago <= span - step / 2; ago += step) {
    g.fillText(ago === 0 ? "now" : "-" + ago + " s", x(end - ago) - 14, box.height - 4);
  }

  let legend = left + 4;
  CHARTS[id].forEach(([name, variable], i) => {
    g.strokeStyle = g.fillStyle = color(variable);
    g.lineWidth = 1.5;
    g.beginPath();
    let last = null;  // a line ends where there is no value, and where the page did not hear from the server
    for (const {time, [id]: {[i]: v}} of points) {
      if (last !== null && v !== null && time - last < STALE) g.lineTo(x(time), y(v));
      else if (v !== null) g.moveTo(x(time), y(v));
      last = v === null ? null : time;
    }
    g.stroke();
    g.textAlign = "left";
    const latest = points.length ? points[points.length - 1][id][i] : null;
    const label = name + " " + number(latest, latest < 10 ? 2 : latest < 100 ? 1 : 0);
    g.fillText(label, legend, 11);
    legend += g.measureText(label).width + 14;
  });
  canvas.dataset.points = all.length;
}
const drawAll = () => Object.keys(CHARTS).forEach(draw);

function showState(text, level) {
  setText($("state"), text);
  $("state").className = "state " + level;
}

// Keeps what the page computes with of a sample.
function keep(now) {
  const names = [...COUNTERS, ...HISTOGRAMS], last = samples[samples.length - 1];
  // Counters of a server that has started anew begin at 0.
  const counts = (sample) => COUNTERS.map((name) => value(sample.metrics, name));
  if (last && counts(now).some((count, i) => count < counts(last)[i])) samples.length = 0;
  samples.push({time: now.time, metrics: Object.fromEntries(names.map((name) => [name, now.metrics[name]]))});
  while (samples[0].time < now.time - WINDOW - 5) samples.shift();
  points.push(pointOf(now));
  while (points[0].time < now.time - HISTORY) points.shift();
}

async function poll() {
  try {
    const answer = await ask("api/status", {signal: AbortSignal.timeout(30000)});
    if (answer.status === 401) return showState("needs an API key", "bad");
    if (!answer.ok) throw new Error("HTTP " + answer.status);
    const status = await answer.json(), now = {time: seconds(), metrics: status.metrics};
    answered = {clock: now.time, date: new Date()};
    model = status.model || null;
    $("key_form").hidden = true;
    setText($("model"), model ? model.name : "");
    $("model").title = model ? model.name : "";
    keep(now);
    show(now, status.state_store);
    showState(status.ready ? "ready" : model ? "not ready" : "loads its model", status.ready ? "good" : "bad");
    if (status.ready && !ready) document.dispatchEvent(new Event("ready"));
    ready = status.ready;
  } catch (error) {
    ready = false;
    if (!(error instanceof TypeError) && error.name !== "TimeoutError") console.error(error);
    showState("no answer", "bad");
  }
  drawAll();
}

// Numbers without a recent answer look old.
function showAge() {
  const age = answered === null ? 0 : seconds() - answered.clock, stale = age > STALE;
  document.body.classList.toggle("stale", stale);
  setText($("since"), stale ? "numbers of " + answered.date.toLocaleTimeString() + ", " + duration(age) + " ago" : "");
}

async function run() {
  for (;;) {
    await poll();
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

$("key_form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key").value.trim();
  $("key").value = "";
  poll();
});
$("plots").addEventListener("toggle", drawAll);
window.addEventListener("resize", drawAll);
setInterval(showAge, 500);
run();
