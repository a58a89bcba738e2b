// The openai package against a server: node openai_client.mjs BASE_URL PATH_OF_THE_PACKAGES. Prints a line a check and
// the sum.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import path from "node:path";

const [base, packages] = process.argv.slice(2);
const require = createRequire(pathToFileURL(path.resolve(packages, "package.json")));
const { default: OpenAI } = await import(pathToFileURL(require.resolve("openai")));
const client = new OpenAI({ baseURL: base, apiKey: "none", maxRetries: 0 });
const KILN = "A kiln is a furnace for firing or burning or drying such things as porcelain or bricks.";
const ask = (content, more) => ({ model: "nano", messages: [{ role: "user", content }], temperature: 0, ...more });
const tools = [
  { type: "function", function: { name: "get_time", description: "The time in a city.", parameters: { type: "object", properties: { city: { type: "string" } } } } },
];

function is(got, want) {
  if (got !== want) throw new Error(`${JSON.stringify(got)}, expected ${JSON.stringify(want)}`);
}

const checks = {
  async models() {
    const list = await client.models.list();
    is(list.data[0].id, "nano");
    is((await client.models.retrieve("nano")).id, "nano");
  },
  async plain() {
    const a = await client.chat.completions.create(ask("What is a kiln?", { enable_thinking: false }));
    is(a.choices[0].message.content, KILN);
  },
  async streamed() {
    const stream = await client.chat.completions.create(
      ask("What is a kiln?", { enable_thinking: false, stream: true, stream_options: { include_usage: true } }),
    );
    let text = "", usage;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? "";
      usage = chunk.usage ?? usage;
    }
    is(text, KILN);
    is(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
  },
  async helper() {
    const stream = client.chat.completions.stream(ask("What is a kiln?", { enable_thinking: false }));
    is((await stream.finalChatCompletion()).choices[0].message.content, KILN);
  },
  async thinking() {
    const whole = await client.chat.completions.create(ask("What is the weather in Oslo?"));
    let text = "", reasoning = "";
    for await (const chunk of await client.chat.completions.create(ask("What is the weather in Oslo?", { stream: true }))) {
      text += chunk.choices[0].delta.content ?? "";
      reasoning += chunk.choices[0].delta.reasoning_content ?? "";
    }
    is(reasoning.length > 0, true);
    is(reasoning, whole.choices[0].message.reasoning_content);
    is(text, whole.choices[0].message.content);
  },
  async tools() {
    const messages = ask("What time is it in Oslo?").messages;
    const turn = (more) => client.chat.completions.create({ model: "nano", messages, tools, temperature: 0, ...more });
    const first = (await turn()).choices[0];
    is(first.finish_reason, "tool_calls");
    is(first.message.tool_calls.length, 1);
    is(first.message.tool_calls[0].function.name, "get_time");
    is(JSON.parse(first.message.tool_calls[0].function.arguments).city, "Oslo");
    messages.push(first.message, { role: "tool", tool_call_id: first.message.tool_calls[0].id, content: "12:30" });
    const last = (await turn()).choices[0];
    is(last.message.content, "It is 12:30 in Oslo.");
    const stream = client.chat.completions.stream({ model: "nano", messages, tools, temperature: 0 });
    is((await stream.finalChatCompletion()).choices[0].message.content, last.message.content);
  },
  async "tool runner"() {
    for (const stream of [false, true]) {
      const asked = [];
      const tool = { ...tools[0].function, parse: JSON.parse, function: async ({ city }) => (asked.push(city), "12:30") };
      const runner = client.chat.completions.runTools({ ...ask("What time is it in Oslo?"), tools: [{ type: "function", function: tool }], stream });
      is(await runner.finalContent(), "It is 12:30 in Oslo.");
      is(asked.join(), "Oslo");
    }
  },
  async errors() {
    for (const [more, code] of [[{ max_tokens: 0 }, "invalid_value"], [{ functions: [] }, "unsupported_parameter"]]) {
      const e = await client.chat.completions.create(ask("a", more)).catch((e) => e);
      is(e.status, 400);
      is(e.code, code);
    }
  },
  async abort() {
    const stream = await client.chat.completions.create(ask("Tell a story.", { stream: true, ignore_eos: true }));
    for await (const _ of stream) break;
    stream.controller.abort();
    is((await client.chat.completions.create(ask("a", { max_tokens: 1 }))).choices.length, 1);
  },
};

let passed = 0, failed = 0;
for (const [name, run] of Object.entries(checks)) {
  try {
    await Promise.race([run(), new Promise((_, no) => setTimeout(() => no(new Error("no end within 60 s")), 60000).unref())]);
    console.log(`ok   test_openai.${name}`);
    passed++;
  } catch (e) {
    console.log(`FAIL test_openai.${name}: ${e.message}`);
    failed++;
  }
}
console.log(`${passed} passed, ${failed} failed, 0 skipped`);
process.exit(failed ? 1 : 0);
