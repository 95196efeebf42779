/* SPDX-License-Identifier: Apache-2.0 */
/* Heap helpers with checked sizes, and a bump arena for things that die together. */
#ifndef MX_BASE_MEM_H
#define MX_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

/* n * size bytes of zeros, or NULL (also when the product overflows). Free with free(). */
void *mx_calloc(size_t n, size_t size);

/* Resizes an array to n * size bytes, or NULL with the old array intact. */
void *mx_realloc(void *p, size_t n, size_t size);

/* Page-backed anonymous memory of `bytes`, zeroed, aligned to 64 bytes or better, with transparent
 * huge pages asked for when large. NULL on failure. Release with mx_unmap(p, bytes). */
void *mx_map(size_t bytes);
void mx_unmap(void *p, size_t bytes);

/* Keeps a server's heap near what it holds: few allocator arenas, large blocks mapped on their own
 * and given back when freed. Once, before any thread starts. Does nothing where malloc is not
 * glibc's. */
void mx_heap_setup(void);
/* Gives free memory of the heap back to the system; after something large is gone. */
void mx_heap_trim(void);

/* Rounds up to a multiple of `align` (a power of two). */
static inline size_t mx_round_up(size_t n, size_t align)
{
	return (n + align - 1) & ~(align - 1);
}

/* Bump allocator: everything is freed at once by mx_arena_free. Not thread safe. */
struct mx_arena {
	struct mx_arena_region *head;
	size_t limit; /* most bytes it may hold, 0 = no limit */
	size_t used;
};

/* `bytes` zeroed bytes aligned to 16, valid until mx_arena_free; NULL if out of memory or limit. */
void *mx_arena_alloc(struct mx_arena *a, size_t bytes);
/* Copies n bytes and a terminating NUL into the arena. */
char *mx_arena_strndup(struct mx_arena *a, const char *s, size_t n);
/* Frees all; the arena can be used again. Takes NULL. */
void mx_arena_free(struct mx_arena *a);

#endif
