// Markdown as nodes, block by block, also while it grows: blocks that have ended are made once.

import { copyButton, element } from "../dom.js";
import { highlighted } from "./highlight.js";
import { inlineNodes } from "./inline_markdown.js";
import { mathNode } from "./math.js";

const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`\n]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(\s+|$)/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const MATH = /^ {0,3}(\\\[|\$\$)/;
const MAX_DEPTH = 6;
const MAX_MATH_LINES = 60; // of text that begins like a formula and does not end

// Shows a text that grows at its end. `onBlock` gets the text of each block that is final.
export class MarkdownView {
  #ended = 0; // characters of the text whose blocks have ended
  #open = []; // nodes of the rest
  #text = "";
  #isWhole = false;

  constructor(root, onBlock = () => {}) {
    this.root = root;
    this.onBlock = onBlock;
  }

  update(text, isWhole = false) {
    if (text === this.#text && !isWhole) return;
    if (this.#isWhole || !text.startsWith(this.#text)) this.#restart();
    this.#text = text;
    this.#isWhole = isWhole;
    for (const node of this.#open) node.remove();
    const lines = text.slice(this.#ended).split("\n");
    const blocks = split(lines);
    // A line that is not complete may still turn out to be part of the block before it.
    const numOpen = blocks.length && blocks.at(-1).start === lines.length - 1 ? 2 : 1;
    const numEnded = isWhole ? blocks.length : Math.max(0, blocks.length - numOpen);
    this.#open = [];
    for (const [index, block] of blocks.entries()) {
      const node = nodeOf(block, { depth: 0, isWhole });
      this.root.append(node);
      if (index < numEnded) this.onBlock(node.dataset.spoken || node.textContent);
      else this.#open.push(node);
    }
    if (isWhole) this.#ended = text.length;
    else if (numEnded) this.#ended += lines.slice(0, blocks[numEnded].start).join("\n").length + 1;
  }

  #restart() {
    this.root.replaceChildren();
    this.#ended = 0;
    this.#open = [];
  }
}

// All of a text's nodes; `depth` counts the blocks around it.
function nodesOf(lines, { depth, isWhole }) {
  return split(lines).map((block) => nodeOf(block, { depth: depth + 1, isWhole }));
}

// The blocks of some lines, each with its kind, and its first line's number.
function split(lines) {
  const blocks = [];
  for (let start = 0; start < lines.length;) {
    if (!lines[start].trim()) {
      start += 1;
      continue;
    }
    const block = read(lines, start);
    blocks.push({ ...block, start });
    start = block.end;
  }
  return blocks;
}

function read(lines, start) {
  const line = lines[start];
  const fence = FENCE.exec(line);
  if (fence) return readFence(lines, start, fence);
  const heading = HEADING.exec(line);
  if (heading) return { kind: "heading", level: heading[1].length, text: heading[2], end: start + 1 };
  if (RULE.test(line)) return { kind: "rule", end: start + 1 };
  const math = MATH.exec(line) && readMath(lines, start);
  if (math) return math;
  if (QUOTE.test(line)) {
    const end = endOf(lines, start, (each) => each.trim() && !startsBlock(each, QUOTE));
    return { kind: "quote", lines: lines.slice(start, end).map((each) => each.replace(QUOTE, "")), end };
  }
  if (ITEM.test(line)) return readList(lines, start);
  if (line.includes("|") && start + 1 < lines.length && TABLE_RULE.test(lines[start + 1])) {
    return readTable(lines, start);
  }
  const end = endOf(lines, start, (each, index) => each.trim() && !startsBlock(each) && !startsTable(lines, index));
  return { kind: "paragraph", text: lines.slice(start, end).map((each) => each.trimStart()).join("\n"), end };
}

function endOf(lines, start, continues) {
  let end = start + 1;
  while (end < lines.length && continues(lines[end], end)) end += 1;
  return end;
}

function startsBlock(line, except) {
  return [FENCE, HEADING, RULE, QUOTE, ITEM, MATH].some((pattern) => pattern !== except && pattern.test(line));
}

function startsTable(lines, index) {
  return lines[index].includes("|") && index + 1 < lines.length && TABLE_RULE.test(lines[index + 1]);
}

function readFence(lines, start, [, indent, mark, language]) {
  const closing = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}\\s*$`);
  let end = start + 1;
  while (end < lines.length && !closing.test(lines[end])) end += 1;
  const margin = new RegExp(`^ {0,${indent.length}}`);
  const code = lines.slice(start + 1, end).map((line) => line.replace(margin, "")).join("\n");
  const hasEnded = end < lines.length;
  return { kind: "code", language: language.trim().split(/\s/)[0], code, hasEnded, end: end + hasEnded };
}

