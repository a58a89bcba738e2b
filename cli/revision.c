#include "cli.h"

const char cli_revision[] = LATHE_REVISION;
