// Makes elements. Children are nodes or texts, so nothing that a model or a server wrote is read as HTML.

const SVG = "http://www.w3.org/2000/svg";

// An element; of `attributes`, functions become listeners, true an empty attribute, and false, null and undefined none.
export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(key, value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// Strokes on a grid of 24.
const ICONS = {
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M5.5 11.5 12 5l6.5 6.5",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v10H9zM15 9V5H5v10h4",
  check: "M5 12.5l4.5 4.5L19 7.5",
  edit: "M5 19l1-4L16 5l3 3L9 18zM13.5 7.5l3 3",
  retry: "M19 12a7 7 0 1 1-2-4.9M19 4v4h-4",
  code: "M9 7l-5 5 5 5M15 7l5 5-5 5",
  tokens: "M4 6h7v5H4zM13 6h7v5h-7zM4 13h4v5H4zM10 13h10v5H10z",
  sliders: "M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6L6 18",
  trash: "M5 7h14M10 7V5h4v2M7 7l1 12h8l1-12M10.5 11v5M13.5 11v5",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  down: "M6 10l6 6 6-6",
  key: "M14.5 4.5a5 5 0 1 1-4.2 7.7L4 18.5V20h3v-2h2v-2h2l1.2-1.2",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6L7 7" +
    "M17 17l1.4 1.4M5.6 18.4L7 17M17 7l1.4-1.4",
  moon: "M19 14.5A7.5 7.5 0 0 1 9.5 5a7.5 7.5 0 1 0 9.5 9.5z",
  play: "M8 5.5v13l10.5-6.5z",
  attach: "M8 12.5l5.5-5.5a2.8 2.8 0 0 1 4 4l-7.5 7.5a4.6 4.6 0 0 1-6.5-6.5l7-7",
};

export function icon(name) {
  return svg(
    "svg",
    { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" },
    svg("path", { d: ICONS[name] }),
  );
}

// A button with an icon only, which has its name as a label and a tooltip.
export function iconButton(name, label, action, attributes = {}) {
  return element("button", {
    type: "button",
    class: "quiet",
    "aria-label": label,
    title: label,
    click: action,
    ...attributes,
  }, icon(name));
}

// A button that copies what `text` gives, and says so.
export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    const done = await copied(text());
    button.replaceChildren(icon(done ? "check" : "close"));
    announce(done ? "Copied" : "The browser did not let the page copy");
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  });
  return button;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages that did not come by TLS have no clipboard, but may copy a selection.
    const area = element("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

const MAX_ANNOUNCEMENTS = 8;

// Announces a text to screen readers, after earlier ones. Old texts are dropped, so that the page does not grow.
export function announce(text) {
  const log = document.getElementById("announcements");
  log.append(element("p", {}, text));
  while (log.children.length > MAX_ANNOUNCEMENTS) log.firstChild.remove();
}

// Makes the browser save a text as a file.
export function saveFile(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

// Calls `action` once per frame however often it is asked to; the page's hidden tabs do it by a timer.
export function oncePerFrame(action) {
  let isDue = false;
  return () => {
    if (isDue) return;
    isDue = true;
    const run = () => {
      isDue = false;
      action();
    };
    if (document.hidden) setTimeout(run, 250);
    else requestAnimationFrame(run);
  };
}

// A text in place of another, without a new node.
export function write(node, text) {
  if (!node.firstChild) node.append("");
  if (node.firstChild.data !== text) node.firstChild.data = text;
}
