// The conversation on the page. What a model wrote becomes text nodes and nothing else, whatever it looks like.

function element(tag, className, text) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

function button(text, name, run) {
  const b = element("button", "small", text);
  b.type = "button";
  if (name) b.setAttribute("aria-label", name);
  b.addEventListener("click", run);
  return b;
}

function setText(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

// Blocks of a text: plain ones, and code between lines of three backticks.
function blocksOf(text) {
  const blocks = [];
  let lines = [], isCode = false;
  const push = () => {
    if (lines.length) blocks.push({ isCode, text: lines.join("\n") });
    lines = [];
  };
  for (const line of text.split("\n")) {
    if (line.trimStart().startsWith("```")) {
      push();
      isCode = !isCode;
    } else {
      lines.push(line);
    }
  }
  push();
  return blocks;
}

// `code` and **bold** within a plain block.
function inline(text) {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((piece, i) => {
    if (i % 2 === 0) return document.createTextNode(piece);
    return piece[0] === "`" ? element("code", "", piece.slice(1, -1)) : element("strong", "", piece.slice(2, -2));
  });
}

// A text that grows: only the blocks that changed are made again.
class RichText {
  constructor(className) {
    this.element = element("div", className);
    this.blocks = [];
  }

  set(text) {
    const blocks = blocksOf(text);
    blocks.forEach((block, i) => {
      const old = this.blocks[i];
      if (old && old.isCode === block.isCode && old.text === block.text) return;
      const e = element(block.isCode ? "pre" : "div", block.isCode ? "" : "plain");
      if (block.isCode) e.append(element("code", "", block.text));
      else e.append(...inline(block.text));
      if (old) this.element.children[i].replaceWith(e);
      else this.element.append(e);
    });
    while (this.element.children.length > blocks.length) this.element.lastChild.remove();
    this.blocks = blocks;
  }
}

function foldable(className) {
  const details = element("details", className);
  const summary = element("summary");
  details.append(summary);
  return { details, summary };
}

function pretty(args) {
  try {
    return JSON.stringify(JSON.parse(args), null, 2);
  } catch {
    return args;
  }
}

class Call {
  constructor(call, act) {
    this.call = call;
    Object.assign(this, foldable("call"));
    this.details.open = true;
    this.args = element("pre");
    this.result = element("pre", "result-text");
    this.result.hidden = true;
    this.form = element("form", "result");
    this.form.hidden = true;
    const label = element("label", "", "Result");
    this.field = element("textarea", "code");
    this.field.rows = 3;
    label.append(this.field);
    const give = element("button", "", "Give this result");
    give.type = "submit";
    this.form.append(label, give);
    this.form.addEventListener("submit", (e) => {
      e.preventDefault();
      act.result(call, this.field.value);
    });
    this.details.append(this.args, this.result, this.form);
  }

  update(isOpen, result, isWanted) {
    const { name, arguments: args } = this.call.function;
    setText(this.summary, `Tool call: ${name}`);
    setText(this.args, pretty(args));
    this.details.classList.toggle("running", isOpen);
    this.result.hidden = result === undefined;
    setText(this.result, result ?? "");
    this.form.hidden = !isWanted;
  }
}

function number(n, digits = 0) {
  return n.toLocaleString("en", { maximumFractionDigits: digits });
}

const ENDS = { length: "cut off at the limit", stopped: "stopped", tool_calls: "waits for its tools" };

function metaOf(page) {
  const parts = [];
  if (page.usage) parts.push(`${number(page.usage.completion_tokens)} tokens`);
  if (page.timings) parts.push(`${number(page.timings.predicted_per_second, 1)} tokens/s`);
  if (ENDS[page.finish]) parts.push(ENDS[page.finish]);
  if (page.warnings) parts.push(page.warnings);
  return parts.join(" · ");
}

class Turn {
  constructor(message, act) {
    this.message = message;
    this.act = act;
    this.calls = [];
    this.element = element("li", `turn ${message.role}`);
    this.element.append(element("div", "role", message.role === "user" ? "You" : "Answer"));
    if (message.role === "assistant") {
      Object.assign(this, foldable("thinking"));
      this.reasoning = element("div", "plain");
      this.details.append(this.reasoning);
      this.element.append(this.details);
    }
    this.text = new RichText("text");
    this.list = element("div");
    this.error = element("p", "error");
    this.error.setAttribute("role", "alert");
    this.meta = element("div", "meta");
    this.words = element("span");
    this.meta.append(this.words, button("Copy", "", () => act.copy(message)));
    this.again = button(message.role === "user" ? "Edit" : "Again", message.role === "user" ? "Edit this message" : "Answer again", () => act.again(message));
    this.meta.append(this.again);
    this.element.append(this.text.element, this.list, this.error, this.meta);
  }

  update(chat, isRunning) {
    const m = this.message;
    const isLast = chat.messages.at(-1) === m;
    const runs = isRunning && isLast;
    this.element.setAttribute("aria-busy", String(runs));
    this.text.set(m.content ?? "");
    this.text.element.hidden = !m.content;
    setText(this.error, m.page?.error ?? "");
    this.error.hidden = !m.page?.error;
    this.again.disabled = isRunning;
    this.meta.hidden = runs;
    this.words.hidden = m.role === "user";
    if (m.role !== "assistant") return;
    const isThinking = runs && !m.content && !m.tool_calls;
    this.details.hidden = !m.reasoning_content;
    this.details.classList.toggle("running", isThinking);
    setText(this.summary, "Thinking");
    setText(this.reasoning, m.reasoning_content ?? "");
    setText(this.words, metaOf(m.page));
    const calls = m.tool_calls ?? [];
    const missing = isRunning ? [] : chat.missing();
    calls.forEach((call, i) => {
      if (!this.calls[i]) {
        this.calls[i] = new Call(call, this.act);
        this.list.append(this.calls[i].details);
      }
      const result = chat.messages.find((r) => r.role === "tool" && r.tool_call_id === call.id)?.content;
      this.calls[i].update(runs && i === calls.length - 1, result, missing.includes(call));
    });
  }
}

export class View {
  // act: result(call, text), copy(message), again(message).
  constructor(log, list, empty, act) {
    Object.assign(this, { log, list, empty, act });
    this.turns = new Map();
  }

  update(chat, isRunning) {
    const atEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40;
    const shown = chat.messages.filter((m) => m.role !== "tool");
    for (const [message, turn] of this.turns)
      if (!shown.includes(message)) {
        turn.element.remove();
        this.turns.delete(message);
      }
    for (const message of shown) {
      let turn = this.turns.get(message);
      if (!turn) {
        turn = new Turn(message, this.act);
        this.turns.set(message, turn);
        this.list.append(turn.element);
      }
      turn.update(chat, isRunning);
    }
    this.empty.hidden = shown.length > 0;
    if (atEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  toEnd() {
    this.log.scrollTop = this.log.scrollHeight;
  }
}
