// Dialogs: a native one keeps the focus inside, and Escape closes it.

import { copyButton, element, iconButton } from "./dom.js";

// Shows a dialog until it is closed; gives it.
export function showDialog(title, ...children) {
  const dialog = element(
    "dialog",
    {
      "aria-label": title,
      close: () => dialog.remove(),
      click: (event) => {
        if (event.target === dialog) dialog.close();
      },
    },
    element(
      "div",
      { class: "dialog-head" },
      element("h2", {}, title),
      iconButton("close", "Close", () => dialog.close()),
    ),
    element("div", { class: "dialog-body" }, ...children),
  );
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

// Asks before something that cannot be undone.
export function confirmed(title, text, action) {
  const buttons = element(
    "div",
    { class: "row end" },
    element("button", { type: "button", click: () => dialog.close() }, "Keep"),
    element("button", {
      type: "button",
      class: "danger",
      click: () => {
        dialog.close();
        action();
      },
    }, "Delete"),
  );
  const dialog = showDialog(title, element("p", {}, text), buttons);
  buttons.firstChild.focus();
}

// Asks for a text, which is not empty.
export function asked(title, value, action) {
  const field = element("input", { type: "text", value, "aria-label": title });
  const keep = (event) => {
    event.preventDefault();
    dialog.close();
    if (field.value.trim()) action(field.value.trim());
  };
  const dialog = showDialog(
    title,
    element(
      "form",
      { submit: keep },
      field,
      element("div", { class: "row end" }, element("button", { class: "primary" }, "Save")),
    ),
  );
  field.select();
}

// Shows texts behind tabs, each with a button that copies it. `texts` maps a tab's name to its text.
export function showTexts(title, texts) {
  const names = Object.keys(texts);
  const pre = element("pre", { tabindex: "0", role: "tabpanel", "aria-label": title });
  const tabs = names.map((name) => element("button", { type: "button", role: "tab", click: () => choose(name) }, name));
  let chosen = names[0];
  function choose(name) {
    chosen = name;
    pre.textContent = texts[name];
    tabs.forEach((tab, index) => {
      tab.setAttribute("aria-selected", String(names[index] === name));
      tab.tabIndex = names[index] === name ? 0 : -1;
    });
  }
  const list = element("div", {
    role: "tablist",
    class: "tabs",
    "aria-label": title,
    keydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = (names.indexOf(chosen) + step + names.length) % names.length;
      choose(names[next]);
      tabs[next].focus();
    },
  }, ...tabs);
  choose(chosen);
  return showDialog(
    title,
    element("div", { class: "row between" }, list, copyButton("Copy", () => texts[chosen])),
    pre,
  );
}
