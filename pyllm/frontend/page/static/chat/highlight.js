// Colours the parts that most languages share: comments, strings, numbers, keywords. Guesses no language.

import { element } from "../dom.js";

const KEYWORDS = new Set(
  (
    "abstract and as assert async await begin bool boolean break case catch char class const continue def " +
    "default del do double elif else end enum except export extends extern false False final finally " +
    "float fn for from func function global go if impl implements import in include instanceof int " +
    "interface is lambda let local long loop match mod mut namespace new nil none None not null of or " +
    "package pass private protected pub public raise return select self short signed sizeof static str " +
    "string struct super switch template then this throw trait True true try type typedef typeof " +
    "undefined union unsafe unsigned use using val var virtual void volatile when where while with yield"
  ).split(" "),
);
const SQL = new Set(
  (
    "all alter and as between by case create delete distinct drop else end from group having in index " +
    "inner insert into is join key left like limit not null offset on or order outer primary references " +
    "right select set table then union update values view when where with"
  ).split(" "),
);
// Languages whose comments begin with this sign.
const HASH = new Set([
  "bash",
  "dockerfile",
  "makefile",
  "perl",
  "py",
  "python",
  "r",
  "rb",
  "ruby",
  "sh",
  "shell",
  "toml",
  "yaml",
  "yml",
  "zsh",
  "console",
  "ini",
]);
const DASHES = new Set(["sql", "lua", "haskell", "hs", "elm", "ada"]);
const PLAIN = new Set(["", "text", "txt", "plain", "plaintext", "markdown", "md", "output"]);
const STRING = [
  '"""[\\s\\S]*?(?:"""|$)',
  "'''[\\s\\S]*?(?:'''|$)",
  '"(?:\\\\.|[^"\\\\\\n])*"?',
  "'(?:\\\\.|[^'\\\\\\n])*'?",
  "`(?:\\\\.|[^`\\\\])*`?",
].join("|");
const MAX_LENGTH = 50_000;

// The nodes of some code; code in an unknown language is text.
export function highlighted(code, language) {
  const name = language.toLowerCase();
  if (PLAIN.has(name) || code.length > MAX_LENGTH) return [code];
  const comment = HASH.has(name)
    ? "(?<![\\w$])#[^\\n]*"
    : DASHES.has(name)
    ? "--[^\\n]*"
    : "\\/\\/[^\\n]*|\\/\\*[\\s\\S]*?(?:\\*\\/|$)|<!--[\\s\\S]*?(?:-->|$)";
  const pattern = new RegExp(`(${comment})|(${STRING})|\\b(\\d[\\w.]*)\\b|([A-Za-z_$][\\w$]*)`, "g");
  const isKeyword = name === "sql" ? (word) => SQL.has(word.toLowerCase()) : (word) => KEYWORDS.has(word);
  const nodes = [];
  let end = 0;
  for (const match of code.matchAll(pattern)) {
    const [text, isComment, isString, isNumber, word] = match;
    const called = word && code[match.index + text.length] === "(";
    const kind = isComment
      ? "comment"
      : isString
      ? "string"
      : isNumber
      ? "number"
      : isKeyword(word)
      ? "keyword"
      : called
      ? "call"
      : "";
    if (!kind) continue;
    nodes.push(code.slice(end, match.index), element("span", { class: `code-${kind}` }, text));
    end = match.index + text.length;
  }
  nodes.push(code.slice(end));
  return nodes;
}
