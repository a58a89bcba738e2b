// The conversation: messages as chat completions have them, with what the page knows besides in `page`.

const PLACE = "lathe.chat";

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

export class Chat {
  constructor() {
    this.messages = [];
    this.draft = "";
    try {
      const stored = JSON.parse(localStorage.getItem(PLACE));
      this.messages = stored.messages.filter((m) => typeof m.role === "string" && typeof m.content === "string");
      this.draft = stored.draft ?? "";
    } catch {
      // Nothing is stored, or not ours.
    }
    // An answer that was under way when the page went away.
    const last = this.messages.at(-1);
    if (last?.role === "assistant" && !last.page?.finish) last.page = { ...last.page, finish: "stopped" };
  }

  save() {
    try {
      localStorage.setItem(PLACE, JSON.stringify({ messages: this.messages, draft: this.draft }));
    } catch {
      // The browser's store is full: the conversation goes on without.
    }
  }

  // What goes to the server.
  body(model, settings) {
    const messages = [];
    if (settings.get("system").trim()) messages.push({ role: "system", content: settings.get("system") });
    for (const { page, ...message } of this.messages) {
      // Calls of an answer that was cut off may be cut off too.
      message.tool_calls &&= message.tool_calls.filter((call) => isJson(call.function.arguments));
      if (!message.tool_calls?.length) delete message.tool_calls;
      const isEmpty = message.role === "assistant" && !message.content && !message.reasoning_content && !message.tool_calls;
      if (!isEmpty) messages.push(message);
    }
    const stream_options = { include_usage: true, continuous_usage_stats: true };
    return { model, messages, stream: true, stream_options, return_progress: true, ...settings.body() };
  }

  begin() {
    const message = { role: "assistant", content: "", page: {} };
    this.messages.push(message);
    return message;
  }

  // Results that the last answer's calls still lack: the calls.
  missing() {
    const at = this.messages.findLastIndex((m) => m.role === "assistant");
    const given = new Set(this.messages.slice(at + 1).map((m) => m.tool_call_id));
    const calls = this.messages[at]?.tool_calls ?? [];
    return this.messages[at]?.page.finish === "tool_calls" ? calls.filter((call) => !given.has(call.id)) : [];
  }
}

// One chunk of the stream into the message.
export function apply(message, chunk) {
  const page = message.page;
  if (chunk.error) throw new Error(chunk.error.message);
  if (chunk.prompt_progress) page.progress = chunk.prompt_progress;
  if (chunk.usage) page.usage = chunk.usage;
  if (chunk.timings) page.timings = chunk.timings;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const { content, reasoning_content, tool_calls } = choice.delta;
  if (content) message.content += content;
  if (reasoning_content) message.reasoning_content = (message.reasoning_content ?? "") + reasoning_content;
  for (const piece of tool_calls ?? []) {
    message.tool_calls ??= [];
    const call = (message.tool_calls[piece.index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
    if (piece.id) call.id = piece.id;
    if (piece.function?.name) call.function.name = piece.function.name;
    call.function.arguments += piece.function?.arguments ?? "";
  }
  if (choice.finish_reason) page.finish = choice.finish_reason;
}
