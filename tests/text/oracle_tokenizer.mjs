// Encodes a random and multilingual corpus with the public tokenizers implementation.
//
//   node oracle_tokenizer.mjs NPM_DIR TOKENIZER_JSON OUT N_TEXTS
//
// OUT, all numbers uint32 little-endian: n and n patterns, each a length and UTF-8; N_TEXTS records of
//   n, text[n]            UTF-8
//   n, nfc[n]             the whole text in NFC
//   n, end[n]             where the splits of nfc end, in bytes
//   n, end[n]             the same by pattern number i % patterns of record i
//   n, id[n], offset[n]   the text encoded, added tokens recognised; offsets in bytes of the text
//   n, id[n], offset[n]   the text encoded by a tokenizer without added tokens
// Deterministic: the same arguments give the same bytes.
import { createRequire } from 'node:module';
import { readFileSync, writeFileSync } from 'node:fs';
import { resolve } from 'node:path';

const [npmDir, tokenizerJson, outFile, nTexts] = process.argv.slice(2);
const require = createRequire(resolve(npmDir, 'package.json'));
const { Tokenizer } = require('tokenizers');
const json = JSON.parse(readFileSync(tokenizerJson, 'utf8'));
const added = json.added_tokens.map((t) => t.content);
const tokenizers = [json, { ...json, added_tokens: [] }].map((j) => Tokenizer.fromString(JSON.stringify(j)));
const normalizer = tokenizers[0].getNormalizer();
const preTokenizer = tokenizers[0].getPreTokenizer();

