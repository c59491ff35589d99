// One message in the thread: its text, branches, figures and buttons. The thread carries out the buttons' actions.

import { announce, copyButton, element, icon, iconButton } from "../dom.js";
import { siblings } from "./conversation.js";
import { MarkdownView } from "./markdown.js";
import { TokenView } from "./token_view.js";

const NAMES = { user: "You", assistant: "Assistant", tool: "Tool" };
const ENDS = {
  length: "ended by the limit of tokens",
  content_filter: "filtered",
  stopped: "stopped",
  tool_calls: "calls tools",
};

// `actions` has edit, retry, goOn, choose, showCode and sendResults; each gets the message.
export class MessageView {
  #markdown = null;
  #tokens = null;
  #showsTokens = false;
  #editor = null;
  #results = null;

  constructor(conversation, message, actions) {
    this.conversation = conversation;
    this.message = message;
    this.actions = actions;
    this.body = element("div", { class: "message-body" });
    this.foot = element("div", { class: "message-foot" });
    this.root = element(
      "article",
      { class: `message ${message.role}`, "aria-label": NAMES[message.role] },
      this.body,
      this.foot,
    );
    if (message.role === "assistant") this.#buildAnswer();
    else this.#showText();
  }

  // Shows changes; `answer` is the running Answer, if there is one.
  update(answer) {
    const { message } = this;
    this.root.toggleAttribute("aria-busy", Boolean(answer));
    if (message.role === "assistant") this.#updateAnswer(answer);
    this.#updateFoot(answer);
  }

