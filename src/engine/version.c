#include "lathe/lathe.h"

#if defined __x86_64__
#define BUILD_ARCH "x86_64"
#elif defined __aarch64__
#define BUILD_ARCH "aarch64"
#else
#define BUILD_ARCH "other"
#endif
#if defined __clang__
#define BUILD_COMPILER "" /* the version begins with the name */
#else
#define BUILD_COMPILER "gcc "
#endif
#if defined LATHE_CUDA
#define BUILD_BACKENDS "cpu, cuda " LATHE_CUDA_SMS
#else
#define BUILD_BACKENDS "cpu"
#endif
#if defined LATHE_DEBUG
#define BUILD_CHECKS ", debug"
#else
#define BUILD_CHECKS ""
#endif

const char *lathe_version(void)
{
    return "0.1.0";
}

const char *lathe_build(void)
{
    return BUILD_ARCH "-linux, " BUILD_COMPILER __VERSION__ ", " BUILD_BACKENDS BUILD_CHECKS;
}
