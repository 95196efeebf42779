/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/model/tokenizer FOLDER TEXT [MB]: speed of the tokenizer in FOLDER on the
 * first MB (default 1) of the file TEXT, as the best of several runs on one
 * thread: loading, encoding, decoding, streaming decoding. bench/model/peer-tokenizer runs it
 * beside Hugging Face `tokenizers` on the same files.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "model/tokenizer/tokenizer.h"

enum { RUNS = 7 };

struct bench {
	const char *dir;
	struct mx_tokenizer *t;
	struct mx_buf text;
	struct mx_tokens ids;
	struct mx_buf out;
};

static void die(const char *what, const struct mx_err *err)
{
	fprintf(stderr, "bench/model/tokenizer: %s: %s %s\n", what, err->where, err->text);
	exit(1);
}

static void load(struct bench *b)
{
	struct mx_err err = {0};
	mx_tokenizer_destroy(b->t);
	b->t = NULL;
	if (mx_tokenizer_load(b->dir, &b->t, &err) != MX_OK)
		die("load", &err);
}

static void encode(struct bench *b)
{
	struct mx_err err = {0};
	b->ids.n = 0;
	if (mx_tokenizer_encode(b->t, mx_buf_str(&b->text), b->text.len, false, 0, &b->ids, &err))
		die("encode", &err);
}

static void decode(struct bench *b)
{
	struct mx_err err = {0};
	mx_buf_clear(&b->out);
	if (mx_tokenizer_decode(b->t, b->ids.ids, b->ids.n, false, &b->out) != MX_OK)
		die("decode", &err);
}

/* As a server does it: the text of each token by itself. */
static void stream(struct bench *b)
{
	struct mx_err err = {0};
	struct mx_decoder d;
	mx_decoder_init(&d, b->t, true);
	for (size_t i = 0; i < b->ids.n; i++) {
		mx_buf_clear(&b->out);
		if (mx_decoder_push(&d, b->ids.ids[i], &b->out) != MX_OK)
			die("stream", &err);
	}
	mx_decoder_free(&d);
}

static double best(void (*f)(struct bench *), struct bench *b)
{
	double least = 1e9;
	for (int i = 0; i < RUNS; i++) {
		uint64_t start = mx_now_ns();
		f(b);
		double s = (double)(mx_now_ns() - start) / MX_NS_PER_S;
		if (s < least)
			least = s;
	}
	return least;
}

static void read_text(struct bench *b, const char *path, size_t bytes)
{
	FILE *f = fopen(path, "rb");
	if (!f || !mx_buf_reserve(&b->text, bytes)) {
		perror(path);
		exit(1);
	}
	b->text.len = fread(b->text.data, 1, bytes, f);
	/* not in the middle of a character */
	while (b->text.len && ((unsigned char)b->text.data[b->text.len] & 0xc0) == 0x80)
		b->text.len--;
	fclose(f);
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: %s FOLDER TEXT [MB]\n", argv[0]);
		return 2;
	}
	struct bench b = {.dir = argv[1]};
	double mb = argc > 3 ? atof(argv[3]) : 1;
	read_text(&b, argv[2], (size_t)(mb * 1e6));
	double t_load = best(load, &b);
	double t_encode = best(encode, &b);
	double t_decode = best(decode, &b), t_stream = best(stream, &b);
	double size = (double)b.text.len / 1e6, n = (double)b.ids.n;
	printf("load_s %.4f\nbytes %zu\ntokens %zu\nencode_s %.4f\nencode_MB_per_s %.1f\n"
	       "decode_Mtok_per_s %.2f\nstream_Mtok_per_s %.2f\n",
	       t_load, b.text.len, b.ids.n, t_encode, size / t_encode, n / t_decode / 1e6,
	       n / t_stream / 1e6);
	mx_tokenizer_destroy(b.t);
	mx_tokens_free(&b.ids);
	mx_buf_free(&b.text);
	mx_buf_free(&b.out);
	return 0;
}
