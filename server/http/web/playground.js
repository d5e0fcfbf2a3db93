"use strict";
// The playground: streams completions, alone or in a session, and creates, forks, snapshots, restores and deletes
// sessions; where the model has a chat template, it chats. status.js defines $, number, milliseconds and bytes.

let running = null;  // the AbortController of a completion
// Session id or snapshot key -> what this page has seen of it, in order: [{text, prompt}]. "": outside sessions.
const texts = new Map([["", []]]);
let messages = [];  // of the chat, {role, content}, in order

const headers = {"Content-Type": "application/json"};
const short = (id) => id.slice(0, 8);
const errorOf = ({code, message}) => new Error(code + ": " + message);

// --- what the page shows ---

// Enables what can be used now.
function showButtons() {
  const busy = running !== null, chats = $("chat").checked;
  for (const id of ["fork", "snapshot", "delete"]) $(id).disabled = busy || chats || $("session").value === "";
  for (const id of ["create", "session", "snapshots"]) $(id).disabled = busy || chats;
  for (const id of ["chat", "run"]) $(id).disabled = busy;
  $("restore").disabled = busy || chats || $("snapshots").value === "";
  $("new_chat").disabled = busy || !chats;
  $("stop").disabled = !busy;
  $("run").textContent = chats ? "Send" : "Complete";
}

// Shows the chat, or the text of the selected session.
function showText() {
  const shown = $("chat").checked
    ? messages.map(({role, content}, i) => ({text: (i > 0 ? "\n\n" : "") + content, prompt: role === "user"}))
    : texts.get($("session").value) || [];
  $("output").replaceChildren(...shown.map(({text, prompt}) => {
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

// Posts a request and calls `read` with each line of the answer that is not empty.
async function postForLines(path, request, read) {
  const body = JSON.stringify(request);
  const answer = await fetch(path, {method: "POST", headers, body, signal: running.signal});
  const reader = answer.body.getReader(), decoder = new TextDecoder();
  let rest = "";
  for (let chunk; !(chunk = await reader.read()).done;) {
    const lines = (rest + decoder.decode(chunk.value, {stream: true})).split("\n");
    rest = lines.pop();
    lines.filter((line) => line !== "").forEach(read);
  }
  if (rest !== "") read(rest);
}

// Streams a completion. Calls `append` with its text and returns its end. Throws the error that the server reports.
async function stream(request, append) {
  let finish = {};
  await postForLines("api/complete", request, (line) => {
    const event = JSON.parse(line);
    if (event.error) throw errorOf(event.error);
    finish = event.finish || finish;
    append((event.delta || event.finish || {}).text || "");
  });
  return finish;
}

// Streams the answer to the messages, server-sent events. As stream; returns the usage.
async function streamAnswer(request, append) {
  let usage = {};
  await postForLines("v1/chat/completions", request, (line) => {
    const data = line.startsWith("data: ") ? line.slice(6) : line.startsWith("{") ? line : "[DONE]";
    if (data === "[DONE]") return;  // the end, or a comment
    const event = JSON.parse(data);
    if (event.error) throw errorOf(event.error);
    usage = event.usage || usage;
    for (const {delta} of event.choices) append(delta.content || "");
  });
  return usage;
}

function chatRequestOf() {
  const {max_tokens, sampling} = requestOf();
  if (sampling.seed !== undefined) sampling.seed = Number(sampling.seed);
  return {messages, max_completion_tokens: max_tokens, ...sampling, stream: true, stream_options: {include_usage: true}};
}

async function chat() {
  const before = messages, question = $("prompt").value, answer = {role: "assistant", content: ""};
  messages = [...before, {role: "user", content: question}];
  const request = chatRequestOf();
  messages = [...messages, answer];
  running = new AbortController();
  $("finish").textContent = "";
  $("prompt").value = "";
  showButtons();
  showText();
  try {
    const usage = await streamAnswer(request, (text) => {
      answer.content += text;
      $("output").append(text);
    });
    $("finish").textContent = number(usage.completion_tokens || 0) + " tokens after " + number(usage.prompt_tokens || 0);
  } catch (error) {
    $("finish").textContent = running.signal.aborted ? "stopped" : error.message;
    if (answer.content === "") {  // the question can be asked again
      messages = before;
      $("prompt").value = question;
    }
  }
  running = null;
  showButtons();
  showText();
}

// Offers to chat where the model has a chat template.
async function offerChat() {
  const info = await (await fetch("tokenizer_info")).json();
  if (!info.chat_template) return;
  $("chat_options").hidden = false;
  $("chat").checked = true;
  $("prompt").value = "";
  showButtons();
  showText();
}

async function complete(event) {
  event.preventDefault();
  if (running) return;
  if ($("chat").checked) return chat();
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
for (const id of ["session", "chat"]) $(id).addEventListener("change", () => { showButtons(); showText(); });
$("new_chat").addEventListener("click", () => { messages = []; showText(); });
$("snapshots").addEventListener("change", showButtons);
for (const name of Object.keys(OPERATIONS)) $(name).addEventListener("click", () => operate(name));
fill($("session"), [["", "none"]], "");
fill($("snapshots"), [["", "none"]], "");
showButtons();
for (const ask of [() => showSessions("", ""), offerChat]) ask().catch(() => {});  // the server may still load its model
