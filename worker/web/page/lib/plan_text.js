// A plan in the words of the service: of each field, and which of them its sentence has.

/** The plan of an event as `words` (field -> text) and `mentioned` (fields of its sentence), or a change of both. */
export function planOf(event, before = { words: {}, mentioned: [] }) {
  const { words = {}, mentioned = before.mentioned } = event.plan_words ?? {};
  return { words: { ...before.words, ...words }, mentioned };
}

/** A plan as a sentence. */
export function planSentence({ words, mentioned }) {
  const parts = mentioned.map((name) => words[name]);
  return `Trains with ${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}.`;
}

/** The fields in which a plan differs from the one before. */
export function changes(before, after) {
  const names = Object.keys(after.words).filter((name) => after.words[name] !== before.words[name]);
  return names.map((name) => after.words[name]).join(", ") || "no change";
}
