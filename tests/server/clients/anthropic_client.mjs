// What the package @anthropic-ai/sdk is asked to do: node anthropic_client.mjs BASE_URL CHECK. Prints the result as JSON;
// anthropic_sdk.py judges it.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import path from "node:path";

const [baseURL, name] = process.argv.slice(2);
const require = createRequire(path.resolve("build/clients/package.json"));
const { default: Anthropic } = await import(pathToFileURL(require.resolve("@anthropic-ai/sdk")));
const client = new Anthropic({ baseURL, apiKey: "none", maxRetries: 0 });
const ask = (content, more) => ({ model: "nano", max_tokens: 200, messages: [{ role: "user", content }], temperature: 0, ...more });
const off = { thinking: { type: "disabled" } };
const on = { thinking: { type: "adaptive" } };
const read = { name: "read", description: "Reads a file.", input_schema: { type: "object", properties: { path: { type: "string" } }, required: ["path"] } };
const seen = [];
const runnable = { ...read, run: async ({ path }) => (seen.push(path), path === "a.txt" ? "apple" : "pear") };

const time = { name: "get_time", description: "The time in a city.", input_schema: { type: "object", properties: { city: { type: "string" } } } };

async function events(stream) {
  const all = [];
  for await (const event of stream) all.push(event);
  return all;
}

const checks = {
  plain: () => client.messages.create(ask("What is a kiln?", off)),
  streamed: async () => events(await client.messages.create(ask("What is a kiln?", { ...off, stream: true }))),
  async helper() {
    const deltas = [];
    const stream = client.messages.stream(ask("What is a kiln?", on));
    stream.on("text", (text) => deltas.push(text));
    return { message: await stream.finalMessage(), deltas };
  },
  thinking: () => client.messages.create(ask("What is a kiln?", { ...on, output_config: { effort: "high" } })),
  count: () => client.messages.countTokens({ model: "nano", messages: ask("What is a kiln?").messages }),
  models: async () => (await client.models.list()).data.map((model) => model.id),
  async error() {
    const e = await client.messages.create(ask("a", { max_tokens: -1 })).catch((e) => e);
    return { name: e.constructor.name, status: e.status, type: e.error?.error?.type, id: e.requestID };
  },
  async "too long"() {
    const e = await client.messages.create(ask("kiln ".repeat(40000))).catch((e) => e);
    return { status: e.status, message: e.error?.error?.message };
  },
  async abort() {
    const stream = await client.messages.create(ask("Tell a story.", { stream: true, ignore_eos: true, max_tokens: 20000 }));
    for await (const _ of stream) break;
    stream.controller.abort();
    return client.messages.create(ask("a", { max_tokens: 1 }));
  },
  async "shipped model with a tool"() {
    const asked = [];
    const tool = { ...time, run: async ({ city }) => (asked.push(city), "12:30") };
    const last = [];
    for (const stream of [false, true])
      last.push(await client.beta.messages.toolRunner(ask("What time is it in Oslo?", { tools: [tool], stream, ...on })).runUntilDone());
    return { last, asked };
  },
  // Two turns by hand: the calls' results go back with everything that came.
  async turns() {
    const messages = ask("Read a.txt and b.txt").messages;
    const first = await client.messages.create({ model: "nano", max_tokens: 500, messages, tools: [read], ...on });
    messages.push({ role: "assistant", content: first.content });
    messages.push({
      role: "user",
      content: first.content
        .filter((block) => block.type === "tool_use")
        .map((block) => ({ type: "tool_result", tool_use_id: block.id, content: block.input.path === "a.txt" ? "apple" : "pear" })),
    });
    return { first, second: await client.messages.create({ model: "nano", max_tokens: 500, messages, tools: [read], ...on }) };
  },
  async runner() {
    const runner = client.beta.messages.toolRunner(ask("Read a.txt and b.txt", { tools: [runnable], ...on }));
    return { last: await runner.runUntilDone(), seen };
  },
  async "streamed runner"() {
    const runner = client.beta.messages.toolRunner(ask("Read a.txt and b.txt", { tools: [runnable], stream: true, ...on }));
    let last;
    for await (const stream of runner) last = await stream.finalMessage();
    return { last, seen };
  },
};

console.log(JSON.stringify(await checks[name]()));
