// SPDX-License-Identifier: Apache-2.0
// What the page knows of its server: whether it is there, wants a key, and its models. Polled, so that
// the page finds a server again that was restarted.
import {$, el, say} from './dom.js';
import {ApiError, getJson, hasKey, setKey} from './api.js';

const EVERY_MS = 2000;

export const server = {
  up: false,       // it answers
  ready: false,    // every model is loaded
  figures: false,  // it has /metrics
  keys: false,     // it wants a key
  admitted: false, // requests are answered: no key is wanted, or ours is good
  models: [],      // of /v1/models
};

const watchers = [];
/** Calls f now and whenever something of `server` or the chosen model has changed. */
export function onChange(f) {
  watchers.push(f);
}
const tell = () => watchers.forEach(f => f());

export const model = () => $('model').value;

function show() {
  const pill = $('state');
  const [text, kind] = !server.up ? ['no server', 'bad']
    : server.keys && !server.admitted ? ['key wanted', 'warn']
      : server.ready ? ['ready', 'good'] : ['loading', 'warn'];
  if (pill.textContent !== text) pill.textContent = text;
  pill.className = 'pill ' + kind;
  $('banner').hidden = server.up;
  if (!server.up) $('banner').textContent = 'The server cannot be reached. Trying again …';
  $('key-form').hidden = !server.up || !server.keys || server.admitted;
}

function fillModels() {
  const chosen = model();
  const options = server.models.map(m => el('option', {value: m.id}, m.id));
  $('model').replaceChildren(...options);
  if (server.models.some(m => m.id === chosen)) $('model').value = chosen;
  $('model').disabled = !options.length;
}

async function loadModels() {
  const list = (await getJson('v1/models')).data;
  const changed = JSON.stringify(list) !== JSON.stringify(server.models);
  server.models = list;
  if (changed) fillModels();
}

/** A request got 401: the key is none, or is no longer good. An answer to a key that has changed since
 * (another request was refused first, or a new key was typed) says nothing of the present one. */
export function refused(error) {
  if (error.stale) return;
  server.keys = true;
  server.admitted = false;
  $('key-note').textContent = hasKey() ? error.message : "kept in this tab's memory only";
  setKey('');
  show();
  tell();
}

async function look() {
  const before = JSON.stringify(server);
  try {
    const s = await getJson('page/state.json');
    const restarted = !server.up || s.ready !== server.ready;
    Object.assign(server, {up: true, ready: s.ready, figures: s.figures, keys: s.keys});
    if (!server.keys) server.admitted = true;
    else if (!hasKey()) server.admitted = false;
    if (server.admitted && (restarted || !server.models.length)) await loadModels();
  } catch (e) {
    if (e.status === 401) refused(e);
    else if (e instanceof ApiError) server.up = false;
    else throw e;
  }
  show();
  if (JSON.stringify(server) !== before) tell();
}

async function useKey(event) {
  event.preventDefault();
  setKey($('key').value.trim());
  $('key').value = '';
  if (!hasKey()) return;
  server.admitted = true;
  server.models = [];
  try {
    await loadModels();
    say('The key is accepted');
  } catch (e) {
    if (e.status === 401) return refused(e);
    if (!(e instanceof ApiError)) throw e;
  }
  show();
  tell();
}

export async function start() {
  $('key-form').addEventListener('submit', useKey);
  $('model').addEventListener('change', tell);
  for (;;) {
    if (!document.hidden) await look();
    await new Promise(done => setTimeout(done, EVERY_MS));
  }
}
