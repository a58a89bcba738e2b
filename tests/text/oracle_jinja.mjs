// Renders conversations with @huggingface/jinja, in the form that oracle_jinja.py writes.
//
//   node oracle_jinja.mjs NPM_DIR N OUT TEMPLATE...
//
// Left out of the conversations is what JavaScript's values cannot say or that implementation treats
// otherwise than Python: reals, integers beyond 2^53, keys that look like numbers, white space other
// than ASCII's, control characters. What it refuses is left out too. Deterministic: the same arguments
// give the same file.
import { createRequire } from 'node:module';
import { readFileSync, writeFileSync } from 'node:fs';
import { resolve } from 'node:path';

const [npmDir, count, outFile, ...templates] = process.argv.slice(2);
const require = createRequire(resolve(npmDir, 'package.json'));
const { Template } = require('@huggingface/jinja');

let state = 0x2545f491n;
function below(n) {
  state = (state + 0x9e3779b97f4a7c15n) & 0xffffffffffffffffn;
  let z = state;
  z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & 0xffffffffffffffffn;
  z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & 0xffffffffffffffffn;
  return Number((z ^ (z >> 31n)) >> 33n) % n;
}
const chance = (percent) => below(100) < percent;
const pick = (a) => a[below(a.length)];
const many = (max, f) => Array.from({ length: below(max + 1) }, f);

const texts = ['', 'Hi', 'Hello there.', '  blanks around  ', '\n\nnewlines\n\n', 'two\nlines', 'Grüße, 世界 🎉', '<|im_end|>',
  '</think>', '<think>inner</think>', 'a </think> b </think> c', '<tool_response>\nwrapped\n</tool_response>', 'tab\there',
  'quote \' and " and \\', '{{ not_a_tag }}', '{% raw %}', 'é combining'];
const text = () => (chance(70) ? pick(texts) : pick(texts) + pick(texts));
const scalars = [null, true, false, 0, 1, -5, 42, 9007199254740991, '', 'plain', 'two\nlines', '日本', '<b>&\'"</b>', 'true', ' 1 '];

function value(depth) {
  if (depth < 3 && chance(15)) return many(3, () => value(depth + 1));
  if (depth < 3 && chance(18)) return object(depth);
  return pick(scalars);
}
function object(depth) {
  return Object.fromEntries(many(3, () => [pick(['a', 'b', 'key', '名', 'x y', 'q"t']), value(depth + 1)]));
}
// Its lstrip('\n') and rstrip('\n') take blanks and tabs too, which shows beside the tags that the
// templates split at.
const shows = (parts) => /[ \t]\s*<\/?think>|<\/?think>\s*[ \t]/.test(parts.map((p) => p.text ?? '').join(''));
function content() {
  for (;;) {
    const c = anyContent();
    if (!shows(typeof c === 'string' ? [{ text: c }] : c)) return c;
  }
}
function anyContent() {
  if (chance(75)) return text();
  return many(3, () => pick([{ type: 'text', text: text() }, { type: 'text', text: text() }, { type: 'image' }, { type: 'video' }]));
}
function message(role) {
  const m = { role, content: content() };
  if (role === 'system') m.content = text();
  if (role === 'assistant' && chance(50)) m.reasoning_content = text();
  if (role === 'assistant' && chance(50))
    m.tool_calls = many(2, () => ({ id: 'c', type: 'function', function: { name: pick(['f', 'lookup']), arguments: object(0) } }));
  return m;
}
function conversation() {
  const messages = chance(50) ? [message('system')] : [];
  for (let i = below(5); i > 0; i--) messages.push(message(pick(['user', 'user', 'assistant', 'assistant', 'tool'])));
  messages.push(message('user'));
  if (chance(40)) messages.push(message('assistant'), message('tool'));
  if (chance(20)) messages.push(message('tool'));
  const vars = { messages, add_generation_prompt: chance(80) };
  if (chance(40)) vars.tools = [{ type: 'function', function: { name: 'f', description: text(), parameters: object(0) } }, object(0)];
  for (const name of ['enable_thinking', 'preserve_thinking', 'add_vision_id']) if (chance(40)) vars[name] = chance(50);
  if (chance(50)) vars.reasoning_effort = pick(['xhigh', 'medium', 'low']);
  return vars;
}

const lines = [];
for (const name of templates) {
  const source = readFileSync(name, 'utf8');
  lines.push({ name, source });
  const template = new Template(source);
  for (let i = 0; i < Number(count); i++) {
    const vars = conversation();
    try {
      lines.push({ vars, out: template.render(vars) });
    } catch (e) {
      // Refusals are compared with Python's.
    }
  }
}
writeFileSync(outFile, lines.map((l) => JSON.stringify(l) + '\n').join(''));
