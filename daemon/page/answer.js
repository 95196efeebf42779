// SPDX-License-Identifier: Apache-2.0
// A message of the conversation as it is shown.
import {copyButton, el} from './dom.js';
import {number, seconds} from './format.js';
import * as markdown from './markdown.js';
import * as tokens from './tokens.js';

const WHO = {user: 'You', assistant: 'Model', prompt: 'Prompt'};

/** Makes the node of a message {role, text}. actions: name -> what its button does. */
export function message(role, name, actions) {
  const body = el('div', {class: 'body'});
  const note = el('p', {class: 'note', hidden: true});
  const buttons = el('div', {class: 'actions'});
  const thoughts = el('div', {class: 'plain'});
  const thinking = el('details', {class: 'thinking', open: true, hidden: true}, el('summary', {}, 'Reasoning'), thoughts);
  const node = el('article', {class: 'message ' + role, 'aria-label': name || WHO[role]},
    el('header', {}, el('strong', {}, name || WHO[role]), buttons), role === 'assistant' ? thinking : null, body, note);
  const self = {node, text: '', tokens: []};
  buttons.append(copyButton(() => self.text));
  for (const [label, act] of Object.entries(actions || {}))
    buttons.append(el('button', {type: 'button', class: 'quiet small', onclick: act}, label));

  const plain = role === 'assistant' ? markdown.view() : null;
  let coloured = null, due = 0;
  if (plain) body.append(plain.node);
  else body.classList.add('plain');

  const draw = () => {
    due = 0;
    if (plain) plain.update(self.text);
    else body.textContent = self.text;
  };
  /** Adds to what the model thinks before it answers; it is folded up when the answer begins. */
  self.think = text => {
    thinking.hidden = false;
    thoughts.append(text);
  };
  /** Adds text, and its tokens if they are known. Drawn at the next frame. */
  self.add = (text, list) => {
    if (text && !self.text) thinking.open = false;
    self.text += text;
    if (list.length) {
      self.tokens.push(...list);
      if (!coloured) coloured = tokens.view();
      coloured.append(list);
    }
    if (!due) due = requestAnimationFrame(draw);
  };
  /** Shows tokens rather than Markdown, where they are known. */
  self.colour = on => {
    const want = on && coloured ? coloured.node : plain?.node;
    if (want && body.firstChild !== want) body.replaceChildren(want);
  };
  self.busy = on => {
    node.classList.toggle('busy', on);
    node.setAttribute('aria-busy', on);
    if (!on && due) {
      cancelAnimationFrame(due);
      draw();
    }
  };
  self.note = (text, fault) => {
    note.textContent = text;
    note.hidden = !text;
    note.classList.toggle('fault', !!fault);
  };
  return self;
}

const ENDS = {stop: '', length: 'cut at the most tokens', abort: 'ended by the server', error: 'ended by an error'};

/** What is said below an answer. times: of the request, its first and its last token, in ms. */
export function summary(usage, reason, times) {
  const parts = [];
  const n = usage?.completion_tokens;
  if (n !== undefined) parts.push(`${n} token${n === 1 ? '' : 's'}`);
  if (times.first) parts.push(`first after ${seconds((times.first - times.sent) / 1000)}`);
  if (n > 1 && times.last > times.first) parts.push(`${number((n - 1) / (times.last - times.first) * 1000)} tokens/s`);
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  if (usage) parts.push(`prompt ${usage.prompt_tokens}${cached ? `, ${cached} of them cached` : ''}`);
  if (ENDS[reason]) parts.push(ENDS[reason]);
  return parts.join(' · ');
}
