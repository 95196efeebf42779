// SPDX-License-Identifier: Apache-2.0
// Tokens coloured by their probability; what else each could have been is shown for the one that the
// pointer or the keyboard is at.
import {$, el} from './dom.js';
import {percent} from './format.js';

// Class p0 is the least likely.
const BOUNDS = [0.02, 0.1, 0.3, 0.6, 0.9];

/** Tokens of an event, in one form: {text, p, others: [{text, p}]}. p is null where there is none, as for
 * the first token of a prompt. */
export function ofChat(logprobs) {
  return (logprobs?.content || []).map(t => ({text: t.token, p: Math.exp(t.logprob),
    others: (t.top_logprobs || []).map(o => ({text: o.token, p: Math.exp(o.logprob)}))}));
}

export function ofCompletion(logprobs) {
  return (logprobs?.tokens || []).map((text, i) => ({text,
    p: logprobs.token_logprobs[i] === null ? null : Math.exp(logprobs.token_logprobs[i]),
    others: Object.entries(logprobs.top_logprobs?.[i] || {}).map(([t, lp]) => ({text: t, p: Math.exp(lp)}))
      .sort((a, b) => b.p - a.p)}));
}

const visible = text => text.replace(/ /g, '␣').replace(/\n/g, '⏎').replace(/\t/g, '⇥') || '∅';

function hide() {
  $('alternatives').hidden = true;
}

function showAlternatives(node, token) {
  const box = $('alternatives');
  const rows = token.others.some(o => o.text === token.text) || token.p === null ? token.others
    : [{text: token.text, p: token.p}, ...token.others];
  box.replaceChildren(el('table', {}, ...rows.map(o => {
    const bar = el('span', {class: 'bar'});
    bar.style.width = `${Math.max(1, 64 * o.p)}px`;
    return el('tr', {class: o.text === token.text ? 'chosen' : null},
      el('td', {}, el('code', {}, visible(o.text))), el('td', {}, bar), el('td', {class: 'num'}, percent(o.p)));
  })));
  if (!rows.length) box.replaceChildren('no probability: nothing comes before it');
  box.hidden = false;
  const at = node.getClientRects()[0] || node.getBoundingClientRect();
  const left = Math.min(at.left, innerWidth - box.offsetWidth - 8);
  const below = at.bottom + 6 + box.offsetHeight < innerHeight;
  box.style.left = `${Math.max(8, left)}px`;
  box.style.top = `${below ? at.bottom + 6 : at.top - box.offsetHeight - 6}px`;
}

/** A node that shows tokens; append adds some. */
export function view() {
  const node = el('div', {class: 'tokens', role: 'listbox', 'aria-label': 'Tokens, coloured by probability; move with the arrow keys'});
  const all = new WeakMap();
  const move = (from, to) => {
    if (!to) return;
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  };
  const at = event => event.target.closest?.('.token');
  for (const name of ['mouseover', 'focusin'])
    node.addEventListener(name, e => at(e) && showAlternatives(at(e), all.get(at(e))));
  for (const name of ['mouseout', 'focusout']) node.addEventListener(name, hide);
  node.addEventListener('keydown', event => {
    const t = at(event);
    if (!t) return;
    if (event.key === 'ArrowRight') move(t, t.nextElementSibling);
    else if (event.key === 'ArrowLeft') move(t, t.previousElementSibling);
    else if (event.key === 'Escape') hide();
    else return;
    event.preventDefault();
  });
  return {node, append(tokens) {
    for (const t of tokens) {
      const shade = t.p === null ? 'none' : BOUNDS.filter(b => t.p >= b).length;
      const span = el('span', {class: `token p${shade}`, role: 'option', tabindex: node.firstChild ? -1 : 0, 'aria-describedby': 'alternatives'}, t.text || '∅');
      all.set(span, t);
      node.append(span);
    }
  }};
}
