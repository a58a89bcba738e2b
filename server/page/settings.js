// What the user set: names are those of the form's fields, values texts, "" for "the server chooses".

const PLACE = "lathe.settings";
const NUMBERS = ["max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "repetition_penalty", "seed"];

export class Settings {
  constructor(form, toolsError) {
    this.form = form;
    this.toolsError = toolsError;
    this.values = {};
    try {
      this.values = JSON.parse(localStorage.getItem(PLACE)) ?? {};
    } catch {
      // What is stored there is not ours.
    }
    for (const field of this.fields()) {
      field.value = this.values[field.name] ?? "";
      field.addEventListener("input", () => this.set(field.name, field.value));
    }
    this.checkTools();
  }

  fields() {
    return [...this.form.elements].filter((field) => field.name);
  }

  get(name) {
    return this.values[name] ?? "";
  }

  set(name, value) {
    this.values[name] = value;
    const field = this.form.elements[name];
    if (field.value !== value) field.value = value;
    localStorage.setItem(PLACE, JSON.stringify(this.values));
    if (name === "tools") this.checkTools();
  }

  reset() {
    for (const field of this.fields()) this.set(field.name, "");
  }

  // The array, or null: none, or no JSON.
  tools() {
    try {
      const tools = JSON.parse(this.get("tools"));
      return Array.isArray(tools) && tools.length ? tools : null;
    } catch {
      return null;
    }
  }

  checkTools() {
    let message = "";
    if (this.get("tools").trim())
      try {
        if (!Array.isArray(JSON.parse(this.get("tools")))) message = "Tools must be a JSON array.";
      } catch (e) {
        message = `Tools are not sent: ${e.message}`;
      }
    this.toolsError.textContent = message;
  }

  // The fields of a request that are set.
  body() {
    const body = {};
    for (const name of NUMBERS) {
      const value = Number(this.get(name));
      if (this.get(name).trim() && Number.isFinite(value)) body[name] = value;
    }
    if (this.get("thinking")) body.enable_thinking = this.get("thinking") === "on";
    if (this.get("effort")) body.reasoning_effort = this.get("effort");
    if (this.get("budget").trim()) body.thinking_budget = Number(this.get("budget"));
    const tools = this.tools();
    if (tools) body.tools = tools;
    return body;
  }
}
