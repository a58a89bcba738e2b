import { access, events, request } from "./api.js";
import { apply, Chat } from "./chat.js";
import { Panel } from "./panel.js";
import { Settings } from "./settings.js";
import { View } from "./view.js";

const $ = (id) => document.getElementById(id);
const SAVE_MS = 1000;
const PANEL = "lathe.panel"; // where it is kept whether the panel is shown
const settings = new Settings($("settings-form"), $("tools-error"));
const chat = new Chat();
const panel = new Panel($("panel"));
let model = "";
let running = null; // the AbortController of the answer under way

const view = new View($("log"), $("turns"), $("empty"), {
  copy: (message) => navigator.clipboard?.writeText(message.content),
  result: giveResult,
  again,
});

// Told to screen readers, so without what changes all the time, which `percent` is for.
function say(text, percent = "") {
  if ($("status").textContent !== text) $("status").textContent = text;
  $("percent").textContent = percent;
}

function show() {
  view.update(chat, running !== null);
  $("send").hidden = running !== null;
  $("stop").hidden = running === null;
  $("new-chat").disabled = running !== null;
}

// ---- The key ---------------------------------------------------------------------------------

access.key = settings.get("key");
$("settings-form").elements.key.addEventListener("input", () => {
  access.key = settings.get("key");
});

let asking = null;
access.ask = () => {
  asking ??= new Promise((resolve) => {
    const dialog = $("key-dialog");
    const end = () => {
      asking = null;
      resolve(dialog.returnValue);
    };
    $("key").value = "";
    dialog.returnValue = "";
    dialog.addEventListener("close", end, { once: true });
    dialog.showModal();
  });
  return asking;
};
$("key-form").addEventListener("submit", (e) => {
  e.preventDefault();
  settings.set("key", $("key").value.trim());
  access.key = settings.get("key");
  $("key-dialog").close("key");
  panel.retry();
});
$("no-key").addEventListener("click", () => $("key-dialog").close(""));

// ---- An answer -------------------------------------------------------------------------------

function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

async function follow(message, signal) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(chat.body(model, settings)),
    signal,
  });
  message.page.warnings = response.headers.get("x-warnings") ?? undefined;
  let isDue = false, saved = performance.now();
  for await (const chunk of events(response)) {
    apply(message, chunk);
    const delta = chunk.choices?.[0]?.delta ?? {};
    panel.piece(message.page, Boolean(delta.content || delta.reasoning_content || delta.tool_calls));
    say(words(message), percent(message));
    if (performance.now() - saved > SAVE_MS) {
      chat.save();
      saved = performance.now();
    }
    if (isDue) continue;
    isDue = true;
    requestAnimationFrame(() => {
      isDue = false;
      show();
    });
  }
}

function words(message) {
  if (message.tool_calls) return "Calling a tool";
  if (message.content) return "Answering";
  if (message.reasoning_content) return "Thinking";
  return message.page.progress ? "Reading the prompt" : "Waiting";
}

function percent(message) {
  const p = message.page.progress;
  return p?.total && words(message) === "Reading the prompt" ? `${Math.floor((100 * p.processed) / p.total)} %` : "";
}

async function answer() {
  running = new AbortController();
  const { signal } = running;
  const message = chat.begin();
  say("Waiting");
  panel.begin();
  show();
  view.toEnd();
  try {
    await follow(message, signal);
    say(message.page.finish === "tool_calls" ? "The answer waits for the results of its tools" : "The answer is complete");
  } catch (e) {
    message.page.finish = signal.aborted ? "stopped" : "error";
    if (!signal.aborted) message.page.error = e.message;
    say(signal.aborted ? "Stopped" : "");
  }
  running = null;
  chat.save();
  panel.end();
  show();
  if (document.activeElement === document.body || document.activeElement === $("stop")) $("input").focus();
}

function send() {
  const text = $("input").value;
  if (running || !text.trim()) return;
  // Calls that got no result are left as they are: an answer to them is not waited for.
  chat.messages.push({ role: "user", content: text });
  $("input").value = chat.draft = "";
  chat.save();
  answer();
}

function giveResult(call, text) {
  chat.messages.push({ role: "tool", tool_call_id: call.id, content: text });
  chat.save();
  if (!chat.missing().length) {
    answer();
    return;
  }
  show();
  document.querySelector(".result:not([hidden]) textarea").focus();
}

// The answer once more, or a message back into the field.
function again(message) {
  if (running) return;
  chat.messages.length = chat.messages.indexOf(message);
  if (message.role === "user") {
    $("input").value = chat.draft = message.content;
    $("input").focus();
  }
  chat.save();
  if (message.role === "user") show();
  else answer();
}

// ---- Controls --------------------------------------------------------------------------------

$("composer").addEventListener("submit", (e) => {
  e.preventDefault();
  send();
});
$("input").addEventListener("keydown", (e) => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
    e.preventDefault();
    send();
  }
});
$("input").addEventListener("input", () => {
  chat.draft = $("input").value;
});
$("stop").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (e) => {
  if (e.key === "Escape" && running && !document.querySelector("dialog[open]")) running.abort();
});
$("new-chat").addEventListener("click", () => {
  chat.messages.length = 0;
  chat.save();
  say("");
  show();
  $("input").focus();
});
$("show-settings").addEventListener("click", () => $("settings").showModal());
$("settings").addEventListener("close", () => panel.retry());
$("reset-settings").addEventListener("click", () => {
  settings.reset();
  access.key = "";
});
// Without a choice a narrow window is left to the conversation.
function showPanel() {
  const choice = localStorage.getItem(PANEL) ?? (matchMedia("(max-width: 50rem)").matches ? "hidden" : "shown");
  $("panel").hidden = choice === "hidden";
  $("show-panel").setAttribute("aria-expanded", String(choice !== "hidden"));
  panel.look();
}
$("show-panel").addEventListener("click", () => {
  localStorage.setItem(PANEL, $("panel").hidden ? "shown" : "hidden");
  showPanel();
});
window.addEventListener("pagehide", () => chat.save());

// ---- The server ------------------------------------------------------------------------------

async function untilReady() {
  for (;;) {
    let status = "The server does not answer", share = "";
    try {
      const response = await fetch("health", { cache: "no-store" });
      const health = await response.json();
      if (response.ok) return say("");
      status = `The server: ${health.status}`;
      if (health.status === "loading") share = `${Math.round(100 * health.progress)} %`;
    } catch {
      // It is not there, or not yet.
    }
    say(status, share);
    await pause(1000);
  }
}

async function start() {
  $("input").value = chat.draft;
  showPanel();
  show();
  view.toEnd();
  await untilReady();
  try {
    const list = await (await request("v1/models")).json();
    model = list.data[0].id;
    $("model").textContent = model;
    panel.setContext(list.data[0].max_model_len);
    const last = chat.messages.findLast((m) => m.page?.usage);
    if (last) panel.use(last.page);
  } catch (e) {
    say(e.message);
  }
}

start();
