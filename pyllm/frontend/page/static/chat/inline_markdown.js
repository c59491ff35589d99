// Markdown within a line: emphasis, code, links, formulas. Makes nodes; an address is followed only by the schemes
// named here.

import { element } from "../dom.js";
import { mathNode } from "./math.js";

const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const LABEL = String.raw`(?<image>!?)\[(?<label>(?:[^[\]\\]|\\.|\[[^[\]]*\])*)\]`;
const TARGET = String.raw`\(\s*<?(?<target>[^\s()<>]*(?:\([^\s()]*\)[^\s()<>]*)*)>?(?:\s+["'][^\n"']*["'])?\s*\)`;
const EMPHASIS = String.raw`(?<emphasis>(?:\\.|[^\\])*?(?:\\\S|\*\*|[^\s*\\]))`;
const TOKEN = new RegExp(
  [
    String.raw`\\\((?<round>(?:[^\\]|\\(?!\)))+?)\\\)`,
    String.raw`\\\[(?<square>(?:[^\\]|\\(?!\]))+?)\\\]`,
    String.raw`\$\$(?<dollars>(?:[^$\\]|\\[^])+?)\$\$`,
    // An amount of money is no formula: `$5 and $6`.
    String.raw`(?<![\w$\\])\$(?=[^\s$])(?<dollar>(?:[^$\\\n]|\\.)*?[^\s$\\])\$(?![\w$])`,
    // Not brackets: the beginning of a formula that is incomplete, or was never closed, stays.
    "\\\\(?<escaped>[!-'*-\\/:-@\\\\^-`{-~])",
    "(?<ticks>`+)(?<code>(?:.|\\n)*?[^`])\\k<ticks>(?!`)",
    LABEL + TARGET,
    String.raw`<?(?<address>https?:\/\/[^\s<>()]*[^\s<>().,;:!?'"*_\]])>?`,
    String.raw`(?<![\w*])\*{3}(?=[^\s*])(?<both>(?:\\.|[^*\\])*?(?:\\\S|[^\s*\\]))\*{3}(?![\w*])`,
    String.raw`(?<double>\*\*|__)(?=\S)(?<strong>(?:(?!\k<double>)[^\\]|\\.)*?(?:\\\S|[^\s\\]))\k<double>(?!\w)`,
    String.raw`(?<![\w*])(?<single>\*|_)(?=[^\s*_])${EMPHASIS}\k<single>(?![\w*])`,
    String.raw`~~(?=\S)(?<struck>(?:(?!~~)(?:.|\n))*?\S)~~`,
    String.raw`(?: {2,}|\\)(?<end>\n)`,
  ].join("|"),
  "g",
);
const MAX_DEPTH = 8;
// In a longer paragraph the search for each sign's partner would read all of it with each new token.
const MAX_LENGTH = 10_000;

// The nodes of a text. Text that is not Markdown stays as it is.
export function inlineNodes(text, depth = 0) {
  if (depth === MAX_DEPTH || text.length > MAX_LENGTH) return [text];
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(TOKEN)) {
    if (match.index > end) nodes.push(text.slice(end, match.index));
    nodes.push(nodeOf(match[0], match.groups, depth + 1));
    end = match.index + match[0].length;
  }
  if (end < text.length) nodes.push(text.slice(end));
  return nodes;
}

function nodeOf(whole, groups, depth) {
  const { escaped, code, image, label, target, address, both, strong, emphasis, struck, end } = groups;
  const display = groups.square || groups.dollars;
  if (display) return mathNode(display, whole, "inline");
  const formula = groups.round || groups.dollar;
  if (formula) return mathNode(formula, whole);
  if (escaped) return escaped;
  if (code) return element("code", {}, code.replace(/\n/g, " ").replace(/^ (.*\S.*) $/, "$1"));
  if (label !== undefined) return link(target, image ? [label || target] : inlineNodes(label, depth), whole);
  if (address) return link(address, [address], whole);
  if (both) return element("em", {}, element("strong", {}, ...inlineNodes(both, depth)));
  if (strong) return element("strong", {}, ...inlineNodes(strong, depth));
  if (emphasis) return element("em", {}, ...inlineNodes(emphasis, depth));
  if (struck) return element("del", {}, ...inlineNodes(struck, depth));
  if (end) return element("br");
  return whole;
}

// Images become links, too: the page loads nothing from elsewhere.
function link(target, children, whole) {
  let scheme;
  try {
    scheme = new URL(target).protocol;
  } catch {
    return whole;
  }
  if (!SCHEMES.has(scheme)) return whole;
  return element("a", { href: target, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}
