// The openai package against a server: node openai_client.mjs BASE_URL PATH_OF_THE_PACKAGES [CHECK...]. Prints a line a
// check and the sum.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import path from "node:path";

const [base, packages, ...only] = process.argv.slice(2);
const require = createRequire(pathToFileURL(path.resolve(packages, "package.json")));
const { default: OpenAI } = await import(pathToFileURL(require.resolve("openai")));
const client = new OpenAI({ baseURL: base, apiKey: "none", maxRetries: 0 });
const KILN = "A kiln is a furnace for firing or burning or drying such things as porcelain or bricks.";
const ask = (content, more) => ({ model: "nano", messages: [{ role: "user", content }], temperature: 0, ...more });
const said = (input, more) => ({ model: "nano", input, temperature: 0, ...more });
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
  async responses() {
    const a = await client.responses.create({ ...said("What is a kiln?"), reasoning: { effort: "none" } });
    is(a.output_text, KILN);
    is(a.usage.total_tokens, a.usage.input_tokens + a.usage.output_tokens);
    const stream = client.responses.stream({ ...said("What is a kiln?"), reasoning: { effort: "none" } });
    let text = "", n = 0;
    for await (const event of stream) {
      is(event.sequence_number, n++);
      text += event.type === "response.output_text.delta" ? event.delta : "";
    }
    is(text, KILN);
    const last = await stream.finalResponse();
    is(last.output_text, KILN);
    is(last.status, "completed");
  },
  async "responses that think"() {
    const raw = await client.responses.create(said("What is the weather in Oslo?"));
    const summed = await client.responses.create({ ...said("What is the weather in Oslo?"), reasoning: { summary: "auto" } });
    is(raw.output.map((item) => item.type).join(), "reasoning,message");
    is(raw.output[0].content[0].text.length > 0, true);
    is(summed.output[0].summary[0].text, raw.output[0].content[0].text);
    is(summed.output_text, raw.output_text);
    const stream = client.responses.stream(said("What is the weather in Oslo?"));
    is((await stream.finalResponse()).output[0].content[0].text, raw.output[0].content[0].text);
  },
  async "responses with tools"() {
    const flat = tools.map(({ function: f }) => ({ type: "function", strict: false, ...f }));
    const first = await client.responses.create({ ...said("What time is it in Oslo?"), tools: flat });
    const call = first.output.at(-1);
    is(call.type, "function_call");
    is(JSON.parse(call.arguments).city, "Oslo");
    const result = { type: "function_call_output", call_id: call.call_id, output: "12:30" };
    const next = await client.responses.create({ ...said([result]), tools: flat, previous_response_id: first.id });
    is(next.output_text, "It is 12:30 in Oslo.");
    is(next.previous_response_id, first.id);
    const history = [{ role: "user", content: "What time is it in Oslo?" }, ...first.output, result];
    const whole = await client.responses.create({ ...said(history), tools: flat, store: false });
    is(whole.output_text, next.output_text);
    is(whole.usage.input_tokens, next.usage.input_tokens);
    const count = await client.responses.inputTokens.count({ model: "nano", input: history, tools: flat });
    is(count.input_tokens, whole.usage.input_tokens);
    const stream = client.responses.stream({ ...said([result]), tools: flat, previous_response_id: first.id });
    is((await stream.finalResponse()).output_text, next.output_text);
  },
  async "stored responses"() {
    const a = await client.responses.create(said("a", { max_output_tokens: 3 }));
    is((await client.responses.retrieve(a.id)).id, a.id);
    const items = [];
    for await (const item of client.responses.inputItems.list(a.id)) items.push(item);
    is(items.map((item) => item.content[0].text).join(), "a");
    await client.responses.delete(a.id);
    is((await client.responses.retrieve(a.id).catch((e) => e)).status, 404);
    const e = await client.responses.create(said("b", { previous_response_id: a.id })).catch((e) => e);
    is(e.status, 400);
    is(e.code, "previous_response_not_found");
  },
  async errors() {
    for (const [more, code] of [[{ max_tokens: 0 }, "invalid_value"], [{ functions: [] }, "unsupported_parameter"]]) {
      const e = await client.chat.completions.create(ask("a", more)).catch((e) => e);
      is(e.status, 400);
      is(e.code, code);
    }
    const e = await client.chat.completions.create(ask("kiln ".repeat(4000))).catch((e) => e);
    is(e.status, 400);
    is(e.code, "context_length_exceeded");
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
  if (only.length && !only.includes(name)) continue;
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
