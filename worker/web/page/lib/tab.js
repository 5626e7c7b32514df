// The browser's tab: its title, its icon by the state of a job, and a notification when a job ends.

import { addressOf } from "./api.js";

const TAB_ICONS = { running: "icon-running", finished: "icon-finished", failed: "icon-failed" };

/** Set the title of the tab, and the icon of a status; without one the plain icon. */
export function setTab(title, status) {
  document.title = title;
  const icon = document.querySelector("link[rel=icon]");
  const address = `page/${TAB_ICONS[status] ?? "icon"}.svg`;
  if (icon.getAttribute("href") !== address) icon.setAttribute("href", address);
}

/** Whether this browser can notify: only on localhost and over https, and where nobody has forbidden it. */
export function canNotify() {
  return "Notification" in window && isSecureContext && Notification.permission !== "denied";
}

/** Ask for the permission to notify; resolves to whether it is there. */
export async function mayNotify() {
  return canNotify() && (await Notification.requestPermission()) === "granted";
}

/** Notify of the end of a job, once for all tabs that show it; a click leads to it. */
export function notify(title, text, id) {
  const shown = new Notification(title, { body: text, tag: id, icon: addressOf("page/icon.svg") });
  shown.onclick = () => {
    window.focus();
    shown.close();
  };
}
