// Asks the server: addresses, the reader's key, errors in the server's words. Knows no view.

// The page may be behind a proxy at a path of its own.
const BASE = new URL(".", document.baseURI);
const KEY = "pyllm.key";

export class ServerError extends Error {
  constructor(message, status = 0, details = {}) {
    super(message);
    this.status = status;
    this.param = details.param || null;
    this.code = details.code || null;
    this.body = details.body || null;
  }
}

// Fires "key" when the server wants a key that the page does not have.
export const signals = new EventTarget();

export function address(path) {
  return new URL(path.replace(/^\//, ""), BASE).href;
}

// The key is kept for this tab alone.
export function apiKey() {
  try {
    return sessionStorage.getItem(KEY) || "";
  } catch {
    return "";
  }
}

export function keepKey(key) {
  try {
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
  } catch {
    // Without storage the page has no key.
  }
}

// A successful response; throws a ServerError for any other, and fetch's error without one.
export async function ask(path, { method = "GET", body, headers = {}, signal } = {}) {
  const response = await fetch(address(path), {
    method,
    signal,
    headers: { ...authorization(), ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
    credentials: "omit",
    cache: "no-store",
  });
  if (response.ok) return response;
  const error = await failure(response);
  if (error.status === 401) signals.dispatchEvent(new Event("key"));
  throw error;
}

export async function askJson(path, options) {
  return (await ask(path, options)).json();
}

export function authorization() {
  const key = apiKey();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function failure(response) {
  const text = await response.text();
  try {
    const body = JSON.parse(text);
    if (!body.error) return new ServerError(body.reason || body.status, response.status, { body });
    return new ServerError(body.error.message, response.status, body.error);
  } catch {
    return new ServerError(`The server answers ${response.status}. ${text.slice(0, 200)}`.trim(), response.status);
  }
}
