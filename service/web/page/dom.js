// Helpers for the elements of the page.

export const element = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

export const percent = (fraction, digits = 1) => `${(100 * fraction).toFixed(digits)} %`;
