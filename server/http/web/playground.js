"use strict";
// The playground: streams completions, alone or in a session, and creates, forks, snapshots, restores and deletes
// sessions; where the model has a chat template, it chats. status.js defines $, ask, seconds, element, number, milliseconds,
// bytes and key.

let running = null;  // the AbortController of a completion
// Session id or snapshot key -> what this page has seen of it, in order: [{text, prompt}]. "": outside sessions.
const texts = new Map([["", []]]);
// The chat is a tree, since an answer that is generated anew is a fork: {role, content, parent, children, chosen}, whose
// chosen child follows it. The root is no message.
const newNode = (parent, role, content) => ({parent, role, content, children: [], chosen: 0});
let root = newNode(null);
let last = null;  // {path, request} of the last completion

const headers = {"Content-Type": "application/json"};
const short = (id) => id.slice(0, 8);
const errorOf = ({code, message}) => new Error(code + ": " + message);

// Adds a child to a message of the chat, and chooses it.
function follow(parent, role, content) {
  parent.chosen = parent.children.push(newNode(parent, role, content)) - 1;
  return parent.children[parent.chosen];
}
// The messages of the chat, in order.
function messages() {
  const path = [];
  for (let node = root; (node = node.children[node.chosen]);) path.push(node);
  return path;
}

// --- what the page shows ---

// Enables what can be used now.
function showButtons() {
  const busy = running !== null, chats = $("chat").checked;
  for (const id of ["fork", "snapshot", "delete"]) $(id).disabled = busy || chats || $("session").value === "";
  for (const id of ["create", "session", "snapshots"]) $(id).disabled = busy || chats;
  for (const id of ["chat", "run"]) $(id).disabled = busy;
  $("regenerate").hidden = !chats;
  $("regenerate").disabled = busy || messages().length === 0;
  for (const id of ["curl", "python"]) $(id).disabled = last === null;
  $("sessions").hidden = chats;
  $("restore").disabled = busy || chats || $("snapshots").value === "";
  $("new_chat").disabled = busy || !chats;
  $("stop").disabled = !busy;
  $("run").textContent = chats ? "Send" : "Complete";
}

// What stands above an answer of which there are several: which one it is, and a way to the others.
function versionsOf({parent}) {
  const step = (text, label, by) => {
    const button = element("button", text);
    button.type = "button";
    button.setAttribute("aria-label", label);
    button.disabled = running !== null || !parent.children[parent.chosen + by];
    button.addEventListener("click", () => { parent.chosen += by; showText(); });
    return button;
  };
  const box = element("div", step("‹", "answer before", -1), parent.chosen + 1 + " of " + parent.children.length,
    step("›", "answer after", 1));
  box.className = "versions";
  return box;
}

// Shows the chat, or the text of the selected session, to its end.
function showText() {
  const shown = $("chat").checked
    ? messages().flatMap((node) => {
      const box = element("div", node.content);
      box.className = node.role;
      return node.parent.children.length > 1 ? [versionsOf(node), box] : [box];
    })
    : (texts.get($("session").value) || []).map(({text, prompt}) => {
      const span = element("span", text);
      span.className = prompt ? "prompt" : "";
      return span;
    });
  $("output").replaceChildren(...shown);
  $("output").scrollTop = $("output").scrollHeight;
}

