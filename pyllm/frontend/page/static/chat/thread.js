// The messages of one conversation on the screen. It stays at the end while an answer grows, unless the reader scrolls.

import { element, icon } from "../dom.js";
import { shownMessages } from "./conversation.js";
import { MessageView } from "./message_view.js";

const NEAR_END = 60; // px
const SUGGESTIONS = [
  "Explain in simple words how a large language model chooses its next word.",
  "Write a Python function that counts the words of a text, with an example.",
  "Give me three ideas for a rainy Sunday, as a list.",
];

export class Thread {
  #views = new Map();
  #conversation = null;
  #follows = true;

  // `actions` are those of MessageView, and `send` for a suggestion.
  constructor(actions, { model, whyNoChat }) {
    this.actions = actions;
    this.list = element("div", { class: "messages" });
    this.welcome = element(
      "div",
      { class: "welcome" },
      ...(whyNoChat ? noChat(whyNoChat) : invitation(model, actions)),
    );
    this.toEnd = element("button", {
      type: "button",
      class: "to-end",
      "aria-label": "To the end",
      title: "To the end",
      hidden: true,
      click: () => {
        this.#follows = true;
        this.#scroll();
      },
    }, icon("down"));
    this.scroller = element(
      "div",
      {
        class: "scroller",
        tabindex: "0",
        role: "region",
        "aria-label": "Messages",
        scroll: () => this.#scrolled(),
      },
      this.welcome,
      this.list,
    );
    this.root = element("div", { class: "thread" }, this.scroller, this.toEnd);
  }

  // Shows the conversation's chosen branch; `answers` maps ids of messages to the answers that are running.
  show(conversation, answers) {
    if (conversation !== this.#conversation) {
      this.#conversation = conversation;
      this.#views.clear();
      this.#follows = true;
    }
    const views = shownMessages(conversation).map((message) => this.#view(message));
    views.forEach((view, index) => {
      const there = this.list.children[index];
      if (there !== view.root) this.list.insertBefore(view.root, there || null);
    });
    while (this.list.children.length > views.length) this.list.lastChild.remove();
    this.welcome.hidden = views.length > 0;
    for (const view of views) view.update(answers.get(view.message.id));
    this.#scroll();
  }

  // Shows the changes of one message.
  update(message, answer) {
    this.#views.get(message.id)?.update(answer);
    this.#scroll();
  }

  follow() {
    this.#follows = true;
  }

  #view(message) {
    let view = this.#views.get(message.id);
    if (!view) {
      view = new MessageView(this.#conversation, message, this.actions);
      this.#views.set(message.id, view);
    }
    return view;
  }

  #scroll() {
    if (this.#follows) this.scroller.scrollTop = this.scroller.scrollHeight;
    this.#scrolled();
  }

  #scrolled() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    this.#follows = scrollHeight - scrollTop - clientHeight < NEAR_END;
    this.toEnd.hidden = this.#follows;
  }
}

function invitation(model, actions) {
  return [
    element("h2", {}, "What would you like to know?"),
    element("p", { class: "note" }, model, " answers on this server. Nothing leaves it."),
    element(
      "div",
      { class: "suggestions" },
      ...SUGGESTIONS.map((text) => element("button", { type: "button", click: () => actions.send(text) }, text)),
    ),
  ];
}

function noChat(reason) {
  return [
    element("h2", {}, "This model cannot chat"),
    element(
      "p",
      { class: "note" },
      `${reason}. `,
      element("a", { href: "#/api/post/v1/completions" }, "POST /v1/completions"),
      ".",
    ),
  ];
}
