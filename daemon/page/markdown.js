// SPDX-License-Identifier: Apache-2.0
// Markdown as DOM nodes. The text is a model's: nothing of it is ever read as HTML, images are not
// loaded, and links have addresses of a few kinds only. Lines become blocks, blocks elements; while a
// text grows only its last blocks are made anew.
import {copyButton, el} from './dom.js';

// ---- inline ----

const INLINE = new RegExp([
  /(?<code>(`+)(?!`)(.{1,1000}?)(?<!`)\2(?!`))/,
  /!?\[(?<text>[^\[\]]{0,500})\]\((?<href>[^\s()]{1,2000})(?: +"[^"]{0,200}")?\)/,
  /\*\*(?<bold>(?=\S).{1,2000}?\S?)\*\*/,
  /~~(?<strike>(?=\S).{1,2000}?)~~/,
  /(?<![*\w])\*(?<em>(?=[^\s*]).{0,2000}?[^\s*])\*(?![*\w])/,
  /(?<![_\w])_(?<em2>(?=[^\s_]).{0,2000}?[^\s_])_(?![_\w])/,
  /(?<url>https?:\/\/[^\s<>"'`)\]]{1,2000}[^\s<>"'`)\].,;:!?])/,
  /\\(?<escaped>[\\`*_~[\]()#+\-.!|>])/,
].map(r => r.source).join('|'), 'gs');

/** An address that a click may open; null for others, such as javascript: and data:. */
export function safeAddress(href) {
  try {
    const url = new URL(href);
    return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
  } catch {
    return null; // relative ones would be of this server
  }
}

function link(href, ...content) {
  const address = safeAddress(href);
  return address === null ? el('span', {}, ...content)
    : el('a', {href: address, rel: 'noopener noreferrer', target: '_blank', title: address}, ...content);
}

/** The nodes of a text without blocks in it. */
export function inline(text, depth = 0) {
  const nodes = [];
  let at = 0;
  if (depth > 8) return [text];
  for (const m of text.matchAll(INLINE)) {
    const g = m.groups, nested = t => inline(t, depth + 1);
    if (m.index > at) nodes.push(text.slice(at, m.index));
    at = m.index + m[0].length;
    if (g.code !== undefined) nodes.push(el('code', {}, g.code.replace(/^`+ ?| ?`+$/g, '')));
    else if (g.href !== undefined) nodes.push(link(g.href, ...nested(g.text || g.href)));
    else if (g.bold !== undefined) nodes.push(el('strong', {}, ...nested(g.bold)));
    else if (g.strike !== undefined) nodes.push(el('s', {}, ...nested(g.strike)));
    else if (g.em !== undefined || g.em2 !== undefined) nodes.push(el('em', {}, ...nested(g.em ?? g.em2)));
    else if (g.url !== undefined) nodes.push(link(g.url, g.url));
    else nodes.push(g.escaped);
  }
  if (at < text.length) nodes.push(text.slice(at));
  return nodes;
}

function lines(list) {
  return list.flatMap((line, i) => i ? [el('br'), ...inline(line)] : inline(line));
}

// ---- blocks: each is {kind, lines}, its own source ----

const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+#.-]{0,40})/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)]) +(.*)$/;
const kinds = [
  ['heading', /^ {0,3}#{1,6} +\S/],
  ['rule', /^ {0,3}([-*_])( *\1){2,} *$/],
  ['quote', /^ {0,3}>/],
  ['list', ITEM],
  ['table', /^ *\|.*\| *$/],
];
const kindOf = line => kinds.find(([, pattern]) => pattern.test(line))?.[0] || 'text';

/** Cuts a text into blocks. */
export function blocks(text) {
  const out = [];
  let open = null, fence = null;
  for (const line of text.replace(/\r\n?/g, '\n').split('\n')) {
    if (fence) {
      open.lines.push(line);
      if (line.trim().startsWith(fence) && !line.trim().slice(fence.length).replace(/[`~]/g, '')) fence = open = null;
      continue;
    }
    const begin = FENCE.exec(line);
    const kind = begin ? 'code' : kindOf(line);
    if (!line.trim()) {
      if (open?.kind !== 'list') open = null;
      continue;
    }
    const goesOn = open && (open.kind === kind && kind !== 'heading' && kind !== 'rule' ||
      open.kind === 'list' && kind === 'text' && /^ +/.test(line));
    if (goesOn && kind !== 'code') {
      open.lines.push(line);
      continue;
    }
    open = {kind, lines: [line]};
    out.push(open);
    if (begin) fence = begin[1];
    else if (kind === 'heading' || kind === 'rule') open = null;
  }
  return out;
}

function codeBlock(list) {
  const [, fence, language] = FENCE.exec(list[0]);
  const last = list[list.length - 1].trim();
  const closed = list.length > 1 && last.startsWith(fence);
  const text = list.slice(1, closed ? -1 : undefined).join('\n');
  return el('figure', {class: 'code'},
    el('figcaption', {}, el('span', {}, language || 'code'), copyButton(() => text)),
    el('pre', {tabindex: 0}, el('code', {}, text)));
}

/** A list and those in it, by indentation. */
function listBlock(list) {
  const root = {indent: -1, node: null};
  const stack = [root];
  for (const line of list) {
    const m = ITEM.exec(line);
    if (!m) {
      stack[stack.length - 1].last?.append(' ', ...inline(line.trim()));
      continue;
    }
    const indent = m[1].length;
    while (stack.length > 2 && indent < stack[stack.length - 1].indent) stack.pop();
    let top = stack[stack.length - 1];
    if (stack.length === 1 || (indent > top.indent + 1 && stack.length < 10)) {
      const number = parseInt(m[2], 10);
      const node = Number.isNaN(number) ? el('ul') : el('ol', {start: number === 1 ? null : number});
      if (top.last) top.last.append(node);
      else root.node = node;
      top = {indent, node, last: null};
      stack.push(top);
    }
    top.last = el('li', {}, ...inline(m[3]));
    top.node.append(top.last);
  }
  return root.node;
}

function tableBlock(list) {
  const cells = line => line.trim().replace(/^\||\|$/g, '').split('|').map(c => c.trim());
  if (list.length < 2 || !/^[\s|:-]+$/.test(list[1])) return el('p', {}, ...lines(list));
  const row = (line, tag) => el('tr', {}, ...cells(line).slice(0, 50).map(c => el(tag, {}, ...inline(c))));
  return el('div', {class: 'scroll', tabindex: 0}, el('table', {}, el('thead', {}, row(list[0], 'th')),
    el('tbody', {}, ...list.slice(2).map(l => row(l, 'td')))));
}

function make({kind, lines: list}, depth = 0) {
  switch (kind) {
    case 'code': return codeBlock(list);
    case 'heading': {
      const [, marks, text] = /^ *(#+) +(.*?)[ #]*$/.exec(list[0]);
      return el('h' + Math.min(marks.length + 2, 6), {}, ...inline(text));
    }
    case 'rule': return el('hr');
    case 'quote': {
      const inner = blocks(list.map(l => l.replace(/^ *> ?/, '')).join('\n'));
      return el('blockquote', {}, ...(depth > 6 ? lines(list) : inner.map(b => make(b, depth + 1))));
    }
    case 'list': return listBlock(list);
    case 'table': return tableBlock(list);
    default: return el('p', {}, ...lines(list));
  }
}

/** A node that shows a text which may grow: call update with all of it. */
export function view() {
  const node = el('div', {class: 'markdown'});
  let shown = [];
  return {node, update(text) {
    const now = blocks(text);
    const sources = now.map(b => b.lines.join('\n'));
    let same = 0;
    while (same < shown.length && same < sources.length && shown[same] === sources[same]) same++;
    while (node.childNodes.length > same) node.lastChild.remove();
    node.append(...now.slice(same).map(b => make(b)));
    shown = sources;
  }};
}
