// SPDX-License-Identifier: Apache-2.0
// Requests to this server. The key lives in this module's memory and nowhere else.

let key = '';

export const hasKey = () => key !== '';
export function setKey(k) { key = k; }

/** An answer that is an error: its text is the server's own. status 0: there was no answer. stale: the key
 * was changed while the request was under way. */
export class ApiError extends Error {
  constructor(status, message, stale = false) {
    super(message);
    this.status = status;
    this.stale = stale;
  }
}

async function failure(response, sentKey) {
  let text = `the server answered ${response.status}`;
  try {
    text = (await response.json()).error.message;
  } catch { /* no error of ours, such as a proxy's */ }
  return new ApiError(response.status, text, sentKey !== key);
}

/** Sends a request, with a JSON body if there is one. Paths are relative to the page, for servers behind
 * a prefix of a proxy. */
export async function request(path, {body, signal} = {}) {
  const headers = {}, sentKey = key;
  if (key) headers.Authorization = 'Bearer ' + key;
  if (body) headers['Content-Type'] = 'application/json';
  let response;
  try {
    response = await fetch(path, {method: body ? 'POST' : 'GET', headers, signal, cache: 'no-store',
      body: body && JSON.stringify(body)});
  } catch (e) {
    if (e.name === 'AbortError') throw e;
    throw new ApiError(0, 'the server cannot be reached');
  }
  if (!response.ok) throw await failure(response, sentKey);
  return response;
}

export const getJson = async path => (await request(path)).json();
export const getText = async path => (await request(path)).text();

/** The events of a stream, parsed; ends at [DONE]. An event that is an error is thrown, and so is an end
 * without [DONE]. */
export async function* stream(path, body, signal) {
  const response = await request(path, {body, signal});
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    let piece;
    try {
      piece = await reader.read();
    } catch (e) {
      if (e.name === 'AbortError') throw e;
      throw new ApiError(0, 'the connection was lost');
    }
    if (piece.done) throw new ApiError(0, 'the connection was lost');
    const lines = (rest + piece.value).split('\n');
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith('data: ')) continue; // empty lines, and comments that keep the stream alive
      if (line === 'data: [DONE]') return;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new ApiError(response.status, event.error.message);
      yield event;
    }
  }
}
