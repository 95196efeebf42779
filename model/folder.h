/* SPDX-License-Identifier: Apache-2.0 */
/* Recognises what people give for a checkpoint folder by mistake. */
#ifndef MX_MODEL_FOLDER_H
#define MX_MODEL_FOLDER_H

#include "base/status.h"

/* Returns MX_OK for a folder that may be a checkpoint in Hugging Face form. Fails, with the remedy
 * in the message, for what cannot be one: no folder at all (MX_E_NOTFOUND), a file, git-lfs
 * pointers in place of files, or weights in another format alone (GGUF, PyTorch's pickles). */
mx_status mx_folder_check(const char *dir, struct mx_err *err);

#endif
