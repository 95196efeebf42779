/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The main of fuzz programs without libFuzzer. It passes every file named in argv (of a folder:
 * every regular file directly in it) to LLVMFuzzerTestOneInput once. Without arguments a program
 * called fuzz_THING takes $srcdir/tests/fuzz/corpus/THING. The exit status is 1 if there was
 * nothing to run.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int run_file(const char *path)
{
	FILE *f = fopen(path, "rb");
	long size = -1;
	if (f && !fseek(f, 0, SEEK_END))
		size = ftell(f);
	if (size < 0) {
		perror(path);
		exit(2);
	}
	rewind(f);
	/* Exactly as many bytes as the file has, so that a sanitizer sees a read past the end. */
	uint8_t *data = malloc((size_t)size);
	if ((!data && size) || fread(data, 1, (size_t)size, f) != (size_t)size) {
		perror(path);
		exit(2);
	}
	fclose(f);
	LLVMFuzzerTestOneInput(data, (size_t)size);
	free(data);
	return 1;
}

static int run(const char *path)
{
	struct stat st;
	if (stat(path, &st)) {
		perror(path);
		exit(2);
	}
	if (!S_ISDIR(st.st_mode))
		return run_file(path);
	DIR *d = opendir(path);
	if (!d) {
		perror(path);
		exit(2);
	}
	int n = 0;
	for (struct dirent *e; (e = readdir(d));) {
		char sub[4096];
		snprintf(sub, sizeof sub, "%s/%s", path, e->d_name);
		if (e->d_name[0] != '.' && !stat(sub, &st) && S_ISREG(st.st_mode))
			n += run_file(sub);
	}
	closedir(d);
	return n;
}

static int run_own_corpus(const char *program)
{
	char path[4096];
	const char *srcdir = getenv("srcdir"), *thing = strstr(program, "fuzz_");
	for (const char *next = thing; next; next = strstr(next + 1, "fuzz_"))
		thing = next;
	if (!thing) {
		fprintf(stderr, "%s: not called fuzz_THING, so name the inputs\n", program);
		exit(2);
	}
	snprintf(path, sizeof path, "%s/tests/fuzz/corpus/%s", srcdir ? srcdir : ".", thing + 5);
	return run(path);
}

int main(int argc, char **argv)
{
	int n = 0;
	for (int i = 1; i < argc; i++)
		n += run(argv[i]);
	if (argc == 1)
		n = run_own_corpus(argv[0]);
	printf("%s: %d inputs\n", argv[0], n);
	return n == 0;
}
