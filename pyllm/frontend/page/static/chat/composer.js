// The field for the next message, with the button that sends or stops.

import { element, icon } from "../dom.js";
import { Attachments } from "./attachments.js";

const MAX_HEIGHT = 240; // px

export class Composer {
  // `complain` shows what is wrong with a file, or nothing.
  constructor({ send, stop, complain }) {
    this.attachments = new Attachments(complain);
    this.area = element("textarea", {
      rows: "1",
      id: "composer",
      "aria-label": "Message",
      placeholder: "Ask something",
      input: () => this.#fit(),
      keydown: (event) => {
        if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
          event.preventDefault();
          this.#send();
        }
      },
    });
    this.button = element("button", { class: "send", "aria-label": "Send", title: "Send (Enter)" }, icon("send"));
    this.note = element("p", { class: "composer-note" });
    this.isRunning = false;
    this.actions = { send, stop };
    this.root = element(
      "form",
      {
        class: "composer",
        submit: (event) => {
          event.preventDefault();
          if (this.isRunning) stop();
          else this.#send();
        },
      },
      this.attachments.list,
      element(
        "div",
        { class: "composer-box" },
        this.attachments.button,
        this.attachments.field,
        this.area,
        this.button,
      ),
      this.note,
    );
  }

  // Shows whether an answer is running, and a note below the field.
  update(isRunning, note) {
    if (isRunning !== this.isRunning) {
      this.isRunning = isRunning;
      const label = isRunning ? "Stop" : "Send";
      this.button.replaceChildren(icon(isRunning ? "stop" : "send"));
      this.button.setAttribute("aria-label", label);
      this.button.title = isRunning ? "Stop (Escape)" : "Send (Enter)";
      this.button.classList.toggle("running", isRunning);
    }
    if (this.note.textContent !== note) this.note.textContent = note;
  }

  #send() {
    const text = this.area.value;
    if ((!text.trim() && this.attachments.isEmpty) || this.isRunning) return;
    this.area.value = "";
    this.#fit();
    this.actions.send(this.attachments.isEmpty ? text : this.attachments.addTo(text));
  }

  #fit() {
    this.area.style.height = "auto";
    this.area.style.height = `${Math.min(MAX_HEIGHT, this.area.scrollHeight + 2)}px`;
  }
}
