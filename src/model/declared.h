/* What quantization_config of a model directory's config.json says about the formats of its matrices. The
 * tensors decide (module.c); this finds out where the two differ. */
#ifndef LATHE_MODEL_DECLARED_H
#define LATHE_MODEL_DECLARED_H

#include "base/error.h"
#include "quant/formats.h"

struct declared;

/* dir is borrowed until it is closed. *d is NULL where nothing is declared, or in words that are not known: quant_method compressed-tensors, fp8
 * and modelopt are. */
lathe_status declared_open(struct declared **d, const char *dir, lathe_error *err);
/* After all matrices: one warning if any differs. NULL is allowed. */
void declared_close(struct declared *d);

/* Compares a matrix, by the name it has in the files without ".weight". d may be NULL. */
void declared_compare(struct declared *d, const char *name, enum weight_format_id format);

#endif
