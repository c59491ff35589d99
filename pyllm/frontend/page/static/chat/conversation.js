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
  return [...first, ...messages.map(apiMessage)];
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

function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > TITLE_LENGTH ? `${line.slice(0, TITLE_LENGTH - 1)}…` : line || "Conversation";
}

function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(9));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
