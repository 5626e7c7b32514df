// The keyboard of the page: a map of its keys under `?`.

import { h } from "./dom.js";

/** Key -> what it does, and its address, or the field that it goes to. */
const KEYS = {
  j: ["Jobs", "#/"],
  d: ["Data", "#/data"],
  m: ["Models", "#/models"],
  n: ["Start a job", "#/new"],
  "/": ["Search the jobs", "search"],
  "?": ["This map", null],
};
const OTHERS = {
  "↑ ↓ Home End": "From job to job in the list",
  Esc: "Close a dialog",
};

/** Listen to keys, but not while something is entered or a dialog is open. */
export function listenToKeys() {
  addEventListener("keydown", (event) => {
    const isTyping = event.target.closest?.("input, textarea, select, dialog, [contenteditable]");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
    const [, target] = KEYS[event.key];
    event.preventDefault();
    if (target === null) showKeys();
    else if (target.startsWith("#")) location.hash = target;
    else goToSearch(target);
  });
}

/** Focus the search, on the list of jobs where another view is shown. */
function goToSearch(id) {
  const field = document.getElementById(id);
  if (field) return field.focus();
  location.hash = "#/";
  const appears = new MutationObserver(() => {
    const found = document.getElementById(id);
    if (!found) return;
    appears.disconnect();
    found.focus();
  });
  appears.observe(document.querySelector("main"), { childList: true, subtree: true });
  setTimeout(() => appears.disconnect(), 5000);
}

function showKeys() {
  const entries = [...Object.entries(KEYS).map(([key, [what]]) => [key, what]), ...Object.entries(OTHERS)];
  const rows = entries.map(([key, what]) => h("div", h("dt", h("kbd", key)), h("dd", what)));
  const close = h("button.primary", { type: "button", click: () => dialog.close() }, "Close");
  const dialog = h("dialog", { "aria-labelledby": "keys-title" }, h("h2", { id: "keys-title" }, "Keys"), h("dl", rows), h("div.buttons", close));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