// Adds to the last text that is shown; a reader who has scrolled up stays there.
function append(text) {
  const output = $("output"), atEnd = output.scrollHeight - output.scrollTop - output.clientHeight < 30;
  (output.lastChild || output).append(text);
  if (atEnd) output.scrollTop = output.scrollHeight;
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
  const answer = await ask("api/sessions/" + name, {method: "POST", headers, body: JSON.stringify(request)});
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

// What completions and chats have in common. Without a seed of the user the page chooses one, to say which.
function requestOf() {
  const [max_tokens, temperature, top_p] = ["tokens", "temperature", "top_p"].map((id) => Number($(id).value));
  const seed = $("seed").value === "" ? Math.floor(Math.random() * 2 ** 32) : Number($("seed").value);
  return {max_tokens, temperature, top_p, seed, stream: true, stream_options: {include_usage: true}};
}

// Streams a completion, server-sent events. Calls `append` with its text and returns how it ended. Throws the error that
// the server reports.
async function stream(path, request, append) {
  last = {path, request: structuredClone(request)};
  $("code").hidden = true;
  const begin = seconds();
  const answer = await ask(path, {method: "POST", headers, body: JSON.stringify(request), signal: running.signal});
  const reader = answer.body.getReader(), decoder = new TextDecoder();
  let usage = {}, first = null, rest = "";
  const read = (line) => {
    const data = line.startsWith("data: ") ? line.slice(6) : line.startsWith("{") ? line : "[DONE]";
    if (data === "[DONE]") return;  // the end, a comment or an empty line
    const event = JSON.parse(data);
    if (event.error) throw errorOf(event.error);
    usage = event.usage || usage;
    first = first || seconds();
    for (const {text, delta = {}} of event.choices) {
      append(text || delta.content || "");
      setText($("finish"), delta.reasoning_content ? "reasoning" : "");
    }
  };
  for (let chunk; !(chunk = await reader.read()).done;) {
    const lines = (rest + decoder.decode(chunk.value, {stream: true})).split("\n");
    rest = lines.pop();
    lines.forEach(read);
  }
  read(rest);
  const tokens = usage.completion_tokens || 0, pace = tokens > 1 ? (tokens - 1) / (seconds() - first) : null;
  return number(tokens) + " tokens after a prompt of " + number(usage.prompt_tokens || 0) + ", first after " +
    milliseconds(first && first - begin) + ", then " + number(pace) + " per second; seed " + request.seed;
}

// Runs a completion, during which other controls rest, and shows how it ended. Returns whether it went to its end.
async function whileRunning(work) {
  running = new AbortController();
  $("finish").textContent = "";
  showButtons();
  showText();
  let whole = false;
  try {
    $("finish").textContent = await work();
    whole = true;
  } catch (error) {
    $("finish").textContent = running.signal.aborted ? "stopped" : error.message;
  }
  running = null;
  return whole;
}

// Asks for an answer to a message of the user: the first one, or a fork beside those that it has.
async function answer(question) {
  const before = question.chosen, node = follow(question, "assistant", "");
  const before_it = messages().slice(0, -1).map(({role, content}) => ({role, content}));
  await whileRunning(() => stream("v1/chat/completions", {messages: before_it, ...requestOf()}, (text) => {
    node.content += text;
    append(text);
  }));
  if (node.content === "") {  // the question can be asked again
    question.children.pop();
    question.chosen = before;
  }
  showButtons();
  showText();
  return node.content !== "";
}

async function chat() {
  const path = messages(), text = $("prompt").value, end = path[path.length - 1] || root, before = end.chosen;
  if (text.trim() === "") return;
  $("prompt").value = "";
  if (await answer(follow(end, "user", text))) return;
  end.children.pop();
  end.chosen = before;
  $("prompt").value = text;
  showButtons();
  showText();
}

async function regenerate() {
  const path = messages();
  if (!running && path.length > 0) await answer(path[path.length - 1].parent);
}

// Offers to chat where the model has a chat template.
async function offerChat() {
  const answer = await ask("tokenizer_info");
  if (!answer.ok || !(await answer.json()).chat_template || !$("chat_options").hidden) return;
  $("chat_options").hidden = false;
  $("chat").checked = true;
  if ($("prompt").value === $("prompt").defaultValue) $("prompt").value = "";
  showButtons();
  showText();
}

// --- the last request as code ---

const quoted = (text) => "'" + text.replaceAll("'", "'\\''") + "'";
// A value of JSON in Python.
function python(x) {
  if (Array.isArray(x)) return "[" + x.map(python).join(", ") + "]";
  if (x === null || typeof x === "boolean") return {true: "True", false: "False", null: "None"}[x];
  if (typeof x !== "object") return JSON.stringify(x);
  return "{" + Object.entries(x).map(([name, y]) => JSON.stringify(name) + ": " + python(y)).join(", ") + "}";
}
const CODE = {
  curl: ({path, request}, url) => "curl -N " + quoted(url + path) + " -H 'Content-Type: application/json' \\\n" +
    (key ? '  -H "Authorization: Bearer $POLYSKETCH_API_KEY" \\\n' : "") + "  -d " + quoted(JSON.stringify(request)),
  python: ({path, request}, url) => "import json\nimport os\nimport urllib.request\n\n" +
    "request = " + python(request) + "\n" + 'headers = {"Content-Type": "application/json"}\n' +
    (key ? 'headers["Authorization"] = "Bearer " + os.environ["POLYSKETCH_API_KEY"]\n' : "") +
    "call = urllib.request.Request(" + python(url + path) + ", json.dumps(request).encode(), headers)\n" +
    "with urllib.request.urlopen(call) as lines:\n    for line in lines:\n        print(line.decode(), end=\"\")\n",
};

// Shows the last request as code and copies it, which browsers allow to pages of localhost and HTTPS.
async function copy(language) {
  $("code").value = CODE[language](last, new URL(".", location.href).href);
  $("code").hidden = false;
  $("code").select();
  try {
    await navigator.clipboard.writeText($("code").value);
    $("finish").textContent = "copied";
  } catch {
    $("finish").textContent = "the code is selected, to be copied";
  }
}

async function complete(event) {
  event.preventDefault();
  if (running) return;
  if ($("chat").checked) return chat();
  const request = requestOf(), id = $("session").value, prompt = $("prompt").value;
  const before = id === "" ? [] : texts.get(id) || [], output = {text: "", prompt: false};
  if (id !== "") request.session = id;
  if (id === "" || prompt !== "") request.prompt = prompt;  // a session continues without one, too
  texts.set(id, [...before, {text: prompt, prompt: true}, output]);
  const whole = await whileRunning(() => stream("v1/completions", request, (text) => {
    output.text += text;
    append(text);
  }));
  if (id !== "" && whole) $("prompt").value = "";
  if (id !== "" && !whole) texts.set(id, before);  // the session is unchanged
  showButtons();
  if (id !== "") showSessions(id, $("snapshots").value).catch(() => {});
}

$("form").addEventListener("submit", complete);
// Enter sends a message, Shift+Enter begins a line; keyboards on a screen have no other way to begin one.
$("prompt").addEventListener("keydown", (event) => {
  const sends = event.ctrlKey || ($("chat").checked && !event.shiftKey && !matchMedia("(pointer: coarse)").matches);
  if (event.key !== "Enter" || event.isComposing || !sends) return;
  event.preventDefault();
  $("form").requestSubmit();
});
$("stop").addEventListener("click", () => running && running.abort());
for (const id of ["session", "chat"]) $(id).addEventListener("change", () => { showButtons(); showText(); });
$("new_chat").addEventListener("click", () => { root = newNode(null); showButtons(); showText(); });
$("regenerate").addEventListener("click", regenerate);
for (const language of Object.keys(CODE)) $(language).addEventListener("click", () => copy(language));
$("snapshots").addEventListener("change", showButtons);
for (const name of Object.keys(OPERATIONS)) $(name).addEventListener("click", () => operate(name));
fill($("session"), [["", "none"]], "");
fill($("snapshots"), [["", "none"]], "");
showButtons();
// The server has loaded its model, perhaps anew.
document.addEventListener("ready", () => {
  showSessions($("session").value, $("snapshots").value).catch(() => {});
  offerChat().catch(() => {});
});
