// The page: its bar, its views, the theme and the key. Each view is made when it is first shown.

import { ApiView } from "./api/api_view.js";
import { ChatView } from "./chat/chat_view.js";
import { showDialog } from "./dialog.js";
import { element, icon, iconButton } from "./dom.js";
import { EngineView } from "./engine/engine_view.js";
import { health, healthSignals, lookHealth } from "./health.js";
import { apiKey, askJson, keepKey, ServerError, signals } from "./server.js";

const THEME = "pyllm.theme";
const MODEL = "pyllm.model";
const HEALTH_EVERY = 10_000; // ms
const VIEWS = {
  chat: { label: "Chat", make: async () => new ChatView(await server()) },
  api: { label: "API", make: async () => new ApiView(await askJson("/openapi.json")) },
  engine: { label: "Engine", make: () => new EngineView() },
};

const modelChoice = element("select", { class: "models", "aria-label": "Model", hidden: true, change: chooseModel });
const place = document.getElementById("view");
const made = {};
let current = null;
let keyDialog = null;

// The page's facts about the server and its model, requested once for each model.
async function server() {
  const { data } = await askJson("/v1/models");
  const isCatalogue = data.some((model) => model.status);
  const model = isCatalogue ? chosenModel(data) : data[0];
  // Of a catalogue, this loads the model.
  const info = await askJson(isCatalogue ? `/model_info?model=${encodeURIComponent(model.id)}` : "/model_info");
  return {
    model: model.id,
    context: info.max_model_len,
    defaults: info.preferred_sampling_params || {},
    whyNoChat: info.chat_template_notice,
  };
}

// The model of a catalogue that was chosen here, else one that is loaded; offers all of them.
function chosenModel(models) {
  const known = remembered(MODEL);
  const chosen = models.find(({ id }) => id === known) ||
    models.find(({ status }) => status.value === "loaded") || models[0];
  modelChoice.replaceChildren(...models.map(({ id }) => element("option", { value: id }, id)));
  modelChoice.value = chosen.id;
  modelChoice.hidden = false;
  return chosen;
}

function chooseModel() {
  remember(MODEL, modelChoice.value);
  made.chat?.hide?.();
  delete made.chat;
  if (current === "chat") showView();
}

// Shows the view that the address names; the rest of the address is the view's own.
async function showView() {
  const [, name, ...rest] = decodeURIComponent(location.hash).split("/");
  const wanted = VIEWS[name] ? name : "chat";
  for (const link of document.querySelectorAll(".views a")) {
    if (link.dataset.view === wanted) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${VIEWS[wanted].label} · pyllm`;
  if (wanted !== current) made[current]?.hide?.();
  current = wanted;
  try {
    if (!made[wanted]) {
      place.replaceChildren(element("p", { class: "note loading", role: "status" }, "Asking the server…"));
      made[wanted] = await VIEWS[wanted].make();
    }
  } catch (error) {
    if (current === wanted) place.replaceChildren(trouble(error));
    return;
  }
  if (current !== wanted) return;
  const view = made[wanted];
  if (place.firstElementChild !== view.root) place.replaceChildren(view.root);
  view.show?.(rest);
  view.focus?.();
}

function trouble(error) {
  const needsKey = error instanceof ServerError && error.status === 401;
  return element(
    "div",
    { class: "trouble" },
    element("h1", {}, needsKey ? "This server wants a key" : "This cannot be shown"),
    element("p", { role: "alert" }, error.message),
    element(
      "button",
      { type: "button", class: "primary", click: needsKey ? askForKey : showView },
      needsKey ? "Give a key" : "Try again",
    ),
  );
}

function askForKey() {
  if (keyDialog?.open) return;
  const field = element("input", { type: "password", autocomplete: "off", id: "key", value: apiKey() });
  const use = (event) => {
    event.preventDefault();
    keepKey(field.value.trim());
    keyDialog.close();
    for (const name of Object.keys(made).filter((each) => each !== "chat")) {
      made[name].hide?.(); // It requests again what the server refused without the key.
      delete made[name];
    }
    showView();
    lookHealth();
  };
  keyDialog = showDialog(
    "API key",
    element(
      "form",
      { submit: use },
      element("label", { class: "stacked" }, element("span", {}, "Key"), field),
      element(
        "p",
        { class: "note" },
        "Kept for this tab, and sent to this server only. Leave it empty where the server wants none.",
      ),
      element("div", { class: "row end" }, element("button", { class: "primary" }, "Use this key")),
    ),
  );
  field.focus();
}

// auto, then the two themes by choice.
function themeButton() {
  const isDark = () =>
    (document.documentElement.dataset.theme ||
      (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const button = iconButton("moon", "Theme", () => {
    setTheme(isDark() ? "light" : "dark");
    draw();
  });
  const draw = () => {
    const label = isDark() ? "Light theme" : "Dark theme";
    button.replaceChildren(icon(isDark() ? "sun" : "moon"));
    button.setAttribute("aria-label", label);
    button.title = label;
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
  return button;
}

// What was chosen on this page before; nothing where the browser keeps nothing.
function remembered(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // Then it lasts as long as the page.
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  remember(THEME, theme);
}

const badge = element(
  "span",
  { class: "health", role: "status" },
  element("span", { class: "dot", "aria-hidden": "true" }),
  element("span", { class: "health-text" }),
);

function showHealth() {
  const { state, text, reason } = health();
  badge.dataset.state = state;
  badge.title = reason;
  if (badge.lastChild.textContent !== text) badge.lastChild.textContent = text;
}

function bar() {
  const links = Object.entries(VIEWS).map(([name, { label }]) =>
    element("a", { href: `#/${name}`, "data-view": name }, label)
  );
  return [
    element(
      "a",
      { class: "brand", href: "#/chat", "aria-label": "pyllm" },
      element("img", { src: "page/icon.svg", alt: "", width: "22", height: "22" }),
      element("span", {}, "pyllm"),
    ),
    element("nav", { class: "views", "aria-label": "Views" }, ...links),
    badge,
    element("div", { class: "tools" }, modelChoice, iconButton("key", "API key", askForKey), themeButton()),
  ];
}

const theme = remembered(THEME);
if (theme) document.documentElement.dataset.theme = theme;
document.getElementById("bar").append(...bar());
signals.addEventListener("key", askForKey);
addEventListener("hashchange", showView);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) lookHealth();
});
setInterval(() => {
  if (!document.hidden) lookHealth();
}, HEALTH_EVERY);
healthSignals.addEventListener("change", showHealth);
lookHealth();
showView();
