// The panel of a conversation's settings: system prompt, parameters, output, tools. Knows no message.

import { element } from "../dom.js";
import { EXAMPLE_SCHEMA, EXAMPLE_TOOLS, FORMATS, newSettings, PARAMETERS } from "./request.js";

const CHOICES = [["auto", "The model decides"], ["required", "At least one call"], ["none", "No calls"]];

export class SettingsView {
  // `defaults` are the server's; `onChange` is called after each change of `settings`.
  constructor(defaults, onChange) {
    this.defaults = defaults;
    this.onChange = onChange;
    this.root = element("div", { class: "settings-body" });
  }

  show(settings) {
    this.settings = settings;
    this.root.replaceChildren(
      this.#system(),
      this.#parameters(),
      this.#output(),
      this.#tools(),
      this.#logprobs(),
      element("button", { type: "button", click: () => this.#reset() }, "Reset to the defaults"),
    );
  }

  #change(name, value) {
    this.settings[name] = value;
    this.onChange();
  }

  #reset() {
    Object.assign(this.settings, newSettings());
    this.onChange();
    this.show(this.settings);
  }

  #system() {
    const area = this.#area("system", "System prompt", 3);
    area.placeholder = "None";
    return group("System prompt", area);
  }

  #parameters() {
    const { parameters } = this.settings;
    const fields = PARAMETERS.map(({ name, label, min, max, step, hint }) => {
      const value = this.defaults[name];
      const input = element("input", {
        type: "number",
        min,
        max,
        step: "any",
        "data-step": step,
        inputmode: "decimal",
        name,
        placeholder: value === undefined || value === null ? absent(name) : String(value),
        title: hint,
        change: () => {
          if (input.value === "" || !input.validity.valid) delete parameters[name];
          else parameters[name] = Number(input.value);
          this.onChange();
        },
        keydown: (event) => stepped(event, input, value, step),
      });
      if (parameters[name] !== undefined) input.value = parameters[name];
      return element("label", { class: "field" }, element("span", {}, label), input);
    });
    const stop = this.#area("stop", "Stop strings, one a line", 2);
    return group(
      "Parameters",
      element("p", { class: "note" }, "An empty field is the server's default, shown in grey."),
      element("div", { class: "fields" }, ...fields),
      element("label", { class: "stacked" }, element("span", {}, "Stop strings, one a line"), stop),
    );
  }

  #output() {
    const { settings } = this;
    const place = element("div");
    const fill = () => {
      const format = FORMATS.find(({ name }) => name === settings.format);
      if (!format.input) {
        place.replaceChildren();
        return;
      }
      const area = element("textarea", { rows: "6", spellcheck: "false", class: "mono", "aria-label": format.input });
      if (format.isJson && settings.inputs[format.name] === undefined) {
        settings.inputs[format.name] = JSON.stringify(EXAMPLE_SCHEMA, null, 2);
      }
      area.value = settings.inputs[format.name] || "";
      const problem = element("p", { class: "problem", role: "status" });
      const check = () => {
        settings.inputs[format.name] = area.value;
        problem.textContent = format.isJson ? problemOf(area.value) : "";
        this.onChange();
      };
      area.addEventListener("input", check);
      place.replaceChildren(element("p", { class: "note" }, format.input), area, problem);
    };
    const select = element(
      "select",
      {
        "aria-label": "Form of the answer",
        change: () => {
          this.#change("format", select.value);
          fill();
        },
      },
      ...FORMATS.map(({ name, label }) =>
        element("option", { value: name, selected: name === settings.format }, label)
      ),
    );
    fill();
    return group("Form of the answer", select, place);
  }

  #tools() {
    const { settings } = this;
    const area = this.#area("tools", "Tools as JSON", 5);
    area.classList.add("mono");
    area.spellcheck = false;
    area.placeholder = "None";
    const problem = element("p", { class: "problem", role: "status" });
    area.addEventListener("input", () => {
      problem.textContent = area.value.trim() ? problemOf(area.value) : "";
    });
    const example = element("button", {
      type: "button",
      class: "small",
      click: () => {
        area.value = JSON.stringify(EXAMPLE_TOOLS, null, 2);
        area.dispatchEvent(new Event("input"));
      },
    }, "Take an example");
    const select = element(
      "select",
      { change: () => this.#change("toolChoice", select.value) },
      ...CHOICES.map(([value, text]) => element("option", { value, selected: value === settings.toolChoice }, text)),
    );
    return group(
      "Tools",
      area,
      problem,
      element(
        "div",
        { class: "row" },
        example,
        element("label", { class: "inline" }, element("span", {}, "Calls"), select),
      ),
      element("p", { class: "note" }, "You give the results of calls by hand, in the thread."),
    );
  }

  #logprobs() {
    const { settings } = this;
    const box = element("input", {
      type: "checkbox",
      checked: settings.logprobs,
      change: () => this.#change("logprobs", box.checked),
    });
    const number = element("input", {
      type: "number",
      min: "0",
      max: "20",
      value: settings.topLogprobs,
      change: () => {
        if (number.validity.valid && number.value !== "") this.#change("topLogprobs", Number(number.value));
      },
    });
    return group(
      "Log-probabilities",
      element("label", { class: "inline" }, box, element("span", {}, "Ask for them")),
      element("label", { class: "field" }, element("span", {}, "Alternatives of each token"), number),
    );
  }

  #area(name, label, rows) {
    const area = element("textarea", {
      rows: String(rows),
      "aria-label": label,
      input: () => this.#change(name, area.value),
    });
    area.value = this.settings[name];
    return area;
  }
}

function group(title, ...children) {
  return element("fieldset", {}, element("legend", {}, title), ...children);
}

function absent(name) {
  return name === "seed" ? "random" : name === "max_tokens" ? "to the end" : "";
}

// Arrow keys step by what makes sense for the parameter; any number may be typed.
function stepped(event, input, start, step) {
  const direction = { ArrowUp: 1, ArrowDown: -1 }[event.key];
  if (!direction) return;
  event.preventDefault();
  const from = input.value === "" ? start ?? 0 : Number(input.value);
  const digits = (String(step).split(".")[1] || "").length;
  const next = Math.min(
    input.max === "" ? Infinity : Number(input.max),
    Math.max(input.min === "" ? -Infinity : Number(input.min), from + direction * step),
  );
  input.value = next.toFixed(digits);
  input.dispatchEvent(new Event("change"));
}

function problemOf(text) {
  try {
    JSON.parse(text);
    return "";
  } catch (error) {
    return `Not valid JSON: ${error.message}`;
  }
}
