"use strict";
// The playground: streams completions, alone or in a session, and creates, forks, snapshots, restores and deletes
// sessions. status.js defines $, number, milliseconds and bytes.

let running = null;  // the AbortController of a completion
// Session id or snapshot key -> what this page has seen of it, in order: [{text, prompt}]. "": outside sessions.
const texts = new Map([["", []]]);

const headers = {"Content-Type": "application/json"};
const short = (id) => id.slice(0, 8);
const errorOf = ({code, message}) => new Error(code + ": " + message);

// --- what the page shows ---

// Enables what can be used now.
function showButtons() {
  const busy = running !== null;
  for (const id of ["fork", "snapshot", "delete"]) $(id).disabled = busy || $("session").value === "";
  for (const id of ["create", "session", "snapshots", "run"]) $(id).disabled = busy;
  $("restore").disabled = busy || $("snapshots").value === "";
  $("stop").disabled = !busy;
}

// Shows the text of the selected session.
function showText() {
  $("output").replaceChildren(...(texts.get($("session").value) || []).map(({text, prompt}) => {
    const span = document.createElement("span");
    span.className = prompt ? "prompt" : "";
    span.textContent = text;
    return span;
  }));
}

// Fills a select with [value, text] and selects `value` if it is among them.
function fill(select, entries, value) {
  select.replaceChildren(...entries.map(([entry, text]) => new Option(text, entry)));
  select.value = entries.some(([entry]) => entry === value) ? value : "";
}

// Shows the sessions and snapshots of the server; selects the session `session` and the snapshot `snapshot`.
async function showSessions(session, snapshot) {
  const {sessions = [], snapshots = []} = await sessionCall("list", {});
  fill($("session"), [["", "none"], ...sessions.map((one) =>
    [one.session, short(one.session) + ", " + number(Number(one.tokens || 0)) + " tokens"])], session);
  fill($("snapshots"), [["", "none"], ...snapshots.map((one) =>
    [one.snapshot, short(one.snapshot) + ", " + bytes(Number(one.bytes || 0))])], snapshot);
  showButtons();
  showText();
}

// --- sessions ---

// Calls an RPC of sessions. Throws the error that the server reports.
async function sessionCall(name, request) {
  const answer = await fetch("api/sessions/" + name, {method: "POST", headers, body: JSON.stringify(request)});
  const response = await answer.json();
  if (response.error) throw errorOf(response.error);
  return response;
}

const copyText = (from, to) => texts.set(to, [...(texts.get(from) || [])]);

// Each takes the selected session and snapshot, and returns what it did.
const OPERATIONS = {
  create: async (_, snapshot) => {
    const {session} = await sessionCall("create", {});
    await showSessions(session, snapshot);
    return "session " + short(session) + " is empty";
  },
  fork: async (id, snapshot) => {
    const {session} = (await sessionCall("fork", {session: id})).sessions[0];
    copyText(id, session);
    await showSessions(session, snapshot);
    return "session " + short(session) + " is a fork of " + short(id);
  },
  snapshot: async (id) => {
    const {snapshot} = await sessionCall("snapshot", {session: id});
    copyText(id, snapshot);
    await showSessions(id, snapshot);
    return "snapshot " + short(snapshot) + " holds session " + short(id);
  },
  delete: async (id, snapshot) => {
    await sessionCall("delete", {session: id});
    texts.delete(id);
    await showSessions("", snapshot);
    return "session " + short(id) + " is deleted";
  },
  restore: async (_, snapshot) => {
    const {session} = await sessionCall("restore", {snapshot});
    copyText(snapshot, session);
    await showSessions(session, snapshot);
    return "session " + short(session) + " continues snapshot " + short(snapshot);
  },
};

async function operate(name) {
  try {
    $("finish").textContent = await OPERATIONS[name]($("session").value, $("snapshots").value);
  } catch (error) {
    $("finish").textContent = error.message;
  }
}

// --- completions ---

function requestOf() {
  const request = {
    max_tokens: Number($("tokens").value),
    sampling: {temperature: Number($("temperature").value), top_p: Number($("top_p").value)},
  };
  if ($("seed").value !== "") request.sampling.seed = $("seed").value;
  if ($("session").value !== "") request.session = $("session").value;
  // A session continues without a prompt, too.
  if ($("prompt").value !== "" || !request.session) request.prompt = {text: $("prompt").value};
  return request;
}

function finishText({usage = {}, timings = {}, seed}) {
  const tokens = Number(usage.completion_tokens || 0);
  const pace = tokens > 1 ? (tokens - 1) / timings.decode_seconds : null;
  return number(tokens) + " tokens after " + number(Number(usage.prompt_tokens || 0)) + ", first after " +
    milliseconds(timings.first_token_seconds || null) + ", then " + number(pace) + " per second; seed " + seed;
}

// Streams a completion. Calls `append` with its text and returns its end. Throws the error that the server reports.
async function stream(request, append) {
  const body = JSON.stringify(request);
  const answer = await fetch("api/complete", {method: "POST", headers, body, signal: running.signal});
  const reader = answer.body.getReader(), decoder = new TextDecoder();
  let rest = "", finish = {};
  for (let chunk; !(chunk = await reader.read()).done;) {
    const lines = (rest + decoder.decode(chunk.value, {stream: true})).split("\n");
    rest = lines.pop();
    for (const event of lines.filter((line) => line !== "").map((line) => JSON.parse(line))) {
      if (event.error) throw errorOf(event.error);
      finish = event.finish || finish;
      append((event.delta || event.finish || {}).text || "");
    }
  }
  return finish;
}

async function complete(event) {
  event.preventDefault();
  if (running) return;
  const request = requestOf(), id = $("session").value, before = id === "" ? [] : texts.get(id) || [];
  const output = {text: "", prompt: false};
  running = new AbortController();
  texts.set(id, [...before, {text: $("prompt").value, prompt: true}, output]);
  $("finish").textContent = "";
  showButtons();
  showText();
  try {
    const finish = await stream(request, (text) => {
      output.text += text;
      $("output").append(text);
    });
    $("finish").textContent = finishText(finish);
    if (id !== "") $("prompt").value = "";
  } catch (error) {
    $("finish").textContent = running.signal.aborted ? "stopped" : error.message;
    if (id !== "") texts.set(id, before);  // the session is unchanged
  }
  running = null;
  showButtons();
  if (id !== "") showSessions(id, $("snapshots").value).catch(() => {});
}

$("form").addEventListener("submit", complete);
$("stop").addEventListener("click", () => running && running.abort());
$("session").addEventListener("change", () => { showButtons(); showText(); });
$("snapshots").addEventListener("change", showButtons);
for (const name of Object.keys(OPERATIONS)) $(name).addEventListener("click", () => operate(name));
fill($("session"), [["", "none"]], "");
fill($("snapshots"), [["", "none"]], "");
showButtons();
showSessions("", "").catch(() => {});  // the server may still load its model
