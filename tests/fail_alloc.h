/* Allocations that fail on demand, for programs linked with --wrap (ALLOC_TESTS in the Makefile).
 *
 *     for (size_t nth = 1; ; nth++) {
 *         fail_alloc_arm(nth);
 *         lathe_status st = call(&err);
 *         if (!fail_alloc_disarm())
 *             break;                    // it made fewer than nth allocations
 *         CHECK_INT(st, LATHE_E_MEMORY);
 *     }
 *
 * Covers malloc, calloc and realloc of this program's objects, and jansson's. One thread only. */
#ifndef LATHE_TESTS_FAIL_ALLOC_H
#define LATHE_TESTS_FAIL_ALLOC_H

#include <stdbool.h>
#include <stddef.h>

/* The nth allocation from now on fails, once. */
void fail_alloc_arm(size_t nth);
/* Whether it did. */
bool fail_alloc_disarm(void);

#endif
