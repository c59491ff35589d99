// Code in colours, by highlight.js, which is loaded with the first block of code, and not before.

import { element } from "../dom.js";

const PLAIN = new Set(["", "text", "txt", "plain", "plaintext", "markdown", "md", "output"]);
// Languages by one with the same comments and strings; any other is read like TypeScript.
const SIMILAR = {
  bash: ["console", "fish", "powershell", "shell"],
  cpp: ["c"],
  java: ["dart", "groovy"],
  kotlin: ["scala"],
  lua: ["ada", "elm", "haskell", "hs"],
  python: ["elixir", "ini", "julia", "r", "toml"],
  ruby: ["perl"],
  xml: ["svelte", "vue"],
};
const MAX_LENGTH = 50_000;
// From each sign of such a word, and each of so many empty lines, the search for an end would read the rest.
const ENDLESS = /[\w$]{200}|(?:[ \t]*\n){50}/;
const MAX_KNOWN = 50;

let loading = null;
let hljs = null;
const known = []; // the codes that were read last, newest first

// An element with some code, in a language that its author named. Code that still grows `isOpen`.
export function highlighted(code, language, isOpen) {
  const node = element("code", {}, code);
  const name = language.toLowerCase();
  if (PLAIN.has(name) || code.length > MAX_LENGTH || ENDLESS.test(code)) return node;
  if (hljs) draw(node, code, name, isOpen);
  else load().then(() => draw(node, code, name, isOpen), () => {}); // Without it the code stays as it is.
  return node;
}

async function load() {
  loading ??= import("../vendor/highlight.js").finally(() => (loading = null)); // A failed load is tried again.
  hljs = (await loading).default;
  for (const [languageName, names] of Object.entries(SIMILAR)) hljs.registerAliases(names, { languageName });
}

// Code that grows is read again after a quarter more: the time for all of it stays in proportion to its length.
function draw(node, code, name, isOpen) {
  const isRead = (each) => code === each.code || (isOpen && code.startsWith(each.code) && !isDue(each, code));
  let found = known.find((each) => each.name === name && isRead(each));
  if (!found) {
    found = { name, code, parts: read(code, name) };
    known.unshift(found);
    known.length = Math.min(known.length, MAX_KNOWN);
  }
  node.replaceChildren(...nodesOf(found.parts), code.slice(found.code.length));
}

function isDue(earlier, code) {
  return code.length > 1.25 * earlier.code.length + 200;
}

function read(code, name) {
  const language = hljs.getLanguage(name) ? name : "typescript";
  return hljs.highlight(code, { language, ignoreIllegals: true })._emitter.rootNode.children;
}

// A part is a text, or has parts and a name such as "title.function".
function nodesOf(parts) {
  return parts.map((part) => {
    if (typeof part === "string") return part;
    return element("span", { class: `code-${part.scope.split(".")[0]}` }, ...nodesOf(part.children));
  });
}
