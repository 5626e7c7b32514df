// Elements out of plain text: a string becomes a text node, so that nothing from outside can become a tag.

const SVG = "http://www.w3.org/2000/svg";

/** Return an HTML element; a function among the attributes listens to the event of its name. */
export function h(name, attributes, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Return an SVG element. */
export function svg(name, attributes, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...shown(children));
  return element;
}

/** Put other children into an element. */
export function fill(element, ...children) {
  element.replaceChildren(...shown(children));
}

function shown(children) {
  return children.flat().filter((child) => child !== null && child !== undefined && child !== false);
}

/** Set an element's text, where it is another one: what is selected or read aloud stays as it is. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Put `elements` into `parent` in this order; whoever has the focus keeps it. */
export function arrange(parent, elements) {
  const focused = document.activeElement;
  elements.forEach((element, index) => {
    if (parent.children[index] !== element) parent.insertBefore(element, parent.children[index] ?? null);
  });
  while (parent.children.length > elements.length) parent.lastElementChild.remove();
  if (focused !== document.activeElement && focused.isConnected) focused.focus();
}

/** Return a button that puts `text` on the clipboard, or selects it in `source` where there is no clipboard. */
export function copyButton(text, source) {
  const label = "Copy";
  const button = h("button", { type: "button", class: "quiet", click: copy }, label);
  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(source);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = label), 2000);
  }
  return button;
}

/** Ask in a dialog; `parts` are shown in it. Resolves to whether it was agreed to, after `agreed` was called. */
export function ask(title, parts, { yes, no, danger = false }) {
  const accept = h("button", { type: "submit", class: danger ? "danger" : "primary" }, yes);
  const decline = h("button", { type: "button", class: "quiet", click: () => dialog.close() }, no);
  const form = h(
    "form",
    { submit },
    h("h2", { id: "asked" }, title),
    ...parts,
    h("p", { class: "buttons" }, decline, accept),
  );
  const dialog = h("dialog", { "aria-labelledby": "asked" }, form);
  function submit(event) {
    event.preventDefault();
    dialog.close("yes");
  }
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
  });
}
