// The chat: conversations, the thread, the composer and the settings, and the events between them.

import { announce, element, iconButton, oncePerFrame, saveFile } from "../dom.js";
import { asked, confirmed, showTexts } from "../dialog.js";
import { address, apiKey } from "../server.js";
import { Answer } from "./answer.js";
import { Composer } from "./composer.js";
import {
  addMessage,
  asFile,
  choose,
  conversationsOf,
  messagesUpTo,
  newConversation,
  parentOf,
  shownMessages,
} from "./conversation.js";
import { ConversationList } from "./conversation_list.js";
import { asCurl, asPython, CHAT_PATH, newSettings, requestBody, settingsOf } from "./request.js";
import { SettingsView } from "./settings_view.js";
import { all, checkRoom, load, remove, save, search, summaries } from "./storage.js";
import { Thread } from "./thread.js";

const SETTINGS = "pyllm.settings";
const CURRENT = "pyllm.conversation";
const PANEL = "pyllm.settings-open";
// From this width on the settings have a column of their own, below it they are a drawer.
const WIDE = matchMedia("(min-width: 1080px)");
const SAVE_EVERY = 1000; // ms, while an answer grows

export class ChatView {
  #answers = new Map();
  #savedAt = 0;
  #removed = new Set(); // ids: an answer that ends later must not bring its conversation back

