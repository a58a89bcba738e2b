/* Parts of reading config.json that models and drafters share. */
#ifndef LATHE_MODEL_CONFIG_H
#define LATHE_MODEL_CONFIG_H

#include "model/fields.h"
#include "model/model.h"

/* Vocabulary, widths, layers and attention heads, each in the range that the code behind it can hold. */
void sizes_read(struct reader *r, struct dims *d);

/* The rotary fields of d, whose head_dim and max_position are set. They are in rope_parameters; older
 * files have rope_scaling, and rope_theta and partial_rotary_factor beside it. `default_part` of a head
 * rotates where partial_rotary_factor is absent. */
void rotary_read(struct reader *text, struct dims *d, double default_part);

#endif
