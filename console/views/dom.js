/**
 * Builds DOM without markup strings, so that nothing a person wrote can ever be read as HTML.
 *
 * Invariant: text only ever becomes text nodes; no inline handlers or style attributes (the page's policy forbids both).
 * Deliberately does not: diff; views keep their elements and change what has changed.
 */

/** `h('button.primary', {type: 'button', onclick}, 'Send')`; null and false children are left out. */
export function h(selector, properties = {}, ...children) {
  const [tag, ...classes] = selector.split('.');
  const element = document.createElement(tag);
  if (classes.length > 0) element.className = classes.join(' ');
  for (const [name, value] of Object.entries(properties)) set(element, name, value);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function set(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
  else if (name === 'data') Object.assign(element.dataset, value);
  else if (name === 'value') element.value = value;
  else element.setAttribute(name, value === true ? '' : value);
}

/** Changes an element's text only if it differs, so that screen readers are not disturbed. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Shows `items` inside `parent`, keeping the element of every key that is still there. Returns the kept components. */
export function keyed(parent, items, components, create) {
  const next = new Map();
  let cursor = parent.firstElementChild;
  for (const item of items) {
    const known = components.get(item.key);
    const component = known?.type === item.type ? known : Object.assign(create(item), { type: item.type });
    component.update(item);
    next.set(item.key, component);
    if (component.element === cursor) cursor = cursor.nextElementSibling;
    else parent.insertBefore(component.element, cursor);
  }
  const kept = new Set([...next.values()].map((component) => component.element));
  for (const child of [...parent.children]) if (!kept.has(child)) child.remove();
  return next;
}
