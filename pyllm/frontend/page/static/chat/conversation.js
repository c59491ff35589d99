// A conversation as a tree of messages: an edit or another try is a branch. Knows neither views nor the server.

const ROOT = "root";
const TITLE_LENGTH = 60;

export function newConversation(settings) {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, settings, messages: {}, children: {}, chosen: {} };
}

// Adds a message after another one, null for the beginning, and shows it.
export function addMessage(conversation, parent, fields) {
  const message = { id: newId(), parent: parent || ROOT, created: Date.now(), content: "", ...fields };
  conversation.messages[message.id] = message;
  (conversation.children[message.parent] ||= []).push(message.id);
  choose(conversation, message.id);
  if (!conversation.title && message.role === "user") conversation.title = titleOf(message.content);
  return message;
}

// The messages that are shown, in order.
export function shownMessages(conversation) {
  const shown = [];
  for (let id = conversation.chosen[ROOT]; id; id = conversation.chosen[id]) shown.push(conversation.messages[id]);
  return shown;
}

// The messages up to one, in order.
export function messagesUpTo(conversation, id) {
  const messages = [];
  for (let message = conversation.messages[id]; message; message = conversation.messages[message.parent]) {
    messages.unshift(message);
  }
  return messages;
}

// The messages in one place of the conversation: the branches to choose from.
export function siblings(conversation, message) {
  return conversation.children[message.parent];
}

// Shows the branch of a message.
export function choose(conversation, id) {
  conversation.chosen[conversation.messages[id].parent] = id;
  conversation.updated = Date.now();
}

// The parent for a sibling of the message, as `addMessage` takes it.
export function parentOf(message) {
  return message.parent === ROOT ? null : message.parent;
}

// The messages as the API takes them.
export function apiMessages(messages, system) {
  const first = system.trim() ? [{ role: "system", content: system }] : [];
  return [...first, ...messages.filter(hasSomething).map(apiMessage)];
}

// An answer that was stopped before its first token has no text.
function hasSomething({ role, content, reasoning, toolCalls }) {
  return role !== "assistant" || Boolean(content || reasoning || toolCalls?.length);
}

function apiMessage(message) {
  if (message.role === "tool") return { role: "tool", tool_call_id: message.toolCallId, content: message.content };
  if (message.role === "user") return { role: "user", content: message.content };
  const made = { role: "assistant", content: message.content };
  if (message.reasoning) made.reasoning = message.reasoning;
  if (message.toolCalls?.length) {
    made.tool_calls = message.toolCalls.map(({ id, name, arguments: text }) => ({
      id,
      type: "function",
      function: { name, arguments: text },
    }));
    if (!made.content) made.content = null;
  }
  return made;
}

// A file of all conversations, as `conversationsOf` reads it.
export function asFile(conversations) {
  return JSON.stringify({ pyllm_conversations: 1, conversations }, null, 1);
}

// The conversations of a file that are not kept yet: those of `asFile`, or the one of `pyllm chat`'s /save, which is a
// request. `settingsOf` gives the settings of a request, and those without one. `known` has the time of the last change
// of each kept conversation, by id; a conversation that was changed since gets another id, so that nothing is
// overwritten. Throws an Error that says what is wrong.
export function conversationsOf(text, settingsOf, known = new Map()) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("it is not JSON");
  }
  if (Array.isArray(file?.messages)) return [ofRequest(file, settingsOf(file))];
  if (!Array.isArray(file?.conversations)) throw new Error("it has neither `conversations` nor `messages`");
  const conversations = file.conversations.map((each, index) => {
    if (!isConversation(each)) throw new Error(`its conversation ${index + 1} is damaged`);
    const { id, title, created, updated, messages, children, chosen } = each;
    const own = { ...settingsOf(), ...each.settings };
    return { id, title: String(title || ""), created, updated, settings: own, messages, children, chosen };
  });
  return conversations
    .filter(({ id, updated }) => known.get(id) !== updated)
    .map((each) => (known.has(each.id) ? { ...each, id: newId() } : each));
}

function ofRequest({ messages }, settings) {
  const conversation = newConversation(settings);
  let parent = null;
  for (const { role, content } of messages) {
    if (typeof content !== "string") throw new Error("a message's content is no text");
    if (role === "system") conversation.settings.system = content;
    else if (role === "user" || role === "assistant") {
      parent = addMessage(conversation, parent, { role, content, state: "done" }).id;
    } else throw new Error(`a message has the role ${JSON.stringify(role)}`);
  }
  return conversation;
}

function isConversation(each) {
  const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
  const isText = (value) => typeof value === "string";
  const isCall = (call) => isObject(call) && ["id", "name", "arguments"].every((name) => isText(call[name]));
  if (!["messages", "children", "chosen"].every((name) => isObject(each?.[name]))) return false;
  const { messages, children, chosen } = each;
  const isThere = (id) => Object.hasOwn(messages, id);
  return isText(each.id) && Number.isFinite(each.created) && Number.isFinite(each.updated) &&
    Object.entries(messages).every(([id, message]) =>
      message?.id === id && id !== ROOT && ["user", "assistant", "tool"].includes(message.role) &&
      isText(message.content) && isText(message.reasoning ?? "") &&
      (message.toolCalls === undefined || (Array.isArray(message.toolCalls) && message.toolCalls.every(isCall))) &&
      (message.parent === ROOT || isThere(message.parent)) &&
      children[message.parent]?.includes(id)
    ) &&
    Object.values(children).every((ids) => Array.isArray(ids) && ids.every(isThere)) &&
    Object.entries(chosen).every(([parent, id]) => isThere(id) && messages[id].parent === parent);
}

function titleOf(text) {
  const line = text.trim().replace(/^(?:[#>*-]+\s+)+/, "").split("\n")[0].trim();
  return line.length > TITLE_LENGTH ? `${line.slice(0, TITLE_LENGTH - 1)}…` : line || "Conversation";
}

function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(9));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
