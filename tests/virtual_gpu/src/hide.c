/* For LD_AUDIT: a library named in VIRTUAL_GPU_HIDE cannot be found, although the machine has NVIDIA's own. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define VG_EXPORT __attribute__((visibility("default")))

VG_EXPORT unsigned la_version(unsigned version)
{
    return version;
}

VG_EXPORT char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag)
{
    (void)cookie, (void)flag;
    const char *hidden = getenv("VIRTUAL_GPU_HIDE"), *base = strrchr(name, '/');
    base = base ? base + 1 : name;
    size_t length = strlen(base);
    for (; hidden && *hidden; hidden += strcspn(hidden, ":"), hidden += *hidden == ':')
        if (strcspn(hidden, ":") == length && strncmp(hidden, base, length) == 0)
            return NULL;
    return (char *)(uintptr_t)name;
}
