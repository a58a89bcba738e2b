/* A model's sizes as the public header tells them. */
#ifndef LATHE_ENGINE_MODEL_INFO_H
#define LATHE_ENGINE_MODEL_INFO_H

#include "model/model.h"

void model_info(const struct model *m, lathe_model_info *out);

#endif
