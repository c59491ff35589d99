// A conversation's settings as a request of the API, and the request as a program. Knows no view.

import { apiMessages } from "./conversation.js";

// The parameters that the page offers, with the ranges that the server takes.
export const PARAMETERS = [
  { name: "temperature", label: "Temperature", min: 0, step: 0.1 },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: 0.05 },
  { name: "top_k", label: "Top k", min: -1, step: 1, hint: "0: all" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01 },
  { name: "max_tokens", label: "Max tokens", min: 1, step: 1 },
  { name: "seed", label: "Seed", step: 1 },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1 },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1 },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, step: 0.05 },
];

export const FORMATS = [
  { name: "text", label: "Text" },
  { name: "json_object", label: "Any JSON object" },
  { name: "json_schema", label: "JSON schema", input: "The schema", isJson: true },
  { name: "regex", label: "Regular expression", input: "The expression" },
  { name: "choice", label: "One of several texts", input: "The texts, one a line" },
];

export const EXAMPLE_SCHEMA = {
  type: "object",
  properties: { name: { type: "string" }, population: { type: "integer" } },
  required: ["name", "population"],
  additionalProperties: false,
};
export const EXAMPLE_TOOLS = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather of a city",
      parameters: {
        type: "object",
        properties: { city: { type: "string" } },
        required: ["city"],
        additionalProperties: false,
      },
    },
  },
];

export const CHAT_PATH = "/v1/chat/completions";

export function newSettings() {
  return {
    system: "",
    parameters: {},
    stop: "",
    format: "text",
    inputs: {},
    tools: "",
    toolChoice: "auto",
    logprobs: false,
    topLogprobs: 5,
  };
}

// The body of the request that answers the last of the messages.
// Throws an Error that names the setting where a schema or the tools are no JSON.
export function requestBody(messages, settings, model) {
  const body = { model, messages: apiMessages(messages, settings.system), ...settings.parameters };
  const stop = settings.stop.split("\n").filter((line) => line !== "");
  if (stop.length) body.stop = stop;
  Object.assign(body, constraint(settings));
  if (settings.tools.trim()) {
    body.tools = parsed(settings.tools, "tools");
    if (settings.toolChoice !== "auto") body.tool_choice = settings.toolChoice;
  }
  if (settings.logprobs) Object.assign(body, { logprobs: true, top_logprobs: settings.topLogprobs });
  body.stream = true;
  body.stream_options = { include_usage: true, continuous_usage_stats: true };
  return body;
}

// The settings of a request, as far as the page has them; without a request, those of a new conversation.
// Throws an Error for a stop string that the page cannot show.
export function settingsOf(body = {}) {
  const settings = newSettings();
  for (const { name } of PARAMETERS) {
    if (typeof body[name] === "number") settings.parameters[name] = body[name];
  }
  const stop = [body.stop ?? []].flat();
  if (stop.some((text) => text.includes("\n"))) {
    throw new Error("a stop string has several lines, and the page has one a line: take it out of `stop`");
  }
  settings.stop = stop.join("\n");
  if (body.tools?.length) settings.tools = JSON.stringify(body.tools, null, 2);
  if (typeof body.tool_choice === "string") settings.toolChoice = body.tool_choice;
  if (body.logprobs) settings.logprobs = true;
  if (body.top_logprobs) settings.topLogprobs = body.top_logprobs;
  return Object.assign(settings, formatOf(body));
}

function formatOf({ response_format: form, structured_outputs: outputs }) {
  if (form?.type === "json_object") return { format: "json_object" };
  if (form?.type === "json_schema") {
    return { format: "json_schema", inputs: { json_schema: JSON.stringify(form.json_schema?.schema, null, 2) } };
  }
  if (outputs?.regex) return { format: "regex", inputs: { regex: outputs.regex } };
  if (outputs?.choice) return { format: "choice", inputs: { choice: outputs.choice.join("\n") } };
  return {};
}

function constraint({ format, inputs }) {
  const input = inputs[format] || "";
  switch (format) {
    case "json_object":
      return { response_format: { type: "json_object" } };
    case "json_schema":
      return {
        response_format: { type: "json_schema", json_schema: { name: "answer", schema: parsed(input, "JSON schema") } },
      };
    case "regex":
      return { structured_outputs: { regex: input } };
    case "choice":
      return { structured_outputs: { choice: input.split("\n").filter((line) => line !== "") } };
    default:
      return {};
  }
}

function parsed(text, name) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The setting "${name}" is not valid JSON: ${error.message}`);
  }
}

export function asCurl(body, url, needsKey) {
  const text = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  const key = needsKey ? ' \\\n    -H "Authorization: Bearer $PYLLM_API_KEY"' : "";
  return `curl -N ${url} \\\n    -H 'Content-Type: application/json'${key} \\\n    -d '${text}'\n`;
}

// Fields that OpenAI's library takes as they are; others go into `extra_body`.
const OPENAI_FIELDS = new Set([
  "model",
  "messages",
  "temperature",
  "top_p",
  "max_tokens",
  "seed",
  "presence_penalty",
  "frequency_penalty",
  "stop",
  "response_format",
  "tools",
  "tool_choice",
  "logprobs",
  "top_logprobs",
  "stream",
]);

export function asPython(body, base, needsKey) {
  const own = {};
  const extra = {};
  for (const [name, value] of Object.entries(body)) {
    if (name === "stream_options") own[name] = { include_usage: true };
    else (OPENAI_FIELDS.has(name) ? own : extra)[name] = value;
  }
  if (Object.keys(extra).length) own.extra_body = extra;
  const fields = Object.entries(own).map(([name, value]) => `    ${name}=${pythonLiteral(value, 4)},\n`).join("");
  const key = needsKey ? 'os.environ["PYLLM_API_KEY"]' : '"none"';
  return `${needsKey ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url="${base}", api_key=${key})
stream = client.chat.completions.create(
${fields})
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
`;
}

function pythonLiteral(value, indent) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "string") return pythonString(value);
  if (typeof value !== "object") return String(value);
  const isList = Array.isArray(value);
  const parts = isList
    ? value.map((each) => pythonLiteral(each, indent + 4))
    : Object.entries(value).map(([name, each]) => `${pythonString(name)}: ${pythonLiteral(each, indent + 4)}`);
  const [open, close] = isList ? "[]" : "{}";
  const line = `${open}${parts.join(", ")}${close}`;
  if (line.length + indent < 100 && !line.includes("\n")) return line;
  const margin = " ".repeat(indent + 4);
  return `${open}\n${parts.map((part) => `${margin}${part},\n`).join("")}${" ".repeat(indent)}${close}`;
}

// JSON's escapes are Python's, too; only characters of two surrogates must be written as they are.
function pythonString(text) {
  return JSON.stringify(text);
}
