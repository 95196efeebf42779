// SPDX-License-Identifier: Apache-2.0
// Elements without HTML in strings: text only ever becomes text nodes.

const SVG = 'http://www.w3.org/2000/svg';

export const $ = id => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.filter(c => c !== null && c !== undefined));
  return node;
}

/** Makes an element: el('p', {class: 'x', onclick: f}, 'text', otherElement). */
export const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

/** The same in SVG. */
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** Says something to screen readers. */
export function say(text) {
  $('said').textContent = text;
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // no clipboard without HTTPS, but on localhost
    const area = el('textarea', {class: 'hidden'});
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
}

/** A button that copies what `text` returns. */
export function copyButton(text) {
  const button = el('button', {type: 'button', class: 'quiet small'}, 'Copy');
  button.addEventListener('click', async () => {
    await copy(text());
    button.textContent = 'Copied';
    say('Copied');
    setTimeout(() => { button.textContent = 'Copy'; }, 1500);
  });
  return button;
}
