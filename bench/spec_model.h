/* The 27B model for bench/spec: its widths, random code words, fewer layers. */
#ifndef LATHE_BENCH_SPEC_MODEL_H
#define LATHE_BENCH_SPEC_MODEL_H

#include "model/model.h"

enum {
    SPEC_LAYERS = 4,      /* three Gated DeltaNet, one attention: they stand for */
    SPEC_ALL_LAYERS = 64, /* of the 27B */
};

/* In memory of random.h. Matrices: NVFP4 in the MLPs, BF16 for a, b and mtp.fc, rows of FP8 else, in the MTP
 * head too; head and embedding are one matrix. */
void spec_model(struct model *m);

/* Writes a DFlash2 checkpoint for the 27B to a fresh folder under `parent`: 2.1 GB, matrices in rows of FP8,
 * convolutions and selector in BF16. dir gets its name. */
lathe_status spec_drafter_write(char *dir, size_t size, const char *parent, lathe_error *err);
/* Removes the files and the folder; what has mapped them keeps them. */
void spec_drafter_remove(const char *dir);

#endif