  // `server` has the model's name, its context in tokens, the default parameters, and whether the model can chat.
  constructor(server) {
    this.server = server;
    this.conversation = newConversation(kept(SETTINGS) || newSettings());
    this.list = new ConversationList({
      choose: (id) => this.#open(id),
      rename: (id, title) => asked("Rename this conversation", title, (name) => this.#rename(id, name)),
      remove: (id, title) => this.#remove(id, title),
      begin: () => this.#begin(),
      search,
      exportAll: async () => saveFile("pyllm-conversations.json", asFile(await all())),
      importFile: (file) => this.#takeIn(file),
    });
    this.thread = new Thread({
      send: (text) => this.#send(text),
      edit: (message, text) => this.#ask(parentOf(message), { role: "user", content: text }),
      retry: (message) => this.#answer(parentOf(message)),
      goOn: (message) => this.#run(message),
      choose: (id) => {
        choose(this.conversation, id);
        this.#show();
        this.#save();
      },
      showCode: (message) => this.#showCode(message.request),
      sendResults: (message, results) => this.#sendResults(message, results),
    }, server);
    this.composer = new Composer({
      send: (text) => this.#send(text),
      stop: () => this.#stop(),
      complain: (text) => this.#complain(text),
    });
    this.settings = new SettingsView(server.defaults, () => this.#settingsChanged());
    this.panel = element(
      "aside",
      { class: "settings", "aria-label": "Settings" },
      element(
        "div",
        { class: "panel-head" },
        element("h2", {}, "Settings"),
        iconButton("code", "The next request as code", () => this.#showNextCode()),
        iconButton("close", "Close the settings", () => this.#toggle("settings", false)),
      ),
      this.settings.root,
    );
    this.side = element("div", { class: "side" }, this.list.root);
    this.shade = element("div", { class: "shade", click: () => this.#closeDrawers() });
    this.openers = {
      side: iconButton("menu", "Conversations", () => this.#toggle("side"), { class: "quiet side-button" }),
      settings: iconButton("sliders", "Settings", () => this.#toggle("settings")),
    };
    this.problem = element("div", { class: "error", role: "alert", hidden: true });
    this.root = element(
      "div",
      { class: "chat", keydown: (event) => this.#key(event) },
      this.side,
      element(
        "div",
        { class: "centre" },
        element(
          "div",
          { class: "chat-bar" },
          this.openers.side,
          this.title = element("h1", { class: "chat-title" }),
          this.openers.settings,
        ),
        this.thread.root,
        this.problem,
        this.composer.root,
      ),
      this.panel,
      this.shade,
    );
    this.draw = oncePerFrame(() => this.#drawRunning());
    this.#arrange();
    WIDE.addEventListener("change", () => this.#arrange());
    this.settings.show(this.conversation.settings);
    this.#show();
    this.#restore();
  }

  // On a touch screen the keyboard would cover the half of the page.
  focus() {
    if (matchMedia("(pointer: fine)").matches) this.composer.area.focus();
  }

  async #restore() {
    await this.#list();
    const id = kept(CURRENT);
    if (id && !shownMessages(this.conversation).length) await this.#open(id);
  }

  async #open(id) {
    // An answer that is running holds the conversation that is newer than the kept one.
    const running = [...this.#answers.values()].find(({ conversation }) => conversation.id === id);
    const conversation = running?.conversation || (await load(id));
    if (!conversation) return;
    for (const message of Object.values(conversation.messages)) {
      // If nothing reads it any more, the page was closed in mid-answer.
      if (message.state === "running" && !this.#answers.has(message.id)) message.state = "stopped";
    }
    this.conversation = conversation;
    this.settings.show(conversation.settings);
    keep(CURRENT, id);
    this.#toggle("side", false);
    this.#show();
    this.#list();
  }

  #begin() {
    this.conversation = newConversation(structuredClone(this.conversation.settings));
    this.settings.show(this.conversation.settings);
    keep(CURRENT, null);
    this.#toggle("side", false);
    this.#show();
    this.#list();
    this.focus();
  }

  async #rename(id, title) {
    const running = [...this.#answers.values()].find(({ conversation }) => conversation.id === id);
    const isShown = id === this.conversation.id;
    const conversation = running?.conversation || (isShown ? this.conversation : await load(id));
    if (!conversation) return;
    conversation.title = title;
    if (isShown) this.title.textContent = title;
    await this.#save(conversation);
    this.#list();
  }

  async #takeIn(file) {
    try {
      const known = new Map((await summaries()).map(({ id, updated }) => [id, updated]));
      const conversations = conversationsOf(await file.text(), settingsOf, known);
      await checkRoom(conversations);
      for (const conversation of conversations) await save(conversation);
      announce(`${conversations.length} conversations imported`);
      this.#complain("");
      if (conversations.length) await this.#open(conversations.at(-1).id);
    } catch (error) {
      this.#complain(`${file.name} cannot be imported: ${error.message}`);
    }
    this.#list();
  }

  #remove(id, title) {
    confirmed(
      "Delete this conversation?",
      `"${title}" is kept in this browser only, and cannot be brought back.`,
      async () => {
        for (const { answer, conversation } of this.#answers.values()) if (conversation.id === id) answer.stop();
        this.#removed.add(id);
        await remove(id);
        if (id === this.conversation.id) this.#begin();
        else this.#list();
      },
    );
  }

  #send(text) {
    this.#ask(shownMessages(this.conversation).at(-1)?.id, { role: "user", content: text });
  }

  #ask(parent, fields) {
    this.#answer(addMessage(this.conversation, parent, fields).id);
  }

  #sendResults(message, results) {
    let parent = message.id;
    message.toolCalls.forEach(({ id, name }, index) => {
      parent =
        addMessage(this.conversation, parent, { role: "tool", toolCallId: id, name, content: results[index] }).id;
    });
    this.#answer(parent);
  }

  // Asks for an answer to the message of this id.
  #answer(id) {
    const { conversation } = this;
    let request;
    try {
      request = requestBody(messagesUpTo(conversation, id), conversation.settings, this.server.model);
    } catch (error) {
      this.#show();
      this.#complain(error.message);
      return;
    }
    this.#complain("");
    this.#run(addMessage(conversation, id, { role: "assistant", request, state: "running" }));
  }

  async #run(message) {
    const { conversation } = this;
    const answer = new Answer(message, () => {
      this.draw();
      this.#saveSometimes(conversation);
    });
    this.#answers.set(message.id, { answer, conversation });
    this.thread.follow();
    this.#show();
    keep(CURRENT, conversation.id);
    announce("The answer begins.");
    this.#save(conversation).then(() => this.#list());
    await answer.run();
    this.#answers.delete(message.id);
    this.#show();
    announce(ending(message));
    await this.#save(conversation);
    this.#list();
  }

  #stop() {
    this.#running()?.answer.stop();
  }

  // The running answer that is on the screen.
  #running() {
    return shownMessages(this.conversation).map(({ id }) => this.#answers.get(id)).find(Boolean);
  }

  #show() {
    const running = new Map([...this.#answers].map(([id, { answer }]) => [id, answer]));
    this.thread.show(this.conversation, running);
    this.title.textContent = this.conversation.title || "New conversation";
    this.#note();
  }

  #drawRunning() {
    for (const [id, { answer, conversation }] of this.#answers) {
      if (conversation === this.conversation) this.thread.update(conversation.messages[id], answer);
    }
    this.#note();
  }

  #note() {
    const usage = shownMessages(this.conversation).findLast((message) => message.usage)?.usage;
    const context = this.server.context.toLocaleString("en");
    const note = usage
      ? `${usage.total_tokens.toLocaleString("en")} of ${context} tokens of context`
      : `Context of ${context} tokens`;
    this.composer.update(Boolean(this.#running()), note);
  }

  #complain(text) {
    this.problem.hidden = !text;
    this.problem.textContent = text;
  }

  #settingsChanged() {
    keep(SETTINGS, this.conversation.settings);
    this.#complain("");
    if (shownMessages(this.conversation).length) this.#saveSometimes(this.conversation);
  }

  #saveSometimes(conversation) {
    const now = Date.now();
    if (now - this.#savedAt < SAVE_EVERY) return;
    this.#savedAt = now;
    this.#save(conversation);
  }

  async #save(conversation = this.conversation) {
    if (this.#removed.has(conversation.id)) return;
    try {
      await save(conversation);
    } catch (error) {
      this.#complain(`The browser does not keep this conversation: ${error.message}`);
    }
  }

  async #list() {
    this.list.show(await summaries(), this.conversation.id);
  }

  #showNextCode() {
    const text = this.composer.area.value || "Hello!";
    const messages = [...shownMessages(this.conversation), { role: "user", content: text }];
    try {
      this.#showCode(requestBody(messages, this.conversation.settings, this.server.model));
    } catch (error) {
      this.#complain(error.message);
    }
  }

