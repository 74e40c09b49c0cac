/**
 * The console's few drawings, as SVG paths on a 20 × 20 grid.
 *
 * Invariant: decorative only; whatever an icon means is also said in words (a label or a title).
 * Deliberately does not: load anything.
 */
const PATHS = {
  plus: 'M10 4v12M4 10h12',
  back: 'M12.5 4.5 7 10l5.5 5.5',
  send: 'M10 16V4.5M5 9.5 10 4.5l5 5',
  down: 'M10 4v11.5M5 10.5l5 5 5-5',
  people: 'M7.5 9.5a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM2 16.5c.4-3 2.6-4.8 5.5-4.8s5.1 1.8 5.5 4.8M13 3.9a2.8 2.8 0 0 1 0 5.3M15 12.2c1.7.7 2.7 2.2 3 4.3',
  leave: 'M12 3.5H5.5A1.5 1.5 0 0 0 4 5v10a1.5 1.5 0 0 0 1.5 1.5H12M9 10h8m-3-3 3 3-3 3',
  spark: 'M10 2.5c.6 4.6 2.9 6.9 7.5 7.5-4.6.6-6.9 2.9-7.5 7.5-.6-4.6-2.9-6.9-7.5-7.5 4.6-.6 6.9-2.9 7.5-7.5Z',
  hash: 'M7.8 3.5 6.2 16.5M13.8 3.5l-1.6 13M3.8 7.5h13M3.2 12.5h13',
  tool: 'M12.9 3.2a4.2 4.2 0 0 0-4.7 5.9l-5 5a1.7 1.7 0 0 0 2.5 2.5l5-5a4.2 4.2 0 0 0 5.9-4.7l-2.5 2.4-2.6-.9-.9-2.6 2.3-2.6Z',
  check: 'm4.5 10.5 3.8 3.8 7.2-8.3',
  clock: 'M10 17a7 7 0 1 0 0-14 7 7 0 0 0 0 14ZM10 6v4.2l2.8 1.7',
  alert: 'M10 6.5v4.5M10 13.6v.1M10 17a7 7 0 1 0 0-14 7 7 0 0 0 0 14Z',
  chevron: 'm7.5 5 5 5-5 5',
  hand: 'M10 13.6v.1M7.6 7.4a2.5 2.5 0 1 1 3.6 2.5c-.8.4-1.2.9-1.2 1.7M10 17a7 7 0 1 0 0-14 7 7 0 0 0 0 14Z',
  stop: 'M6.5 6.5h7v7h-7Z',
  discard: 'M4.5 6h11M8 6V4h4v2M6 6l.7 10h6.6L14 6M8.6 8.8v4.4M11.4 8.8v4.4',
  again: 'M15.5 10a5.5 5.5 0 1 1-1.7-4M14.5 3v3.4h-3.4',
  hop: 'M3.5 10h12m-3.5-3.5 3.5 3.5-3.5 3.5',
  nodes: 'M4 3.5h12v5H4zM4 11.5h12v5H4zM7 6h.1M7 14h.1',
  link: 'M8.5 11.5a3.2 3.2 0 0 0 4.7.2l2.3-2.4a3.2 3.2 0 0 0-4.6-4.6L9.8 5.9M11.5 8.5a3.2 3.2 0 0 0-4.7-.2l-2.3 2.4a3.2 3.2 0 0 0 4.6 4.6l1.1-1.2',
};

const SVG = 'http://www.w3.org/2000/svg';

export function icon(name) {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', '0 0 20 20');
  svg.setAttribute('class', `icon icon-${name}`);
  svg.setAttribute('aria-hidden', 'true');
  const path = document.createElementNS(SVG, 'path');
  path.setAttribute('d', PATHS[name]);
  svg.append(path);
  return svg;
}

/** The mark: a shell's spiral. */
export function mark() {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', '0 0 32 32');
  svg.setAttribute('class', 'mark');
  svg.setAttribute('aria-hidden', 'true');
  const d = 'M28 15.5C28 8.6 22.6 4 16 4S4 9 4 16s5.2 12 12 12c5.4 0 9-3.6 9-8.3 0-4.2-3.2-7.2-7.3-7.2-3.5 0-6.1 2.4-6.1 5.5 0 2.7 2 4.6 4.6 4.6 2.1 0 3.6-1.4 3.6-3.2';
  const path = document.createElementNS(SVG, 'path');
  path.setAttribute('d', d);
  svg.append(path);
  return svg;
}
