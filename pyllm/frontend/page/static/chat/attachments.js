// Text files beside the next message, and how they become part of it.

import { element, iconButton } from "../dom.js";

const MAX_BYTES = 1 << 20;

export class Attachments {
  #files = [];

  // `complain` shows what is wrong with a file, or nothing.
  constructor(complain) {
    this.complain = complain;
    this.field = element("input", { type: "file", multiple: true, hidden: true, change: () => this.#take() });
    this.list = element("ul", { class: "attachments", "aria-label": "Attached files", hidden: true });
    this.button = iconButton("attach", "Attach text files", () => this.field.click());
  }

  get isEmpty() {
    return !this.#files.length;
  }

  // The message with the files behind it; removes the files.
  addTo(text) {
    const parts = this.#files.map(asText);
    this.#files = [];
    this.#draw();
    return [text.trim(), ...parts].filter(Boolean).join("\n\n");
  }

  async #take() {
    const files = [...this.field.files];
    this.field.value = "";
    const problems = [];
    for (const file of files) {
      try {
        this.#files.push({ name: file.name, text: await textOf(file) });
      } catch (error) {
        problems.push(`${file.name}: ${error.message}`);
      }
    }
    this.complain(problems.join("; "));
    this.#draw();
  }

  #draw() {
    this.list.hidden = !this.#files.length;
    this.list.replaceChildren(...this.#files.map((file) =>
      element(
        "li",
        {},
        file.name,
        iconButton("close", `Remove ${file.name}`, () => {
          this.#files = this.#files.filter((each) => each !== file);
          this.#draw();
        }),
      )
    ));
  }
}

// Throws an Error where a file is no text in UTF-8, or too long.
export async function textOf(file) {
  if (file.size > MAX_BYTES) throw new Error(`it has ${file.size} bytes, and at most ${MAX_BYTES} can be attached`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (text.includes("\0")) throw new TypeError();
    return text;
  } catch {
    throw new Error("it is no text in UTF-8, and models read text alone");
  }
}

// A file as a block of code, behind a fence that is longer than any in it.
export function asText({ name, text }) {
  const longest = Math.max(2, ...[...text.matchAll(/^ *(`{3,})/gm)].map(([, ticks]) => ticks.length));
  const fence = "`".repeat(longest + 1);
  return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}
