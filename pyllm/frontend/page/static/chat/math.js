// Formulas: LaTeX as MathML, which browsers draw themselves. KaTeX is loaded with the first formula, and not before.

import { element } from "../dom.js";

// A formula is untrusted text: no links, no sizes beyond the message, no endless macros.
const OPTIONS = { output: "mathml", trust: false, strict: "ignore", maxSize: 20, maxExpand: 500 };

let loading = null;
let katex = null;

// A formula. The model's text, `whole`, stays if it is no formula, and until KaTeX is loaded. `display` is "inline" for
// a line of its own within a paragraph, and "block" for a paragraph of its own.
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
