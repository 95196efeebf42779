// SPDX-License-Identifier: Apache-2.0
// The page's frame: views, colours, and what is shown when.
import {$} from './dom.js';
import {start} from './server.js';
import * as talk from './talk.js';
import * as understand from './understand.js';
import * as watch from './watch.js';

const tabs = [...document.querySelectorAll('[role=tab]')];
const views = {talk, watch, understand};

function open(tab) {
  for (const t of tabs) {
    const on = t === tab;
    t.setAttribute('aria-selected', on);
    t.tabIndex = on ? 0 : -1;
    const name = t.getAttribute('aria-controls');
    $(name).hidden = !on;
    views[name]?.setVisible?.(on);
  }
  history.replaceState(null, '', '#/' + tab.getAttribute('aria-controls')); // no element's id: nothing is to be focused
}

function onKey(event) {
  const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
  if (!step) return;
  const next = tabs[(tabs.indexOf(event.target) + step + tabs.length) % tabs.length];
  open(next);
  next.focus();
}

const THEMES = [['light dark', 'as the system', '◐'], ['light', 'light', '☀'], ['dark', 'dark', '☾']];
function nextTheme() {
  const root = document.documentElement;
  const now = THEMES.findIndex(([scheme]) => scheme === (root.style.colorScheme || 'light dark'));
  const [scheme, name, sign] = THEMES[(now + 1) % THEMES.length];
  root.style.colorScheme = scheme;
  $('theme').textContent = sign;
  $('theme').setAttribute('aria-label', 'Colours: ' + name);
}

for (const tab of tabs) {
  tab.addEventListener('click', () => open(tab));
  tab.addEventListener('keydown', onKey);
}
$('theme').addEventListener('click', nextTheme);
if (matchMedia('(max-width: 760px)').matches) $('settings').open = false;
for (const view of Object.values(views)) view.init();
open(tabs.find(t => '#/' + t.getAttribute('aria-controls') === location.hash) || tabs[0]);
start();
