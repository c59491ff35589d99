// Every route with its fields, from /openapi.json, and a form that sends requests.

import { inlineNodes } from "../chat/inline_markdown.js";
import { element } from "../dom.js";
import { address, authorization } from "../server.js";

const EXAMPLES = {
  "/v1/completions": { prompt: "The capital of France is", max_tokens: 16 },
  "/v1/chat/completions": { messages: [{ role: "user", content: "Hello!" }], max_tokens: 64, stream: true },
  "/v1/responses": { input: "Hello!", max_output_tokens: 64, stream: true },
  "/v1/embeddings": { input: "Hello!" },
  "/v1/fim/completions": { prompt: "def add(a, b):\n    return ", suffix: "\n", max_tokens: 16 },
  "/infill": { input_prefix: "def add(a, b):\n    return ", input_suffix: "\n", n_predict: 16 },
  "/v1/messages": { messages: [{ role: "user", content: "Hello!" }], max_tokens: 64, stream: true },
  "/v1/messages/count_tokens": { messages: [{ role: "user", content: "Hello!" }] },
  "/tokenize": { prompt: "Hello!", return_token_strs: true },
  "/detokenize": { tokens: [1, 2, 3] },
};
const MAX_DEPTH = 8;
// A route is in the first group with a matching beginning of the path.
const GROUPS = [
  ["Models and answers", ["/v1/", "/infill"]],
  ["Tokens", ["/tokenize", "/detokenize"]],
  ["Administration", ["/admin"]],
  ["Health and figures", ["/health", "/metrics", "/load", "/version"]],
  ["About the server", ["/"]],
];

export class ApiView {
  constructor(description) {
    this.schemas = description.components.schemas;
    const groups = GROUPS.map(([title]) =>
      element("section", { class: "group", "aria-label": title }, element("h2", {}, title))
    );
    const routes = Object.entries(description.paths).flatMap(([path, methods]) => {
      const group = groups[GROUPS.findIndex(([, starts]) => starts.some((start) => path.startsWith(start)))];
      const made = Object.entries(methods).map(([method, operation]) => this.#route(path, method, operation));
      group.append(...made);
      return made;
    });
    this.filter = element("input", {
      type: "search",
      "aria-label": "Find a route",
      placeholder: "Find a route",
      input: () => this.#find(routes),
    });
    this.count = element("span", { class: "note", role: "status" }, `${routes.length} routes`);
    this.root = element(
      "div",
      { class: "api" },
      element(
        "div",
        { class: "api-head" },
        element("h1", {}, "HTTP API"),
        element("span", { class: "note" }, `version ${description.info.version}`),
        element("a", { href: address("/openapi.json") }, "openapi.json"),
        this.filter,
        this.count,
      ),
      element("div", { class: "routes" }, ...groups.filter((group) => group.children.length > 1)),
    );
  }

  // The rest of an address is a method and a path: its route is opened.
  show(rest) {
    const [method, ...path] = rest;
    const route = method && this.root.querySelector(`[data-route="${CSS.escape(`${method} /${path.join("/")}`)}"]`);
    if (!route) return;
    route.open = true;
    route.scrollIntoView();
  }

  #find(routes) {
    const text = this.filter.value.toLowerCase();
    for (const route of routes) route.hidden = !route.firstChild.textContent.toLowerCase().includes(text);
    for (const group of this.root.querySelectorAll(".group")) {
      group.hidden = !group.querySelector(".route:not([hidden])");
    }
    this.count.textContent = `${routes.filter((route) => !route.hidden).length} routes`;
  }

