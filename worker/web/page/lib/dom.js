// DOM elements from plain text: a string becomes a text node, so that input never becomes markup.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

/** Return an HTML element: h("p.note", { id: "a", click: listener }, ...children). */
export function h(name, ...content) {
  const [tag, ...classes] = name.split(".");
  return build(document.createElement(tag), classes, content);
}

/** Return an SVG element, as `h` does. */
export function svg(name, ...content) {
  const [tag, ...classes] = name.split(".");
  return build(document.createElementNS(SVG_NAMESPACE, tag), classes, content);
}

function build(element, classes, content) {
  const attributes = content[0]?.constructor === Object ? content.shift() : {};
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...flatten(content));
  return element;
}

/** Replace the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...flatten(children));
}

function flatten(children) {
  return children.flat().filter((child) => child !== null && child !== undefined && child !== false);
}

/** Set an element's text only where it changed: a selection and a screen reader are not disturbed. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Put `elements` into `parent` in this order, without moving the focus. */
export function reorder(parent, elements) {
  const focused = document.activeElement;
  elements.forEach((element, index) => {
    if (parent.children[index] !== element) parent.insertBefore(element, parent.children[index] ?? null);
  });
  while (parent.children.length > elements.length) parent.lastElementChild.remove();
  if (focused !== document.activeElement && focused.isConnected) focused.focus();
}

/** Return a button that copies `text`, or what it returns; without a clipboard it selects `source` instead. */
export function copyButton(text, source, label = "Copy") {
  const button = h("button.quiet", { type: "button", click: copy }, label);
  async function copy() {
    try {
      await navigator.clipboard.writeText(typeof text === "function" ? text() : text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(source);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = label), 2000);
  }
  return button;
}

/** Show a modal dialog; resolves to whether it was accepted. */
export function confirmDialog(title, parts, { yes, no, danger = false }) {
  const accept = h(danger ? "button.danger" : "button.primary", { type: "submit" }, yes);
  const decline = h("button.quiet", { type: "button", click: () => dialog.close() }, no);
  const heading = h("h2", { id: "dialog-title" }, title);
  const form = h("form", { submit }, heading, ...parts, h("div.buttons", decline, accept));
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, form);
  function submit(event) {
    event.preventDefault();
    dialog.close("yes");
  }
  const leave = () => dialog.close();
  addEventListener("hashchange", leave); // its question is about a page that is left
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      removeEventListener("hashchange", leave);
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
  });
}

/** Return a text with what stands in backquotes as code. */
export function marked(text) {
  return text.split("\u0060").map((part, index) => (index % 2 ? h("code", part) : part));
}
