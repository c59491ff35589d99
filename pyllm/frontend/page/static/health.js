// The server's readiness, by its last answer to any part of the page, so that all parts show the same.

import { ask, ServerError } from "./server.js";

// Fires "change" with each answer.
export const healthSignals = new EventTarget();

let current = { state: "", text: "", reason: "" };

export function health() {
  return current;
}

// Reads the body of `/health/ready`, or null where there was no answer.
export function tellHealth(answer) {
  if (!answer) current = { state: "down", text: "no answer", reason: "" };
  else if (answer.status === "ready") current = { state: "ready", text: "ready", reason: "" };
  else current = { state: "waiting", text: "not ready", reason: answer.reason || "" };
  healthSignals.dispatchEvent(new Event("change"));
}

// The probe needs no key, and its answer is one line.
export async function lookHealth() {
  try {
    tellHealth(await (await ask("/health/ready")).json());
  } catch (error) {
    tellHealth(error instanceof ServerError ? error.body || { status: "not ready" } : null);
  }
}
