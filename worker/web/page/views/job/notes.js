// What people wrote about a job: its tags, which lead to the jobs that have them, and a note.

import { request } from "../../lib/api.js";
import { fill, h, setText } from "../../lib/dom.js";

const MAX_TAG = 40;
const MAX_NOTE = 4000;

export class Notes {
  #path;
  #refreshNow;
  #shown = "";
  #isReadOnly = true;
  #tags = [];
  #note = "";
  #list = h("ul.tags", { "aria-label": "Tags" });
  #entry = h("input", { maxlength: MAX_TAG, placeholder: "Add a tag", "aria-label": "Add a tag", autocomplete: "off" });
  #text = h("p.written");
  #edit = h("button.quiet", { type: "button", click: () => this.#openNote() });
  #error = h("p.bad", { role: "alert" });
  #area = h("textarea", { rows: 4, maxlength: MAX_NOTE, "aria-label": "Note" });
  #editing = h(
    "form.editing",
    { hidden: true, submit: (event) => this.#saveNote(event) },
    this.#area,
    h("div.buttons", h("button.primary", { type: "submit" }, "Save"), h("button.quiet", { type: "button", click: () => this.#close() }, "Cancel")),
  );
  #adding = h("form.adding", { submit: (event) => this.#add(event) }, this.#entry);
  element = h(
    "section.notes",
    { "aria-label": "Tags and note" },
    h("div.tag-row", this.#list, this.#adding, this.#edit),
    this.#text,
    this.#editing,
    this.#error,
  );

  constructor(path, refreshNow) {
    this.#path = path;
    this.#refreshNow = refreshNow;
  }

  draw({ tags = [], note = "" }, overview) {
    this.#isReadOnly = overview?.read_only ?? true;
    const now = JSON.stringify([tags, note, this.#isReadOnly]);
    if (now === this.#shown) return;
    this.#shown = now;
    this.#tags = tags;
    this.#note = note;
    fill(this.#list, tags.map((tag) => this.#tag(tag)));
    setText(this.#text, note);
    setText(this.#edit, note ? "Edit the note" : "Write a note");
    this.#text.hidden = !note;
    this.#adding.hidden = this.#isReadOnly;
    this.#edit.hidden = this.#isReadOnly || !this.#editing.hidden;
    this.#list.hidden = !tags.length;
    this.element.hidden = this.#isReadOnly && !tags.length && !note;
  }

  #tag(tag) {
    const find = h("a", { href: `#/?${new URLSearchParams({ q: `tag=${tag}` })}`, title: "Jobs with this tag" }, tag);
    const drop = h("button", { type: "button", "aria-label": `Remove the tag ${tag}`, click: () => this.#drop(tag) }, "×");
    return h("li", find, !this.#isReadOnly && drop);
  }

  #drop(tag) {
    this.#save({ tags: this.#tags.filter((one) => one !== tag) });
  }

  async #add(event) {
    event.preventDefault();
    const added = this.#entry.value.split(/[\s,]+/).filter(Boolean);
    if (added.length && (await this.#save({ tags: [...this.#tags, ...added] }))) this.#entry.value = "";
  }

  #openNote() {
    this.#area.value = this.#note;
    this.#editing.hidden = false;
    this.#edit.hidden = true;
    this.#area.focus();
  }

  #close() {
    this.#editing.hidden = true;
    this.#edit.hidden = this.#isReadOnly;
    setText(this.#error, "");
    this.#edit.focus();
  }

  async #saveNote(event) {
    event.preventDefault();
    if (await this.#save({ note: this.#area.value })) this.#close();
  }

  /** Save fields; returns whether that was done. */
  async #save(body) {
    setText(this.#error, "");
    try {
      this.draw(await request(`${this.#path}/notes`, { body }), { read_only: this.#isReadOnly });
    } catch (problem) {
      setText(this.#error, problem.message);
      return false;
    }
    this.#refreshNow();
    return true;
  }
}
