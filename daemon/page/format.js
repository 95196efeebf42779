// SPDX-License-Identifier: Apache-2.0
// Numbers for people.

const SCALES = [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']];

/** 12345.6 -> "12.3k"; whole numbers up to a million keep their digits: "12,345". */
export function number(v) {
  if (!Number.isFinite(v)) return '–';
  if (Number.isInteger(v) && Math.abs(v) < 1e6) return v.toLocaleString('en');
  const [scale, letter] = SCALES.find(([s]) => Math.abs(v) >= s * 0.9995) || [1, ''];
  const x = v / scale;
  const digits = Math.abs(x) >= 100 ? 0 : Math.abs(x) >= 10 ? 1 : 2;
  return x.toFixed(digits) + letter;
}

/** Bytes in binary units. */
export function bytes(v) {
  if (!Number.isFinite(v)) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  while (v >= 1024 && i < 4) { v /= 1024; i++; }
  return `${i === 0 || v >= 100 ? Math.round(v) : v.toFixed(v >= 10 ? 1 : 2)} ${units[i]}`;
}

/** Seconds: "340 µs", "12.5 ms", "3.2 s", "4 min 10 s". */
export function seconds(v) {
  if (!Number.isFinite(v)) return '–';
  if (v === 0) return '0 s';
  if (v < 1e-3) return `${three(v * 1e6)} µs`;
  if (v < 1) return `${three(v * 1e3)} ms`;
  if (v < 100) return `${three(v)} s`;
  if (v < 6000) return `${Math.floor(v / 60)} min ${Math.round(v % 60)} s`;
  return `${Math.floor(v / 3600)} h ${Math.round(v % 3600 / 60)} min`;
}

function three(x) {
  return x >= 100 ? String(Math.round(x)) : x >= 10 ? x.toFixed(1) : x.toFixed(2);
}

export const percent = v => Number.isFinite(v) ? `${v < 0.1 ? (100 * v).toFixed(1) : Math.round(100 * v)} %` : '–';
