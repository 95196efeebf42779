// SPDX-License-Identifier: Apache-2.0
// Chat and completion.
import {$, el, say} from './dom.js';
import {stream} from './api.js';
import {message, summary} from './answer.js';
import {model, onChange, refused, server} from './server.js';
import * as settings from './settings.js';
import * as tokens from './tokens.js';

let turns = [];    // {role, text, view}, oldest first
let running = null; // the AbortController of the request that runs

function empty() {
  if (turns.length) $('messages').querySelector('.empty')?.remove();
  else
    $('messages').replaceChildren(el('div', {class: 'empty'}, el('h2', {}, 'Talk to the model'),
      el('p', {}, 'Everything stays between this browser and this server.')));
}

function add(role, text, name) {
  const turn = {role, text};
  const actions = role === 'assistant' ? {Retry: () => retry(turn)} : {Edit: () => edit(turn)};
  turn.view = message(role, name, actions);
  turn.view.add(text, []);
  turns.push(turn);
  empty();
  $('messages').append(turn.view.node);
  return turn;
}

/** Takes a turn and all after it away. */
function cutAt(turn) {
  const at = turns.indexOf(turn);
  for (const t of turns.splice(at)) t.view.node.remove();
  empty();
}

function edit(turn) {
  stop();
  cutAt(turn);
  $('prompt').value = turn.text;
  $('prompt').focus();
}

function retry(turn) {
  if (running) return;
  cutAt(turn);
  if (turns.length) answer();
}

function clear() {
  stop();
  turns = [];
  empty();
  $('prompt').focus();
}

export function stop() {
  running?.abort();
}

function show() {
  $('stop').hidden = !running;
  $('send').hidden = !!running;
  $('send').disabled = !server.up || !server.admitted || !model();
}

/** The request for an answer to all turns. */
function requestOf() {
  const body = {model: model(), ...settings.fields()};
  const last = turns[turns.length - 1];
  if (last.role === 'prompt') {
    if (settings.wantsColour() && $('echo').checked) body.echo = true;
    return ['v1/completions', {...body, prompt: last.text}];
  }
  const messages = turns.filter(t => t.role !== 'prompt' && t.text).map(t => ({role: t.role, content: t.text}));
  const system = $('system').value.trim();
  if (system) messages.unshift({role: 'system', content: system});
  return ['v1/chat/completions', {...body, messages}];
}

/** Keeps the end in view, unless somebody scrolled up. */
function follow(f) {
  const box = $('messages');
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
  f();
  if (atEnd) requestAnimationFrame(() => { box.scrollTop = box.scrollHeight; });
}

/** Reads the stream into a turn. Returns what is to be said below it. */
async function read(path, body, turn, control) {
  const times = {sent: performance.now(), first: 0, last: 0};
  let usage, reason;
  for await (const event of stream(path, body, control.signal)) {
    usage = event.usage || usage;
    const c = event.choices?.[0];
    if (!c) continue;
    reason = c.finish_reason || reason;
    const text = (c.delta ? c.delta.content : c.text) || '';
    const list = c.delta ? tokens.ofChat(c.logprobs) : tokens.ofCompletion(c.logprobs);
    const thought = c.delta?.reasoning_content || '';
    if (!text && !thought && !list.length) continue;
    times.last = performance.now();
    times.first ||= times.last;
    turn.text += text;
    follow(() => {
      if (thought) turn.view.think(thought);
      turn.view.add(text, list);
      turn.view.colour(settings.wantsColour());
    });
  }
  return summary(usage, reason, times);
}

async function answer() {
  const [path, body] = requestOf();
  const control = running = new AbortController();
  const turn = add('assistant', '', body.model);
  turn.view.busy(true);
  show();
  follow(() => {});
  say('Generating');
  try {
    const note = await read(path, body, turn, control);
    turn.view.note(note);
    say('The answer is complete: ' + note);
  } catch (e) {
    const stopped = e.name === 'AbortError';
    if (!stopped && e.status === undefined) throw e;
    if (e.status === 401) refused(e);
    turn.view.note(stopped ? 'stopped' : e.message, !stopped);
    say(stopped ? 'Stopped' : e.message);
  } finally {
    turn.view.busy(false);
    if (running === control) running = null;
    follow(show);
  }
}

function send(event) {
  event?.preventDefault();
  const text = $('prompt').value;
  if (running || $('send').disabled || !text.trim()) return;
  if (!settings.isChat()) turns.splice(0).forEach(t => t.view.node.remove());
  else turns.filter(t => t.role === 'prompt').forEach(cutAt);
  $('prompt').value = '';
  add(settings.isChat() ? 'user' : 'prompt', text);
  answer();
}

function onKey(event) {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) send(event);
}

export function init() {
  settings.init(() => turns.forEach(t => t.view.colour(settings.wantsColour())));
  $('composer').addEventListener('submit', send);
  $('prompt').addEventListener('keydown', onKey);
  $('stop').addEventListener('click', stop);
  $('clear').addEventListener('click', clear);
  document.addEventListener('keydown', e => { if (e.key === 'Escape') stop(); });
  onChange(show);
  empty();
  show();
}