// A formula on lines of its own, which would otherwise be lists and rules; until it ends, the part so far.
function readMath(lines, start) {
  const close = lines[start].trim().startsWith("$$") ? "$$" : "\\]";
  const most = Math.min(lines.length, start + MAX_MATH_LINES);
  for (let end = start + 1; end <= most; end += 1) {
    const at = lines[end - 1].indexOf(close, end === start + 1 ? lines[start].search(/\S/) + 2 : 0);
    if (at < 0) continue;
    const text = lines.slice(start, end).join("\n").trim();
    // If a sentence continues behind it, it is part of a paragraph.
    return text.endsWith(close) ? { kind: "math", text, end } : null;
  }
  return most < lines.length ? null : { kind: "paragraph", text: lines.slice(start).join("\n"), end: lines.length };
}

function readList(lines, start) {
  const [, , mark] = ITEM.exec(lines[start]);
  const isOrdered = /\d/.test(mark);
  const items = [];
  let index = start;
  let end = start;
  let isLoose = false;
  while (index < lines.length) {
    const item = ITEM.exec(lines[index]);
    if (!item || /\d/.test(item[2]) !== isOrdered || RULE.test(lines[index])) break;
    const width = item[1].length + item[2].length + Math.min(item[3].length || 1, 4);
    isLoose ||= index > start && !lines[index - 1].trim();
    const own = [lines[index].slice(item[0].length)];
    end = index += 1;
    while (index < lines.length) {
      const line = lines[index];
      const isInside = line.startsWith(" ".repeat(Math.min(width, 2))) && line.trim();
      if (isInside) own.push(line.replace(new RegExp(`^ {0,${width}}`), ""));
      else if (!line.trim()) own.push("");
      else if (lines[index - 1].trim() && !startsBlock(line)) own.push(line);
      else break;
      index += 1;
      if (line.trim()) end = index;
    }
    isLoose ||= own.some((line, at) => !line.trim() && own.slice(at).some((each) => each.trim()));
    items.push(own);
  }
  return { kind: "list", isOrdered, isLoose, first: parseInt(mark, 10), items, end };
}

function readTable(lines, start) {
  const end = endOf(lines, start + 1, (line) => line.includes("|") && line.trim());
  const [head, rule, ...rows] = lines.slice(start, end).map(cells);
  return { kind: "table", head, rows, alignments: rule.map(alignment), end };
}

function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function alignment(rule) {
  return rule.endsWith(":") ? (rule.startsWith(":") ? "center" : "right") : "";
}

function nodeOf(block, place) {
  switch (block.kind) {
    case "code":
      return codeNode(block, place.isWhole);
    case "heading":
      // The page's own headings are above those of an answer.
      return element(`h${Math.min(block.level + 2, 6)}`, {}, ...inlineNodes(block.text));
    case "rule":
      return element("hr");
    case "math":
      return mathNode(block.text.slice(2, -2), block.text, "block");
    case "quote":
      return element("blockquote", {}, ...inner(block.lines, place));
    case "list":
      return listNode(block, place);
    case "table":
      return tableNode(block);
    default:
      return element("p", {}, ...inlineNodes(block.text));
  }
}

function inner(lines, place) {
  return place.depth < MAX_DEPTH ? nodesOf(lines, place) : [lines.join("\n")];
}

function listNode({ isOrdered, isLoose, first, items }, place) {
  const start = isOrdered && first !== 1 ? { start: first } : {};
  return element(isOrdered ? "ol" : "ul", start, ...items.map((lines) => itemNode(lines, isLoose, place)));
}

function itemNode(lines, isLoose, place) {
  const task = /^\[([ xX])\]\s+/.exec(lines[0]);
  const own = task ? [lines[0].slice(task[0].length), ...lines.slice(1)] : lines;
  const nodes = inner(own, place).flatMap((
    node,
  ) => (!isLoose && node.nodeName === "P" ? [...node.childNodes] : [node]));
  if (!task) return element("li", {}, ...nodes);
  const isDone = task[1] !== " ";
  const box = element(
    "span",
    { class: "task", role: "img", "aria-label": isDone ? "done" : "open" },
    isDone ? "☑ " : "☐ ",
  );
  return element("li", { class: "task-item" }, box, ...nodes);
}

function tableNode({ head, rows, alignments }) {
  const row = (name, texts) =>
    element(
      "tr",
      {},
      ...head.map((_, column) =>
        element(
          name,
          alignments[column] ? { class: `to-${alignments[column]}` } : {},
          ...inlineNodes(texts[column] || ""),
        )
      ),
    );
  return element(
    "div",
    { class: "table", tabindex: "0", role: "group", "aria-label": "table" },
    element(
      "table",
      {},
      element("thead", {}, row("th", head)),
      element("tbody", {}, ...rows.map((each) => row("td", each))),
    ),
  );
}

function codeNode({ language, code, hasEnded }, isWhole) {
  const name = language || "text";
  const pre = element(
    "pre",
    { tabindex: "0", role: "group", "aria-label": `${name} code` },
    highlighted(code, language, !hasEnded && !isWhole),
  );
  return element(
    "div",
    { class: "code", "data-spoken": `${name} code, ${code.split("\n").length} lines` },
    element("div", { class: "code-bar" }, element("span", {}, name), copyButton("Copy code", () => code)),
    pre,
  );
}
