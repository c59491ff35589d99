// Formulas: LaTeX as MathML, which browsers draw themselves. KaTeX is loaded with the first formula, and not before.

import { element } from "../dom.js";

// A formula may be of any model: no links, no sizes beyond the message, no macros without end.
const OPTIONS = { output: "mathml", trust: false, strict: "ignore", maxSize: 20, maxExpand: 500 };

let loading = null;
let katex = null;

// A formula; its text as the model wrote it, `whole`, stays where it is none, and until KaTeX has come. `display` is
// "inline" for one on a line of its own within a paragraph, and "block" for a paragraph of its own.
export function mathNode(source, whole, display = "") {
  const options = display ? { class: "math display" } : { class: "math" };
  const node = element(display === "block" ? "div" : "span", { ...options, "data-spoken": source.trim() }, whole);
  if (katex) {
    draw(node, source, whole, display);
  } else {
    load().then(() => draw(node, source, whole, display), () => {}); // Without KaTeX the text stays.
  }
  return node;
}

async function load() {
  loading ??= import("../vendor/katex.js");
  await loading;
  katex = globalThis.katex;
}

function draw(node, source, whole, display) {
  try {
    katex.render(source, node, { ...OPTIONS, displayMode: Boolean(display) });
  } catch {
    node.textContent = whole;
  }
}
