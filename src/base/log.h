/* Messages for the person who runs the program. The library prints nothing by itself: lines go to
 * the sink that lathe_log_set installed, and nowhere before that. */
#ifndef LATHE_BASE_LOG_H
#define LATHE_BASE_LOG_H

#include "base/error.h"

void log_line(lathe_log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);

#define log_warn(...) log_line(LATHE_LOG_WARN, __VA_ARGS__)
#define log_info(...) log_line(LATHE_LOG_INFO, __VA_ARGS__)

#endif
