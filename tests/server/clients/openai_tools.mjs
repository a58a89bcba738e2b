// What the package openai does with tools: node openai_tools.mjs BASE_URL CHECK. Prints the result as JSON; openai_sdk.py
// judges it.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import path from "node:path";

const [baseURL, name] = process.argv.slice(2);
const require = createRequire(path.resolve("build/npm/package.json"));
const { default: OpenAI } = await import(pathToFileURL(require.resolve("openai")));
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Read a.txt and b.txt" }];
const file = (path) => (path === "a.txt" ? "apple" : "pear");
const parameters = { type: "object", properties: { path: { type: "string" } }, required: ["path"] };
const read = { type: "function", function: { name: "read", description: "Reads a file.", parameters } };
const runnable = { type: "function", function: { ...read.function, parse: JSON.parse, function: async ({ path }) => file(path) } };

// Two turns by hand: what came goes back with the results of its calls.
async function turns(ask) {
  const first = await ask(messages);
  messages.push(first, ...first.tool_calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: file(JSON.parse(call.function.arguments).path) })));
  return { first, last: await ask(messages) };
}

// Of a stream, the message.
async function fold(stream) {
  const message = { role: "assistant", content: "", reasoning_content: "" };
  for await (const { choices } of stream) {
    const { content, reasoning_content, tool_calls } = choices[0].delta;
    message.content += content ?? "";
    message.reasoning_content += reasoning_content ?? "";
    for (const { index, id, type, function: f } of tool_calls ?? []) {
      message.tool_calls ??= [];
      message.tool_calls[index] ??= { id, type, function: { name: f.name, arguments: "" } };
      message.tool_calls[index].function.arguments += f.arguments;
    }
  }
  return message;
}

// Two turns of Responses: before the results of the calls stand the items that came, or the name of their response.
async function responses(ask, isChained) {
  const first = await ask({ input: messages });
  const results = first.output
    .filter((item) => item.type === "function_call")
    .map(({ call_id, arguments: text }) => ({ type: "function_call_output", call_id, output: file(JSON.parse(text).path) }));
  const next = isChained ? { input: results, previous_response_id: first.id } : { input: [...messages, ...first.output, ...results] };
  return { first, last: await ask({ ...next, store: isChained }) };
}

const flat = { model: "nano", tools: [{ type: "function", strict: false, ...read.function }] };
const whole = (more) => client.responses.create({ ...flat, ...more });
const streamed = (more) => client.responses.stream({ ...flat, ...more }).finalResponse();
const body = { model: "nano", tools: [read] };
const checks = {
  responses: () => responses(whole, false),
  "streamed responses": () => responses(streamed, false),
  "chained responses": () => responses(whole, true),
  "streamed chained responses": () => responses(streamed, true),
  turns: () => turns(async (messages) => (await client.chat.completions.create({ ...body, messages })).choices[0].message),
  "streamed turns": () => turns(async (messages) => fold(await client.chat.completions.create({ ...body, messages, stream: true }))),
  "turns of the helper": () => turns(async (messages) => (await client.chat.completions.stream({ ...body, messages }).finalChatCompletion()).choices[0].message),
  runner: async () => ({ last: { content: await client.chat.completions.runTools({ model: "nano", messages, tools: [runnable] }).finalContent() } }),
  "streamed runner": async () => ({ last: { content: await client.chat.completions.runTools({ model: "nano", messages, tools: [runnable], stream: true }).finalContent() } }),
};

console.log(JSON.stringify(await checks[name]()));
