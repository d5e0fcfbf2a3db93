"use strict";
// Polls /api/status once a second, keeps three minutes of samples, and draws them.

const WINDOW = 10;    // seconds of rates and percentiles
const HISTORY = 180;  // seconds of the plots
const samples = [];   // {time, metrics}, oldest first
const points = [];    // {time, values}, what is drawn
const $ = (id) => document.getElementById(id);

const P = "polysketch_";
// A gauge or counter without labels, or null.
function value(metrics, name) {
  const series = metrics[name];
  return series && series.length === 1 ? series[0].value : null;
}

// The oldest sample of the window that ends now.
function windowStart(now) {
  return samples.find((sample) => sample.time >= now.time - WINDOW - 0.5) || now;
}

function rate(now, before, name) {
  const seconds = now.time - before.time;
  const a = value(before.metrics, name), b = value(now.metrics, name);
  return seconds > 0 && a !== null && b !== null ? Math.max(0, b - a) / seconds : null;
}

// A percentile of the observations between two samples of a histogram, interpolated in its bucket; null without
// observations.
function percentile(now, before, name, share) {
  const b = now.metrics[name], a = before.metrics[name];
  if (!a || !b) return null;
  const counts = b[0].buckets.map(([bound, count], i) => [bound, count - a[0].buckets[i][1]]);
  const total = counts[counts.length - 1][1];
  if (total <= 0) return null;
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
const milliseconds = (x) => (x === null ? "–" : number(x * 1000, x < 0.01 ? 2 : 1) + " ms");
// A size in the unit in which it has at most four digits before the point.
function bytes(x) {
  if (x === null) return "–";
  const unit = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]].find(([, size]) => x >= size);
  return unit ? number(x / unit[1], x < 10 * unit[1] ? 1 : 0) + " " + unit[0] : number(x) + " bytes";
}
function duration(seconds) {
  if (seconds < 120) return number(seconds) + " s";
  if (seconds < 7200) return number(seconds / 60) + " min";
  return seconds < 172800 ? number(seconds / 3600) + " h" : number(seconds / 86400) + " days";
}

// The tiles of all memory that holds states: of running and of preempted sequences, of sessions and of the prefix cache,
// and of the store outside the process.
function memoryTiles(read, hasStore) {
  const of = (used, limit) => bytes(used) + (limit ? " of " + bytes(limit) : "");
  const [slots, preempted] = [read("slot_memory_bytes"), read("preempted_memory_bytes")];
  const [sessions, cache] = [read("session_memory_bytes"), read("prefix_cache_bytes")];
  const [hits, queries] = [read("prefix_cache_hits_total"), read("prefix_cache_queries_total")];
  const share = queries > 0 ? ", " + number(100 * hits / queries) + "% hits" : "";
  return [
    ["memory of states", slots === null ? "–" : bytes(slots + preempted + sessions + cache)],
    ["slot memory", of(slots, read("slot_memory_limit_bytes"))],
    ["preempted memory", of(preempted, read("preempted_memory_limit_bytes"))],
    ["session memory", of(slots === null ? null : sessions + cache, read("session_memory_limit_bytes"))],
    ["sessions", number(read("sessions")) + ", " + bytes(sessions)],
    ["prefix cache", number(read("prefix_cache_entries")) + " states, " + bytes(cache) + share],
    ["state store", hasStore ? of(read("state_store_bytes"), read("state_store_limit_bytes")) : "none"],
  ];
}

