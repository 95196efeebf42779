// SPDX-License-Identifier: Apache-2.0
// What a request says besides its text. A field that is left empty is not sent: the model's own default holds.
import {$, el} from './dom.js';

const FIELDS = [
  // name, label, step, least, most, what is used if it is empty
  ['max_tokens', 'Most tokens', 1, 1, null, 'until it stops'],
  ['temperature', 'Temperature', 0.1, 0, 2, "model's"],
  ['top_p', 'Top p', 0.05, 0, 1, "model's"],
  ['top_k', 'Top k', 1, 0, null, "model's"],
  ['min_p', 'Min p', 0.05, 0, 1, "model's"],
  ['seed', 'Seed', 1, 0, null, 'random'],
];
const PENALTIES = [
  ['repetition_penalty', 'Repetition', 0.05, 0.05, null, '–'],
  ['presence_penalty', 'Presence', 0.1, -2, 2, '0'],
  ['frequency_penalty', 'Frequency', 0.1, -2, 2, '0'],
];
const ALTERNATIVES = 5;

export const isChat = () => document.querySelector('input[name=kind]:checked').value === 'chat';
export const wantsColour = () => $('colour').checked;

export function init(onColour) {
  const input = ([name, label, step, min, max, empty]) => el('div', {}, el('label', {for: name}, label),
    el('input', {id: name, type: 'number', inputmode: 'decimal', step, min, max, placeholder: empty}));
  $('sampling').append(...FIELDS.map(input));
  $('penalties').append(...PENALTIES.map(input));
  $('max_tokens').value = 512;
  $('colour').addEventListener('change', () => {
    $('about-colour').hidden = !wantsColour();
    onColour();
  });
  for (const radio of document.querySelectorAll('input[name=kind]')) radio.addEventListener('change', showKind);
  showKind();
}

export function showKind() {
  $('for-chat').hidden = !isChat();
  $('for-completion').hidden = isChat();
  $('prompt').placeholder = isChat() ? 'Say something' : 'A text to be continued';
}

/** The fields of a request that the settings give. */
export function fields() {
  const out = {stream: true, stream_options: {include_usage: true}};
  for (const [name] of [...FIELDS, ...PENALTIES]) {
    const value = $(name).value.trim();
    if (value !== '') out[name] = Number(value);
  }
  const stops = $('stops').value.split('\n').filter(s => s !== '');
  if (stops.length) out.stop = stops;
  if (wantsColour() && isChat()) Object.assign(out, {logprobs: true, top_logprobs: ALTERNATIVES});
  else if (wantsColour()) out.logprobs = ALTERNATIVES;
  return out;
}