// Patterns of other tokenizers, and some that match emptily or leave gaps.
const patterns = [
  String.raw`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
  String.raw`'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`,
  String.raw`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
  String.raw`[一-龥぀-ゟ゠-ヿ]+|\d{1,3}(?=(?:\d{3})*\D)`,
  String.raw`\s*`,
  String.raw`[a-e]*?x|q*`,
  String.raw`(?<=\s)\S|\d+`,
  String.raw`[^\S\r\n]+|.`,
  String.raw`[\s\p{P}]++(?>a|ab)?|\P{Ll}\x{301}`,
];
const others = patterns.map((Regex) => {
  const j = structuredClone(json);
  j.pre_tokenizer.pretokenizers[0].pattern = { Regex };
  return Tokenizer.fromString(JSON.stringify(j)).getPreTokenizer();
});

let state = 20240607n;
function below(n) {
  state = (state + 0x9e3779b97f4a7c15n) & 0xffffffffffffffffn;
  let z = state;
  z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & 0xffffffffffffffffn;
  z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & 0xffffffffffffffffn;
  return Number((z ^ (z >> 31n)) >> 33n) % n;
}
const pick = (a) => a[below(a.length)];
const many = (max, f) => Array.from({ length: 1 + below(max) }, f).join('');
const chr = String.fromCodePoint;

// The implementation's normaliser has the data of an older Unicode than its regular expressions.
// Characters on which it and node disagree, or that node does not know, are left out.
function agrees(...texts) {
  return texts.every((s) => normalizer.normalizeString(s) === s.normalize('NFC'));
}
const knownSet = new Set(), unknown = [];
for (let cp = 0; cp < 0xe01f0; cp++) {
  if (cp === 0x30000) cp = 0xe0000;
  const c = chr(cp);
  if (/\p{Cn}|\p{Cs}/u.test(c)) continue;
  if (agrees(c, `a${c}\u0323\u0301${c}`, `a\u0323${c}\u0301`)) knownSet.add(cp);
  if (!agrees(c.normalize('NFD'))) unknown.push(c, ...c.normalize('NFD'));
}
for (const c of unknown) knownSet.delete(c.codePointAt(0));
const known = [...knownSet];
const filter = (list) => list.filter((cp) => knownSet.has(cp));
const range = (a, b) => filter(Array.from({ length: b - a + 1 }, (_, i) => a + i));

const marks = known.filter((cp) => /\p{M}/u.test(chr(cp)));
const changing = known.filter((cp) => chr(cp).normalize('NFD') !== chr(cp) && !(cp >= 0xac00 && cp <= 0xd7a3));
const digits = known.filter((cp) => /\p{N}/u.test(chr(cp)));
const spaces = filter([9, 10, 11, 12, 13, 32, 32, 32, 10, 0x1c, 0x1d, 0x1e, 0x1f, 0x85, 0xa0, 0x1680, 0x180e,
  0x2000, 0x2003, 0x200a, 0x200b, 0x2028, 0x2029, 0x202f, 0x205f, 0x2060, 0x3000, 0xfeff]);
const scripts = [
  [0x41, 0x5a], [0x61, 0x7a], [0xc0, 0x17f], [0x180, 0x24f], [0x250, 0x2af], [0x370, 0x3ff], [0x400, 0x4ff],
  [0x531, 0x58a], [0x591, 0x5f4], [0x600, 0x6ff], [0x700, 0x74f], [0x900, 0x97f], [0x980, 0x9ff], [0xb00, 0xb7f],
  [0xb80, 0xbff], [0xc80, 0xcff], [0xd00, 0xd7f], [0xd80, 0xdff], [0xe00, 0xe7f], [0xe80, 0xeff], [0xf00, 0xfff],
  [0x1000, 0x109f], [0x10a0, 0x10ff], [0x1100, 0x11ff], [0x1200, 0x137f], [0x1780, 0x17ff], [0x1800, 0x18af],
  [0x1e00, 0x1eff], [0x1f00, 0x1fff], [0x2000, 0x206f], [0x20d0, 0x20ff], [0x2100, 0x218f], [0x2200, 0x22ff],
  [0x3040, 0x30ff], [0x3400, 0x34ff], [0x4e00, 0x9fef], [0xac00, 0xd7a3], [0xf900, 0xfaff], [0xfb00, 0xfb4f],
  [0xfe00, 0xfe2f], [0xff00, 0xffef], [0x10330, 0x1034f], [0x11100, 0x1114f], [0x11300, 0x1137f],
  [0x1d100, 0x1d1ff], [0x1d400, 0x1d7ff], [0x1f300, 0x1f6ff], [0x20000, 0x2a6df],
].map(([a, b]) => range(a, b)).filter((s) => s.length);

const sentences = [
  "The quick brown fox doesn't jump; it'll've been over 13 lazy dogs by 2031-04-17.",
  'Zażółć gęślą jaźń — pchnąć w tę łódź jeża lub ośm skrzyń fig.',
  'Việt Nam: Tiếng Việt có sáu thanh điệu, được viết bằng chữ Quốc ngữ.',
  'Ελληνικά: Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ᾳ ᾷ ἅ',
  'Съешь же ещё этих мягких французских булок, да выпей чаю. Й й Ё ї',
  'نصٌّ عربيٌّ فيه تَشكيلٌ كامِلٌ، وأرقامٌ ٠١٢٣٤٥٦٧٨٩.',
  'שָׁלוֹם עֲלֵיכֶם, בְּרֵאשִׁית בָּרָא',
  'नमस्ते दुनिया। मैं क़लम और ज़मीन से लिखता हूँ।',
  'ภาษาไทยไม่มีการเว้นวรรคระหว่างคำ และมีวรรณยุกต์ ก่ ก้ ก๊ ก๋',
  'தமிழ் மொழி: கொ கோ கௌ. বাংলা: কো কৌ। ଓଡ଼ିଆ',
  '日本語のテキスト、カタカナとひらがな。がぎぐ が ﾊﾞ ㌔',
  '汉字与標點,「引号」…——123個。',
  '한국어 텍스트와 자모 ㅎㅏㄴ 한글 각힣',
  'བོད་སྐད། ཀྲུ གཱི ཱུ',
  'မြန်မာဘာသာ ခ္ဝေးလွင်း ကို',
  'ភាសាខ្មែរ កម្ពុជា',
  '👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇩🇪🇫🇷 1️⃣ ☺️ 🫠',
  '  if (x != NULL && n->next[i] >= 0x1F) {\r\n\t\treturn -EINVAL;  // "why?"\r\n  }\n\n\n',
  '{"id": 5, "name": "caf\u00e9", "v": [1.5e-3, true, null], "u": "\\u00e9"}\n',
  'def f(a, *b, **c):\n    """doc"""\n    return {k: v for k, v in c.items()}\n\n\n',
  'https://example.org/a_b-c.d?q=1&r=%20#frag <a href="x">y</a>',
  "I'M YOU'RE WE'VE HE'LL SHE'D IT'S CAN'T 'tis 'Twas o'clock 's 'S '\u017F 'RE're",
];

const kinds = [
  () => many(4, () => pick(sentences)),
  () => pick(sentences).normalize('NFD'),
  () => many(40, () => chr(32 + below(95))),
  () => many(30, () => pick(["'", "'", 's', 'S', '\u017f', 't', 'T', 'r', 'e', 'R', 'E', 'v', 'm', 'M', 'l', 'L', 'd', ' ', '\u2019', '\u212a'])),
  () => many(25, () => chr(pick(spaces)) + (below(3) ? '' : pick(['a', '1', '!', '(', 'é', '\u0301', '中', "'s"]))),
  () => many(12, () => pick(['\n', '\r', '\r\n', ' ', '  ', '\t', 'x', '!', '\n\n', ' \n ', '.\n', '9'])),
  () => many(12, () => pick(['a', 'e', 'o', 'A', 'q', ' ', '中', 'й', '1', '']) + many(5, () => chr(pick(marks)))),
  () => many(16, () => chr(pick(changing)) + (below(2) ? chr(pick(marks)) : '')),
  () => many(10, () => chr(pick(changing)).normalize('NFD') + (below(2) ? chr(pick(changing)) : '')),
  () => many(20, () => chr(pick([0x1100 + below(19), 0x1161 + below(21), 0x11a7 + below(28), 0xac00 + 28 * below(399), 0xac00 + below(11172)]))),
  () => many(30, () => chr(pick(known))),
  () => {
    const s = pick(scripts);
    return many(30, () => (below(6) ? chr(pick(s)) : pick([' ', ' ', '\n', '1', '.', ', ', '-'])));
  },
  () => many(20, () => chr(pick(pick(scripts)))),
  () => many(12, () => chr(pick(digits)) + pick(['', ' ', 'x', '\u0301'])),
  () => many(8, () => (below(2) ? pick(added) : pick(['<', '<|', '|>', '<think', 'a', ' ', '\n', '\u0301', "'s", '<tool_call', '</']))),
  () => many(6, () => {
    const t = pick(added);
    return t.slice(0, 1 + below(t.length)) + t.slice(below(t.length));
  }),
  () => pick(['a', ' ', '\n', '!', '9', '\u0301', '中', '=', 'ab ', '!?', '\t', ' \n', '\u0301\u0323']).repeat(1 + below(300)),
  () => many(4, () => pick(['🙂', '👨', '\u200d', '\ufe0f', '🏽', '🇦', '🇧', '\u20e3', '3', ' '])).repeat(1 + below(4)),
];

const encoder = new TextEncoder();
const chunks = [];
function put(numbers) {
  chunks.push(Buffer.from(Uint32Array.from(numbers).buffer));
}
function putText(s) {
  const b = Buffer.from(encoder.encode(s));
  put([b.length]);
  chunks.push(b);
}
// The byte at which every character begins, and the end.
function byteStarts(s) {
  const at = [0];
  for (const c of s) at.push(at[at.length - 1] + Buffer.byteLength(c));
  return at;
}

function putSplits(splitter, nfc) {
  const at = byteStarts(nfc);
  const ends = splitter.preTokenizeString(nfc).map(([, [, end]]) => at[end]);
  put([ends.length, ...ends]);
}

put([patterns.length]);
patterns.forEach(putText);
for (let done = 0; done < Number(nTexts); ) {
  const texts = Array.from({ length: 500 }, (_, i) => {
    let s = '';
    do {
      const r = below(10);
      s = r < 7 ? pick(kinds)() : r < 9 ? pick(kinds)() + pick(kinds)() : many(5, () => pick(kinds)());
    } while (/\p{Cs}/u.test(s));
    return s;
  }).slice(0, Number(nTexts) - done);
  const encodings = [];
  for (const t of tokenizers) encodings.push(await t.encodeBatch(texts, null, { addSpecialTokens: false }));
  texts.forEach((s, i) => {
    const nfc = normalizer.normalizeString(s);
    putText(s);
    putText(nfc);
    const at = byteStarts(s);
    putSplits(preTokenizer, nfc);
    putSplits(others[(done + i) % others.length], nfc);
    for (const e of encodings) {
      const ids = e[i].getIds();
      put([ids.length, ...ids, ...e[i].getOffsets().map(([begin]) => at[begin])]);
    }
  });
  done += texts.length;
}
writeFileSync(outFile, Buffer.concat(chunks));