function showTiles(now, before, status) {
  const m = now.metrics, model = status.model;
  const read = (name) => value(m, P + name);
  const limit = (name) => (read(name) === null ? "" : " of " + number(read(name)));
  const tiles = [
    ["model", model ? model.name : "loading"],
    ["attention", model ? model.attention : "–"],
    ["parameters", model ? number(Number(model.parameters) / 1e6, 1) + " M, " + model.weight_format : "–"],
    ["device", model ? model.device + ", " + model.threads + " threads" : "–"],
    ["running", number(read("num_requests_running")) + limit("max_sequences")],
    ["waiting", number(read("num_requests_waiting")) + limit("max_queue")],
    ["idle", number(read("num_requests_idle"))],
    ["tokens per second", number(rate(now, before, P + "generation_tokens_total"))],
    ["first token, p50", milliseconds(percentile(now, before, P + "time_to_first_token_seconds", 0.5))],
    ["first token, p99", milliseconds(percentile(now, before, P + "time_to_first_token_seconds", 0.99))],
    ["between tokens, p50", milliseconds(percentile(now, before, P + "inter_token_latency_seconds", 0.5))],
    ["between tokens, p99", milliseconds(percentile(now, before, P + "inter_token_latency_seconds", 0.99))],
    ["end to end, p50", milliseconds(percentile(now, before, P + "e2e_request_latency_seconds", 0.5))],
    ...memoryTiles(read, status.state_store),
    ["memory of the process", bytes(value(m, "process_resident_memory_bytes"))],
    ["uptime", duration(Date.now() / 1000 - value(m, "process_start_time_seconds"))],
  ];
  $("tiles").replaceChildren(...tiles.map(([name, text]) => {
    const tile = document.createElement("div"), label = document.createElement("span"), b = document.createElement("b");
    tile.className = "tile";
    label.textContent = name;
    b.textContent = text;
    tile.append(label, b);
    return tile;
  }));
}

const CHARTS = {
  throughput: [["generated", "--a"], ["prompt", "--b"]],
  requests: [["running", "--a"], ["waiting", "--b"], ["idle", "--c"]],
  first: [["p50", "--a"], ["p90", "--b"], ["p99", "--c"]],
  between: [["p50", "--a"], ["p90", "--b"], ["p99", "--c"]],
};

function pointOf(now, before) {
  const m = now.metrics;
  const percentiles = (name) => [0.5, 0.9, 0.99].map((share) => {
    const seconds = percentile(now, before, P + name, share);
    return seconds === null ? null : seconds * 1000;
  });
  return {
    time: now.time,
    throughput: [rate(now, before, P + "generation_tokens_total"), rate(now, before, P + "prompt_tokens_total")],
    requests: ["running", "waiting", "idle"].map((name) => value(m, P + "num_requests_" + name)),
    first: percentiles("time_to_first_token_seconds"),
    between: percentiles("inter_token_latency_seconds"),
  };
}

// The smallest of 1, 2 and 5 times a power of ten that is at least x.
function roundUp(x) {
  const power = 10 ** Math.floor(Math.log10(x));
  return [1, 2, 5, 10].map((f) => f * power).find((y) => y >= x * 0.999);
}

function draw(id) {
  const canvas = $(id), box = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
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

  CHARTS[id].forEach(([name, variable], i) => {
    g.strokeStyle = g.fillStyle = color(variable);
    g.lineWidth = 1.5;
    g.beginPath();
    let pen = false;
    for (const point of points) {
      const v = point[id][i];
      if (v === null) { pen = false; continue; }
      if (pen) g.lineTo(x(point.time), y(v)); else g.moveTo(x(point.time), y(v));
      pen = true;
    }
    g.stroke();
    g.textAlign = "left";
    const last = points.length ? points[points.length - 1][id][i] : null;
    g.fillText(name + " " + number(last, 2), left + 4 + i * Math.min(130, (right - left) / 3), 11);
  });
  canvas.dataset.points = all.length;
}

async function poll() {
  try {
    const answer = await fetch("api/status");
    const status = await answer.json();
    const now = {time: performance.now() / 1000, metrics: status.metrics};
    samples.push(now);
    while (samples[0].time < now.time - WINDOW - 5) samples.shift();
    const before = windowStart(now);
    points.push(pointOf(now, before));
    while (points[0].time < now.time - HISTORY) points.shift();
    $("state").textContent = status.ready ? "ready" : "not ready";
    $("state").className = "state " + (status.ready ? "good" : "bad");
    if (status.model) $("build").textContent = "version " + status.model.version + ", commit " + status.model.commit;
    showTiles(now, before, status);
  } catch (error) {
    $("state").textContent = "no answer";
    $("state").className = "state bad";
  }
  Object.keys(CHARTS).forEach(draw);
}

window.addEventListener("resize", () => Object.keys(CHARTS).forEach(draw));
poll();
setInterval(poll, 1000);
