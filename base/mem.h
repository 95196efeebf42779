/* SPDX-License-Identifier: Apache-2.0 */
/* Heap helpers with checked sizes, and a bump arena for objects that are freed together. */
#ifndef MX_BASE_MEM_H
#define MX_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

/* Allocates n * size zeroed bytes. NULL if out of memory or if the product overflows. Free with
 * free(). */
void *mx_calloc(size_t n, size_t size);

/* Resizes an array to n * size bytes. On failure returns NULL and leaves the old array intact. */
void *mx_realloc(void *p, size_t n, size_t size);

/* Maps `bytes` of zeroed anonymous memory, aligned to 64 bytes or more. Asks for transparent huge
 * pages if it is large. NULL on failure. Release with mx_unmap(p, bytes). */
void *mx_map(size_t bytes);
void mx_unmap(void *p, size_t bytes);

/* Asks for huge pages in a mapping, of a file too: what of it is read from the disk from now on
 * then comes in huge pages, where the file system has them (ext4 from Linux 6.16 on, xfs, btrfs). A
 * hint.
 */
void mx_map_hint_huge(void *p, size_t bytes);

/* Configures glibc's malloc so that a server's heap stays close to what is in use: few malloc
 * arenas; large blocks are mapped one by one and returned to the system when freed. Call once,
 * before any thread starts. Does nothing if malloc is not glibc's. */
void mx_heap_setup(void);
/* Returns free heap memory to the system. Call it after freeing something large. */
void mx_heap_trim(void);

/* Rounds n up to a multiple of `align` (a power of two). */
static inline size_t mx_round_up(size_t n, size_t align)
{
	return (n + align - 1) & ~(align - 1);
}

/* Bump allocator: mx_arena_free frees everything at once. Not thread safe. */
struct mx_arena {
	struct mx_arena_region *head;
	size_t limit; /* most bytes it may hold, 0 = no limit */
	size_t used;
};

/* Allocates zeroed bytes, aligned to 16 and valid until mx_arena_free. NULL if memory or the limit
 * is used up. */
void *mx_arena_alloc(struct mx_arena *a, size_t bytes);
/* Copies n bytes into the arena and appends a NUL. NULL if out of memory. */
char *mx_arena_strndup(struct mx_arena *a, const char *s, size_t n);
/* Frees all allocations; the arena can be used again. `a` may be NULL. */
void mx_arena_free(struct mx_arena *a);

#endif
