// The list of conversations that the browser keeps. What is chosen or removed is the chat's to do.

import { element, icon, iconButton } from "../dom.js";

export class ConversationList {
  constructor({ choose, remove, begin }) {
    this.choose = choose;
    this.remove = remove;
    this.list = element("ul", {});
    this.root = element(
      "nav",
      { class: "conversations", "aria-label": "Conversations" },
      element("button", { type: "button", class: "new", click: begin }, icon("plus"), "New conversation"),
      this.list,
      element("p", { class: "note" }, "Kept in this browser only."),
    );
  }

  show(summaries, currentId) {
    this.list.replaceChildren(...summaries.map(({ id, title, updated }) => {
      const isCurrent = id === currentId;
      return element(
        "li",
        {},
        element("button", {
          type: "button",
          class: "conversation",
          "aria-current": isCurrent ? "true" : null,
          title: new Date(updated).toLocaleString(),
          click: () => this.choose(id),
        }, title || "Conversation"),
        iconButton("trash", `Delete "${title}"`, () => this.remove(id, title)),
      );
    }));
  }
}
