// Keeps conversations in the browser's database, within limits of number and characters; the oldest are deleted first.

const NAME = "pyllm";
const VERSION = 1;
const MAX_CONVERSATIONS = 200;
const MAX_CHARACTERS = 20e6;
const PATIENCE = 5000; // ms

let opening = null;
// The store if the browser keeps nothing for this page: it lasts as long as the page.
const unkept = new Map();

// The conversations without their messages, the latest first.
export async function summaries() {
  const all = await inStores(
    "readonly",
    ({ summaries: store }) => store.getAll(),
    () => [...unkept.values()].map(summaryOf),
  );
  return all.sort((one, other) => other.updated - one.updated);
}

export function load(id) {
  return inStores("readonly", ({ conversations }) => conversations.get(id), () => unkept.get(id));
}

// All conversations, with their messages.
export function all() {
  return inStores("readonly", ({ conversations }) => conversations.getAll(), () => [...unkept.values()]);
}

// The ids of the conversations that have a text in their title or in a message, in upper or lower case.
export async function search(text) {
  const wanted = text.toLowerCase();
  const has = (each) => each.toLowerCase().includes(wanted);
  const found = (await all()).filter(({ title, messages }) =>
    has(title) || Object.values(messages).some(({ content }) => has(content))
  );
  return new Set(found.map(({ id }) => id));
}

export async function save(conversation) {
  const text = JSON.stringify(conversation);
  const copy = JSON.parse(text);
  await inStores("readwrite", ({ conversations, summaries: store }) => {
    conversations.put(copy);
    return store.put({ ...summaryOf(copy), characters: text.length });
  }, () => unkept.set(copy.id, copy));
  await forgetOldest(conversation.id);
}

// Throws an Error if saving so many more would delete others.
export async function checkRoom(conversations) {
  const kept = await summaries();
  const count = kept.length + conversations.length;
  const sizes = [
    ...kept.map(({ characters }) => characters || 0),
    ...conversations.map((each) => JSON.stringify(each).length),
  ];
  const characters = sizes.reduce((sum, size) => sum + size, 0);
  if (count <= MAX_CONVERSATIONS && characters <= MAX_CHARACTERS) return;
  throw new Error(
    `there is room for ${MAX_CONVERSATIONS} conversations with ${MAX_CHARACTERS} characters in all, and there would ` +
      `be ${count} with ${characters}; delete some first`,
  );
}

export function remove(id) {
  return inStores("readwrite", ({ conversations, summaries: store }) => {
    conversations.delete(id);
    return store.delete(id);
  }, () => unkept.delete(id));
}

async function forgetOldest(keep) {
  const all = await summaries();
  const others = all.filter(({ id }) => id !== keep);
  let characters = all.find(({ id }) => id === keep)?.characters || 0;
  let count = 1;
  for (const summary of others) {
    characters += summary.characters || 0;
    count += 1;
    if (count > MAX_CONVERSATIONS || characters > MAX_CHARACTERS) await remove(summary.id);
  }
}

function summaryOf({ id, title, created, updated }) {
  return { id, title, created, updated };
}

// Runs an action on both stores in one transaction; `otherwise` where there is no database.
async function inStores(mode, action, otherwise) {
  let database;
  try {
    database = await (opening ||= open());
  } catch {
    opening = null; // The next call tries again.
    return otherwise();
  }
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(["conversations", "summaries"], mode);
    const stores = {
      conversations: transaction.objectStore("conversations"),
      summaries: transaction.objectStore("summaries"),
    };
    const request = action(stores);
    transaction.oncomplete = () => resolve(request.result);
    transaction.onabort = () => reject(transaction.error);
  });
}

function open() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("conversations", { keyPath: "id" });
      request.result.createObjectStore("summaries", { keyPath: "id" });
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("another tab holds an older version of the page's database"));
    // Without an answer the page would keep nothing, and report no error.
    setTimeout(() => reject(new Error("the browser's database does not answer")), PATIENCE);
    // A page that is left but kept for "back" must not hold the database, which the next page waits for.
    addEventListener("pagehide", () => leave(request), { once: true });
  });
}

function leave(request) {
  opening = null;
  if (request.readyState === "done") request.result?.close();
  else request.transaction?.abort();
}