  #showCode(request) {
    const needsKey = Boolean(apiKey());
    showTexts("The request as code", {
      curl: asCurl(request, address(CHAT_PATH), needsKey),
      Python: asPython(request, address("/v1"), needsKey),
      JSON: JSON.stringify(request, null, 2),
    });
  }

  // Opens or closes a column, which is a drawer on a narrow screen: then the focus goes into it, and back.
  #toggle(name, isOpen = !this.root.classList.contains(`${name}-open`)) {
    const wasOpen = this.root.classList.contains(`${name}-open`);
    this.root.classList.toggle(`${name}-open`, isOpen);
    this.openers[name].setAttribute("aria-expanded", String(isOpen));
    if (name === "settings" && WIDE.matches) keep(PANEL, isOpen);
    if (WIDE.matches || isOpen === wasOpen) return;
    const drawer = { side: this.side, settings: this.panel }[name];
    (isOpen ? drawer.querySelector("button") : this.openers[name]).focus();
  }

  // Columns as they were left, where there is room for them.
  #arrange() {
    const isOpen = WIDE.matches && kept(PANEL) !== false;
    this.root.classList.toggle("settings-open", isOpen);
    this.root.classList.remove("side-open");
    this.openers.settings.setAttribute("aria-expanded", String(isOpen));
  }

  #closeDrawers() {
    this.#toggle("side", false);
    this.#toggle("settings", false);
  }

  #key(event) {
    if (event.key !== "Escape") return;
    if (!WIDE.matches && /(side|settings)-open/.test(this.root.className)) this.#closeDrawers();
    else this.#stop();
  }
}

function ending({ state, error, usage }) {
  if (state === "failed") return `The answer failed: ${error}`;
  const tokens = usage ? `, ${usage.completion_tokens} tokens` : "";
  return state === "stopped" ? `Stopped${tokens}.` : `The answer is complete${tokens}.`;
}

function kept(name) {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return null;
  }
}

function keep(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch {
    // Then it lasts as long as the page.
  }
}