  #showText() {
    const { message } = this;
    const label = message.role === "tool" ? element("div", { class: "tool-name" }, `Result of ${message.name}`) : null;
    this.body.replaceChildren(...[label, element("div", { class: "plain" }, message.content)].filter(Boolean));
  }

  #buildAnswer() {
    this.text = element("div", { class: "prose" });
    this.#markdown = new MarkdownView(this.text, (text) => {
      if (this.isSpoken && text.trim()) announce(text);
    });
    this.reasoning = element(
      "details",
      { class: "reasoning", hidden: true },
      element("summary", {}, "Reasoning"),
      element("div", { class: "plain" }),
    );
    this.calls = element("div", { class: "calls" });
    this.waiting = element(
      "div",
      { class: "waiting", role: "status", hidden: true },
      element("span", { class: "dots", "aria-hidden": "true" }),
      element("span", {}),
    );
    this.error = element("div", { class: "error", role: "alert", hidden: true });
    this.body.append(this.reasoning, this.text, this.calls, this.waiting, this.error);
  }

  #updateAnswer(answer) {
    const { message } = this;
    this.isSpoken = Boolean(answer) || this.isSpoken;
    if (message.reasoning) {
      this.reasoning.hidden = false;
      this.reasoning.lastChild.textContent = message.reasoning;
      this.reasoning.open ||= Boolean(answer) && !message.content;
    }
    this.#markdown.update(message.content, !answer);
    if (!answer) this.isSpoken = false;
    this.text.hidden = this.#showsTokens;
    if (this.#showsTokens) this.#tokens.update(message.tokens);
    this.#updateCalls(answer);
    const hasNothing = !message.content && !message.reasoning && !message.toolCalls?.length;
    this.waiting.hidden = !(answer && (hasNothing || answer.isPaused));
    this.waiting.lastChild.textContent = answer?.isPaused
      ? "The connection broke; the answer goes on as soon as the server is back"
      : "";
    this.error.hidden = !message.error;
    if (message.error && this.error.textContent !== message.error) this.error.textContent = message.error;
  }

  #updateCalls(answer) {
    const calls = this.message.toolCalls || [];
    while (this.calls.children.length > calls.length) this.calls.lastChild.remove();
    for (const [index, call] of calls.entries()) {
      const card = this.calls.children[index] ||
        this.calls.appendChild(
          element(
            "div",
            { class: "call" },
            element("div", { class: "tool-name" }),
            element("pre", { tabindex: "0", role: "group", "aria-label": "arguments" }),
          ),
        );
      card.firstChild.textContent = call.name;
      card.children[1].textContent = answer ? call.arguments : indented(call.arguments);
    }
    const wantsResults = !answer && calls.length && !this.conversation.children[this.message.id]?.length;
    if (wantsResults && !this.#results) this.#addResults(calls);
    if (!wantsResults && this.#results) {
      this.#results.remove();
      this.#results = null;
    }
  }

  #addResults(calls) {
    const areas = calls.map((call) =>
      element("textarea", {
        rows: "2",
        "aria-label": `Result of ${call.name}`,
        placeholder: `What ${call.name} returns`,
      })
    );
    const send = () => this.actions.sendResults(this.message, areas.map((area) => area.value));
    this.#results = element(
      "form",
      {
        class: "results",
        submit: (event) => {
          event.preventDefault();
          send();
        },
      },
      ...areas,
      element("button", { class: "primary" }, areas.length > 1 ? "Send the results" : "Send the result"),
    );
    this.body.insertBefore(this.#results, this.waiting);
  }

  #updateFoot(answer) {
    const { message, actions } = this;
    const isAnswer = message.role === "assistant";
    const state = `${Boolean(answer)} ${
      siblings(this.conversation, message).join()
    } ${message.state} ${this.#showsTokens} ${Boolean(message.tokens)}`;
    if (state !== this.footState) {
      this.footState = state;
      const buttons = [this.#branches()];
      if (!answer) {
        buttons.push(
          copyButton(
            isAnswer ? "Copy answer" : "Copy message",
            () => message.content || JSON.stringify(message.toolCalls, null, 2),
          ),
        );
      }
      if (!answer && message.role === "user") {
        buttons.push(iconButton("edit", "Edit, as a new branch", () => this.#edit()));
      }
      if (!answer && isAnswer) {
        buttons.push(iconButton("retry", "Try again, as a new branch", () => actions.retry(message)));
        buttons.push(iconButton("code", "The request as code", () => actions.showCode(message)));
        if (message.tokens) buttons.push(this.#tokensButton());
        if (message.eventId && (message.state === "stopped" || message.state === "failed")) {
          buttons.push(
            element(
              "button",
              {
                type: "button",
                class: "small",
                click: () => actions.goOn(message),
              },
              icon("play"),
              "Go on",
            ),
          );
        }
      }
      this.figures = element("span", { class: "figures" });
      this.foot.replaceChildren(...buttons.filter(Boolean), this.figures);
    }
    if (isAnswer) {
      const text = figures(message, answer);
      if (this.figures.textContent !== text) this.figures.textContent = text;
    }
  }

  #tokensButton() {
    return iconButton("tokens", "Log-probabilities of the tokens", () => {
      this.#showsTokens = !this.#showsTokens;
      if (!this.#tokens) {
        this.#tokens = new TokenView();
        this.text.after(this.#tokens.root);
      }
      this.#tokens.root.hidden = !this.#showsTokens;
      this.update(null);
    }, { "aria-pressed": String(this.#showsTokens) });
  }

  #branches() {
    const all = siblings(this.conversation, this.message);
    if (all.length < 2) return null;
    const index = all.indexOf(this.message.id);
    const go = (to) => this.actions.choose(all[to]);
    return element(
      "span",
      { class: "branches", role: "group", "aria-label": "Branches" },
      iconButton("left", "Previous branch", () => go(index - 1), { disabled: index === 0 }),
      element("span", {}, `${index + 1}/${all.length}`),
      iconButton("right", "Next branch", () => go(index + 1), { disabled: index === all.length - 1 }),
    );
  }

  #edit() {
    if (this.#editor) return;
    const area = element("textarea", {
      "aria-label": "Edit the message",
      rows: String(Math.min(12, this.message.content.split("\n").length + 1)),
    });
    area.value = this.message.content;
    const end = () => {
      this.#editor = null;
      this.#showText();
      this.foot.hidden = false;
    };
    const send = () => {
      end();
      this.actions.edit(this.message, area.value);
    };
    this.#editor = element(
      "form",
      {
        class: "editor",
        submit: (event) => {
          event.preventDefault();
          send();
        },
        keydown: (event) => {
          if (event.key === "Escape") {
            event.stopPropagation();
            end();
          }
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            send();
          }
        },
      },
      area,
      element(
        "div",
        { class: "row" },
        element("button", { class: "primary" }, "Send"),
        element("button", { type: "button", click: end }, "Cancel"),
      ),
    );
    this.body.replaceChildren(this.#editor);
    this.foot.hidden = true;
    area.focus();
  }
}

function figures(message, answer) {
  const parts = [];
  const tokens = message.usage?.completion_tokens;
  if (tokens) parts.push(`${tokens.toLocaleString("en")} ${tokens === 1 ? "token" : "tokens"}`);
  if (message.tokensPerSecond) parts.push(`${message.tokensPerSecond.toFixed(1)} tokens/s`);
  if (message.firstTokenSeconds) parts.push(`first after ${seconds(message.firstTokenSeconds)}`);
  if (message.breaks) {
    parts.push(message.breaks === 1 ? "went on after a break" : `went on after ${message.breaks} breaks`);
  }
  const end = message.state === "stopped" ? "stopped" : message.finish;
  if (!answer && ENDS[end]) parts.push(ENDS[end]);
  return parts.join(" · ");
}

function seconds(value) {
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(2)} s`;
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
