// The list of conversations that the browser keeps. The chat carries out the actions on one.

import { element, icon, iconButton } from "../dom.js";

const PAUSE = 150; // ms after a key, before a search

export class ConversationList {
  #shown = [[], null];
  #found = null; // ids, while something is searched for
  #timer = null;

  // `search` gives the ids of the conversations that have a text.
  constructor({ choose, rename, remove, begin, search, exportAll, importFile }) {
    this.actions = { choose, rename, remove, search };
    this.list = element("ul", {});
    this.field = element("input", {
      type: "search",
      class: "search",
      placeholder: "Search",
      "aria-label": "Search the conversations",
      input: () => {
        clearTimeout(this.#timer);
        this.#timer = setTimeout(() => this.#search(), PAUSE);
      },
    });
    const file = element("input", {
      type: "file",
      accept: ".json,application/json",
      hidden: true,
      change: () => {
        if (file.files[0]) importFile(file.files[0]);
        file.value = "";
      },
    });
    this.root = element(
      "nav",
      { class: "conversations", "aria-label": "Conversations" },
      element("button", { type: "button", class: "new", click: begin }, icon("plus"), "New conversation"),
      this.field,
      this.list,
      element("p", { class: "note" }, "Kept in this browser only."),
      element(
        "div",
        { class: "row" },
        element("button", { type: "button", class: "quiet", click: exportAll }, "Export"),
        element("button", { type: "button", class: "quiet", click: () => file.click() }, "Import"),
        file,
      ),
    );
  }

  async show(summaries, currentId) {
    this.#shown = [summaries, currentId];
    await this.#search();
  }

  async #search() {
    const text = this.field.value.trim();
    const found = text ? await this.actions.search(text) : null;
    if (text !== this.field.value.trim()) return; // A later search has begun.
    this.#found = found;
    this.#draw();
  }

  #draw() {
    const [summaries, currentId] = this.#shown;
    const { choose, rename, remove } = this.actions;
    const wanted = summaries.filter(({ id }) => !this.#found || this.#found.has(id));
    const items = wanted.map(({ id, title, updated }) =>
      element(
        "li",
        {},
        element("button", {
          type: "button",
          class: "conversation",
          "aria-current": id === currentId ? "true" : null,
          title: new Date(updated).toLocaleString(),
          click: () => choose(id),
        }, title || "Conversation"),
        iconButton("edit", `Rename "${title}"`, () => rename(id, title)),
        iconButton("trash", `Delete "${title}"`, () => remove(id, title)),
      )
    );
    const none = this.#found && !items.length ? [element("li", { class: "note" }, "Nothing found.")] : [];
    this.list.replaceChildren(...items, ...none);
  }
}
