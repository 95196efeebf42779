/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets of bytes in 32 bits, for quick tests of whole subtrees of a vocabulary: bytes that grammars
 * mostly treat alike share a bit. Bytes from 0x80 on have the last one.
 */
#ifndef MX_GRAMMAR_BYTES_H
#define MX_GRAMMAR_BYTES_H

#include <stdint.h>

#define MX_BYTES_HIGH (1u << 31)

/* Returns the number of the bit of a byte. */
static inline unsigned mx_byte_group(uint8_t b)
{
	static const uint8_t groups[128] = {
		['\t'] = 1, ['\n'] = 1, ['\r'] = 1, [' '] = 2,  [0x7f] = 3, ['"'] = 4,  ['\\'] = 5,
		['/'] = 6,  ['\''] = 7, ['_'] = 8,  ['-'] = 9,  ['.'] = 10, [','] = 11, [':'] = 12,
		[';'] = 13, ['('] = 14, [')'] = 14, ['['] = 15, [']'] = 15, ['{'] = 16, ['}'] = 16,
		['<'] = 17, ['>'] = 17, ['='] = 18, ['+'] = 19, ['*'] = 20, ['#'] = 21, ['$'] = 21,
		['%'] = 21, ['&'] = 21, ['@'] = 21, ['!'] = 22, ['?'] = 22, ['|'] = 23, ['^'] = 23,
		['~'] = 23, ['`'] = 23, ['0'] = 24, ['1'] = 25, ['2'] = 25, ['3'] = 25, ['4'] = 25,
		['5'] = 25, ['6'] = 25, ['7'] = 25, ['8'] = 25, ['9'] = 25, ['a'] = 26, ['b'] = 26,
		['c'] = 26, ['d'] = 26, ['e'] = 26, ['f'] = 26, ['A'] = 28, ['B'] = 28, ['C'] = 28,
		['D'] = 28, ['E'] = 28, ['F'] = 28, ['g'] = 27, ['h'] = 27, ['i'] = 27, ['j'] = 27,
		['k'] = 27, ['l'] = 27, ['m'] = 27, ['n'] = 27, ['o'] = 27, ['p'] = 27, ['q'] = 27,
		['r'] = 27, ['s'] = 27, ['t'] = 27, ['u'] = 27, ['v'] = 27, ['w'] = 27, ['x'] = 27,
		['y'] = 27, ['z'] = 27, ['G'] = 29, ['H'] = 29, ['I'] = 29, ['J'] = 29, ['K'] = 29,
		['L'] = 29, ['M'] = 29, ['N'] = 29, ['O'] = 29, ['P'] = 29, ['Q'] = 29, ['R'] = 29,
		['S'] = 29, ['T'] = 29, ['U'] = 29, ['V'] = 29, ['W'] = 29, ['X'] = 29, ['Y'] = 29,
		['Z'] = 29,
	};
	return b < 0x80 ? groups[b] : 31;
}

static inline uint32_t mx_byte_bit(uint8_t b)
{
	return 1u << mx_byte_group(b);
}

#endif
