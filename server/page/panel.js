// Live figures: of the answer from its own stream, of the server from /metrics, or from /slots where that is off.

import { quiet } from "./api.js";

const ROUNDS = "lathe_round_tokens"; // a histogram
const OFTEN_MS = 1000, SELDOM_MS = 5000;

function number(n, digits = 0) {
  return n.toLocaleString("en", { maximumFractionDigits: digits });
}

// Prometheus' text: [{name, labels, value}].
function parse(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value;
    samples.push({ name: found[1], labels, value: Number(found[3]) });
  }
  return samples;
}

function sum(samples, name) {
  const found = samples.filter((s) => s.name === name);
  return found.length ? found.reduce((all, s) => all + s.value, 0) : null;
}

// Counts of 1, 2, ... tokens a round, from cumulative buckets.
function roundsOf(samples) {
  const buckets = samples
    .filter((s) => s.name === `${ROUNDS}_bucket` && s.labels.le !== "+Inf")
    .sort((a, b) => a.labels.le - b.labels.le);
  return buckets.map((s, i) => s.value - (i ? buckets[i - 1].value : 0));
}

export class Panel {
  constructor(root) {
    this.root = root;
    this.context = 0;
    this.base = []; // counts of rounds when the answer began
    this.rounds = [];
    this.generated = null; // {tokens, ms} of the last look
    this.isRunning = false;
    this.off = { metrics: false, slots: false };
    this.timer = 0;
    document.addEventListener("visibilitychange", () => this.look());
  }

  put(id, text) {
    const e = this.root.querySelector(`#${id}`);
    if (e.textContent !== text) e.textContent = text;
  }

  setContext(n) {
    this.context = n;
    this.root.querySelector("#context").max = n;
  }

  // The key or the server changed: what was refused may be open.
  retry() {
    this.off = { metrics: false, slots: false };
    this.look();
  }

  begin() {
    this.isRunning = true;
    this.base = this.rounds;
    this.at = performance.now();
    this.firstAt = 0;
    this.pieces = 0;
    for (const id of ["speed", "first", "prompt", "answer", "drafts"]) this.put(id, "–");
    this.look();
  }

  // After each chunk of a message.
  piece(page, hasDelta) {
    const now = performance.now();
    if (page.progress && !this.firstAt) this.put("prompt", `${number(page.progress.processed)} of ${number(page.progress.total)}`);
    if (hasDelta) {
      this.firstAt ||= now;
      this.pieces++;
    }
    if (!this.firstAt) return;
    this.put("first", `${number(this.firstAt - this.at)} ms`);
    const n = page.usage?.completion_tokens || this.pieces;
    if (now - this.firstAt > 200 && !page.timings) this.put("speed", `${number((n * 1000) / (now - this.firstAt), 1)} tok/s`);
    this.use(page);
  }

  use(page) {
    if (page.timings) {
      const t = page.timings;
      this.put("speed", `${number(t.predicted_per_second, 1)} tok/s`);
      this.put("drafts", t.draft_n ? `${number(t.draft_n_accepted)} of ${number(t.draft_n)}` : "none made");
    }
    if (page.usage) {
      const u = page.usage;
      this.put("prompt", `${number(u.prompt_tokens)}, ${number(u.prompt_tokens_details?.cached_tokens ?? 0)} cached`);
      this.put("answer", `${number(u.completion_tokens)}, ${number(u.completion_tokens_details?.reasoning_tokens ?? 0)} thinking`);
      this.showContext(u.total_tokens);
    }
  }

  end() {
    this.isRunning = false;
    this.look();
  }

  showContext(used) {
    const bar = this.root.querySelector("#context");
    bar.value = used;
    this.put("context-text", this.context ? `${number(used)} of ${number(this.context)} tokens` : `${number(used)} tokens`);
  }

  async look() {
    clearTimeout(this.timer);
    if (document.hidden || this.root.hidden) return;
    const turn = (this.turn = {});
    const response = this.off.metrics ? null : await quiet("metrics");
    if (response) this.show(parse(await response.text()));
    else this.off.metrics = true;
    if (!response) await this.lookAtSlots();
    // A later look has its own timer.
    const isOff = this.off.metrics && this.off.slots;
    this.root.querySelector("#rounds-part").hidden = !this.rounds.some((n) => n > 0);
    this.root.querySelector("#server-part").hidden = isOff;
    if (turn !== this.turn || isOff) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.look(), this.isRunning ? OFTEN_MS : SELDOM_MS);
  }

  show(samples) {
    const running = sum(samples, "vllm:num_requests_running"), waiting = sum(samples, "vllm:num_requests_waiting");
    if (running !== null) this.put("running", number(running));
    if (waiting !== null) this.put("waiting", number(waiting));
    const tokens = sum(samples, "vllm:generation_tokens_total"), ms = performance.now();
    if (tokens !== null && this.generated)
      this.put("rate", `${number(((tokens - this.generated.tokens) * 1000) / (ms - this.generated.ms), 1)} tok/s`);
    this.generated = tokens === null ? null : { tokens, ms };
    this.rounds = roundsOf(samples);
    const most = this.rounds.findLastIndex((n) => n > 0);
    this.showRounds(this.rounds.slice(0, most + 1).map((n, i) => n - (this.base[i] ?? 0)));
  }

  showRounds(counts) {
    const list = this.root.querySelector("#rounds");
    const all = counts.reduce((a, n) => a + n, 0), most = Math.max(1, ...counts);
    while (list.children.length > counts.length) list.lastChild.remove();
    counts.forEach((n, i) => {
      let item = list.children[i];
      if (!item) {
        item = document.createElement("li");
        const bar = document.createElement("div"), label = document.createElement("span");
        bar.className = "bar";
        label.textContent = String(i + 1);
        item.append(bar, label);
        list.append(item);
      }
      item.title = `${i + 1} ${i ? "tokens" : "token"}: ${number(n)} rounds`;
      item.setAttribute("aria-label", item.title);
      item.firstChild.style.height = `${(n / most) * 80}%`;
    });
    const tokens = counts.reduce((a, n, i) => a + n * (i + 1), 0);
    this.put("rounds-text", all ? `${number(tokens / all, 2)} on average, ${number(all)} rounds` : "–");
  }

  async lookAtSlots() {
    const response = this.off.slots ? null : await quiet("slots");
    if (!response) {
      this.off.slots = true;
      return;
    }
    const slots = await response.json();
    this.put("running", `${slots.filter((s) => s.is_processing).length} of ${slots.length}`);
  }
}
