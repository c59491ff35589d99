// An answer token by token: the probability of each and its alternatives, by pointer, focus or arrow keys.

import { element } from "../dom.js";

// Shares of probability below which a token is marked more.
const LEVELS = [0.05, 0.2, 0.5, 0.8];

export class TokenView {
  #shown = 0;

  constructor() {
    this.details = element("div", { class: "token-details", role: "status" });
    this.list = element("div", {
      class: "tokens",
      role: "listbox",
      "aria-label": "Tokens of the answer; arrow keys move",
      tabindex: "0",
      pointerover: (event) => this.#choose(event.target.closest(".token")),
      focus: () => this.#choose(this.list.querySelector(".chosen") || this.list.firstElementChild),
      keydown: (event) => this.#move(event),
    });
    this.root = element("div", { class: "token-view" }, this.list, this.details);
    this.#explain();
  }

  update(tokens) {
    if (tokens.length < this.#shown) {
      this.list.replaceChildren();
      this.#shown = 0;
    }
    this.tokens = tokens;
    for (; this.#shown < tokens.length; this.#shown += 1) this.list.append(this.#node(this.#shown));
  }

  #node(index) {
    const { text, logprob } = this.tokens[index];
    const level = LEVELS.filter((bound) => Math.exp(logprob) < bound).length;
    const label = `${quoted(text)}, ${percent(logprob)}`;
    return element("span", {
      class: `token level-${level}`,
      role: "option",
      id: `token-${newNumber()}`,
      "aria-label": label,
      "aria-selected": "false",
      "data-index": index,
    }, visible(text));
  }

  #move(event) {
    const chosen = this.list.querySelector(".chosen");
    const target = {
      ArrowRight: chosen?.nextElementSibling,
      ArrowLeft: chosen?.previousElementSibling,
      Home: this.list.firstElementChild,
      End: this.list.lastElementChild,
    }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    this.#choose(target);
    target?.scrollIntoView({ block: "nearest" });
  }

  #choose(node) {
    if (!node || node.classList.contains("chosen")) return;
    const before = this.list.querySelector(".chosen");
    before?.classList.remove("chosen");
    before?.setAttribute("aria-selected", "false");
    node.classList.add("chosen");
    node.setAttribute("aria-selected", "true");
    this.list.setAttribute("aria-activedescendant", node.id);
    this.#describe(this.tokens[Number(node.dataset.index)]);
  }

  #explain() {
    this.details.append(
      element("p", { class: "note" }, "Point at a token, or move with the arrow keys, to see what else was likely."),
    );
  }

  #describe({ text, logprob, top }) {
    const rows = top.map(([other, value]) => {
      const bar = element("meter", {
        min: "0",
        max: "1",
        value: Math.exp(value),
        "aria-label": `probability of ${quoted(other)}`,
      });
      return element(
        "tr",
        other === text ? { class: "own" } : {},
        element("td", {}, element("code", {}, quoted(other))),
        element("td", {}, bar),
        element("td", { class: "number" }, percent(value)),
        element("td", { class: "number" }, logarithm(value)),
      );
    });
    this.details.replaceChildren(
      element(
        "p",
        {},
        element("code", {}, quoted(text)),
        ` ${percent(logprob)}, log-probability ${logarithm(logprob)}`,
      ),
      element(
        "table",
        {},
        element("caption", { class: "unseen" }, "The likeliest tokens here"),
        element("tbody", {}, ...rows),
      ),
    );
  }
}

let numbers = 0;

function newNumber() {
  numbers += 1;
  return numbers;
}

function percent(logprob) {
  const share = Math.exp(logprob) * 100;
  if (share < 0.01) return "< 0.01 %";
  return `${share >= 99.95 ? 100 : share.toFixed(share < 1 ? 2 : 1)} %`;
}

// Without the sign of a 0 that was rounded.
function logarithm(value) {
  return (Math.round(value * 1000) / 1000 || 0).toFixed(3);
}

function quoted(text) {
  return JSON.stringify(text);
}

function visible(text) {
  return text.replaceAll("\n", "↵\n").replaceAll("\t", "→\t");
}
