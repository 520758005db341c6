// The colours of the style sheet for what is drawn on a canvas. Every question to the style sheet costs a round of
// styling, so each is asked once, and again when the theme changes.

const colors = new Map();
const listeners = [];

export function color(name) {
  let found = colors.get(name);
  if (!found) colors.set(name, (found = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || "#888"));
  return found;
}

export function onTheme(listener) { listeners.push(listener); }

function changed() {
  colors.clear();
  for (const listener of listeners) listener();
}

export function showTheme(name) {
  document.documentElement.dataset.theme = name;
  changed();
}

const dark = matchMedia("(prefers-color-scheme: dark)");
dark.addEventListener("change", changed);

export function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : dark.matches;
}