  #route(path, method, operation) {
    const body = element("div", { class: "route-body" });
    return element(
      "details",
      {
        class: "route",
        "data-route": `${method} ${path}`,
        toggle: () => {
          if (!body.firstChild) this.#fill(body, path, method, operation);
        },
      },
      element(
        "summary",
        {},
        element("code", { class: `method ${method}` }, method.toUpperCase()),
        element("code", { class: "path" }, path),
        element("span", { class: "route-summary" }, operation.summary || ""),
      ),
      body,
    );
  }

  #fill(body, path, method, operation) {
    body.append(...trial(path, method, operation));
    if (operation.requestBody) {
      const [, schema] = this.#referred(operation.requestBody.content["application/json"].schema);
      body.append(
        element("h3", {}, "Request"),
        ...(schema.properties ? this.#fields(schema, 0) : this.#described(schema, 0)),
      );
    }
    const rows = Object.entries(operation.responses).map(([status, response]) => {
      const kinds = Object.entries(response.content || {}).map(([type, { schema }]) =>
        element("p", {}, element("code", {}, type), " ", ...this.#described(schema, 0))
      );
      return element(
        "tr",
        {},
        element("td", {}, element("code", {}, status)),
        element("td", {}, response.description || "", ...kinds),
      );
    });
    body.append(
      element("h3", {}, "Answers"),
      element("table", {}, element("tbody", {}, ...rows)),
    );
  }

  #referred(schema) {
    const name = schema.$ref && schema.$ref.split("/").pop();
    return name ? [name, this.schemas[name]] : ["", schema];
  }

  // A schema as a short text, with the structs in it to be opened.
  #described(schema, depth) {
    const [name, target] = this.#referred(schema);
    if (target.properties && depth < MAX_DEPTH) {
      const details = element("details", {
        class: "type",
        toggle: () => {
          if (details.open && details.children.length === 1) details.append(...this.#fields(target, depth + 1));
        },
      }, element("summary", {}, name || "object"));
      return [details];
    }
    const variants = target.anyOf || target.oneOf;
    if (variants) {
      const shown = variants.filter((each) => each.type !== "null");
      return shown.flatMap((each, index) => [...(index ? [" or "] : []), ...this.#described(each, depth)]);
    }
    if (target.enum) return [target.enum.map((each) => JSON.stringify(each)).join(" | ")];
    if ("const" in target) return [JSON.stringify(target.const)];
    if (target.type === "array") return ["list of ", ...this.#described(target.items || {}, depth)];
    return [target.type || "anything"];
  }

  #fields(schema, depth) {
    const required = new Set(schema.required || []);
    // Required fields come first, fields without effect and refused ones last.
    const rank = ([name, { description = "" }]) =>
      required.has(name) ? 0 : /^(Not supported|Accepted without effect)/.test(description) ? 2 : 1;
    const sorted = Object.entries(schema.properties).sort((one, other) => rank(one) - rank(other));
    const rows = sorted.map(([name, field]) => {
      const note = field.description || "";
      const label = element(
        "td",
        {},
        element("code", {}, name),
        required.has(name) ? element("span", { class: "required" }, " required") : null,
      );
      const text = element("td", {}, ...this.#described(field, depth), range(field));
      if (field.default !== undefined && field.default !== null) text.append(` = ${JSON.stringify(field.default)}`);
      if (note) text.append(element("p", { class: "note" }, ...inlineNodes(note)));
      return element("tr", {}, label, text);
    });
    return [
      schema.description ? element("p", {}, ...inlineNodes(schema.description)) : "",
      element("table", {}, element("tbody", {}, ...rows)),
    ];
  }
}

// The range of a number, as text; empty without one.
function range(field) {
  const bounds = (field.anyOf || [field]).find((each) => "minimum" in each || "exclusiveMinimum" in each);
  if (!bounds) return "";
  const least = "minimum" in bounds ? `from ${bounds.minimum}` : `above ${bounds.exclusiveMinimum}`;
  return "maximum" in bounds ? ` ${least} to ${bounds.maximum}` : ` ${least}`;
}

function trial(path, method, operation) {
  const inputs = {};
  const fields = (operation.parameters || []).map(({ name }) => {
    inputs[name] = element("input", {});
    return element("label", { class: "field" }, element("span", {}, name), inputs[name]);
  });
  const area = operation.requestBody &&
    element("textarea", { class: "mono", spellcheck: "false", rows: "8", "aria-label": "Request body" });
  if (area) area.value = JSON.stringify(EXAMPLES[path] || {}, null, 2);
  const status = element("code", { role: "status" });
  const answer = element("pre", { tabindex: "0", role: "region", "aria-label": `Answer of ${path}`, hidden: true });
  let running = new AbortController();
  const form = element(
    "form",
    {
      class: "trial",
      submit: (event) => {
        event.preventDefault();
        running.abort();
        running = new AbortController();
        send(method.toUpperCase(), path, { inputs, body: area?.value }, { status, answer }, running.signal);
      },
    },
    ...fields,
    area,
    element(
      "div",
      { class: "row" },
      element("button", { class: "primary" }, "Send"),
      element("button", { type: "button", click: () => running.abort() }, "Stop"),
      status,
    ),
    answer,
  );
  return [element("h3", {}, "Try it"), form];
}

async function send(method, path, { inputs, body }, { status, answer }, signal) {
  const headers = { ...authorization(), ...(body === undefined ? {} : { "Content-Type": "application/json" }) };
  const target = path.replace(
    /{(\w+)(?::\w+)?}/g,
    (_, name) => inputs[name].value.split("/").map(encodeURIComponent).join("/"),
  );
  status.textContent = "…";
  answer.textContent = "";
  answer.hidden = false;
  try {
    const response = await fetch(address(target), { method, headers, body, signal, credentials: "omit" });
    const type = response.headers.get("content-type") || "";
    status.textContent = `${response.status} ${type}`;
    if (!response.body) return;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) answer.append(part.value);
    if (type.startsWith("application/json")) {
      answer.textContent = JSON.stringify(JSON.parse(answer.textContent), null, 2);
    }
  } catch (error) {
    status.textContent = signal.aborted ? "stopped" : String(error);
  }
}
