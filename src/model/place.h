/* Which tensors of a model are weights, for memory.h. */
#ifndef LATHE_MODEL_PLACE_H
#define LATHE_MODEL_PLACE_H

#include "model/model.h"
#include "op/memory.h"

/* Codes and scales. Nothing happens to what has no data. */
void place_weight(struct memory *m, struct weight *w);
/* All weights of the model. The modules' listing goes on to show the files. */
void model_place(struct memory *m, struct model *model);

#endif
