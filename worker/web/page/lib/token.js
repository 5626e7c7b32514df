// The API token of this tab, and the dialog that asks for it.

import { confirmDialog, h } from "./dom.js";

const KEY = "preflight token"; // in sessionStorage: an address or a cookie would be kept elsewhere
let pending = null; // one dialog, however many requests are refused

let kept = null; // where the browser stores nothing

/** Return the token of this tab, or null. */
export function token() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return kept;
  }
}

function keep(given) {
  kept = given;
  try {
    sessionStorage.setItem(KEY, given);
  } catch {
    // for as long as the page is open
  }
}

/** Ask for a token; resolves to whether one was entered. `refused` is the token that was not accepted. */
export function requestToken(refused) {
  pending ??= askForToken(refused).finally(() => (pending = null));
  return pending;
}

async function askForToken(refused) {
  const input = h("input", { type: "password", id: "token", required: true, pattern: "[!-~]+", autocomplete: "off" });
  const reason = refused ? "This token was not accepted. " : "This service needs a token. ";
  const variable = h("code", "PREFLIGHT_API_TOKEN");
  const parts = [
    h("p", reason, "It is the value of ", variable, "; it is kept until this tab is closed."),
    h("label", { for: "token" }, "Token"),
    input,
  ];
  if (!(await confirmDialog("A token is needed", parts, { yes: "Enter", no: "Not now" }))) return false;
  keep(input.value.trim());
  return true;
}
