/* Preloaded: a monotonic clock of the process's own, which goes on by what is done and not while the process is held up.
 *
 * While it is on, reading it takes READING, and sleeping takes what was asked for and no time at all. The virtual GPU reads the
 * same clock: what a kernel, a launch or a wait takes on it is what the scenario says, on any machine. A thread's CPU time goes on
 * with it, but for sleeps; a process's, and the calendar's clock, stay real. Waits with a deadline of threads, locks and sockets are the operating system's and stay real too.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define VG_EXPORT __attribute__((visibility("default")))
#define SECOND INT64_C(1000000000)
#define READING 500 /* ns */

static atomic_int on;
static _Atomic int64_t passed; /* what the clock shows, ns */
static _Atomic int64_t slept;  /* of it, in sleep */

/* libc's own functions. They are looked up when this library is loaded, since a look-up may allocate, and an allocator may ask
 * for the time; whoever asks before that gets the kernel's answer. */
static int (*libc_gettime)(clockid_t, struct timespec *);
static int (*libc_nanosleep)(clockid_t, int, const struct timespec *, struct timespec *);
static int (*libc_select)(int, fd_set *, fd_set *, fd_set *, struct timeval *);

__attribute__((constructor)) static void look_up(void)
{
    libc_nanosleep = dlsym(RTLD_NEXT, "clock_nanosleep");
    libc_select = dlsym(RTLD_NEXT, "select");
    libc_gettime = dlsym(RTLD_NEXT, "clock_gettime");
}

static int real_gettime(clockid_t clock, struct timespec *time)
{
    return libc_gettime ? libc_gettime(clock, time) : (int)syscall(SYS_clock_gettime, clock, time);
}

static int64_t nanoseconds(const struct timespec *time)
{
    return time->tv_sec * SECOND + time->tv_nsec;
}

static int ours(clockid_t clock)
{
    return (clock == CLOCK_MONOTONIC || clock == CLOCK_THREAD_CPUTIME_ID) && atomic_load_explicit(&on, memory_order_relaxed);
}

static void pass_until(int64_t when)
{
    int64_t now = atomic_load(&passed);
    while (now < when && !atomic_compare_exchange_weak(&passed, &now, when))
        ;
    if (now < when)
        atomic_fetch_add(&slept, when - now);
}

VG_EXPORT int clock_gettime(clockid_t clock, struct timespec *time)
{
    if (!ours(clock))
        return real_gettime(clock, time);
    int64_t now = atomic_fetch_add(&passed, READING) + READING;
    if (clock == CLOCK_THREAD_CPUTIME_ID)
        now -= atomic_load(&slept);
    *time = (struct timespec){now / SECOND, now % SECOND};
    return 0;
}

VG_EXPORT int clock_nanosleep(clockid_t clock, int flags, const struct timespec *request, struct timespec *remain)
{
    if (!libc_nanosleep)
        look_up();
    if (!ours(clock))
        return libc_nanosleep(clock, flags, request, remain);
    if (request->tv_sec < 0 || request->tv_nsec < 0 || request->tv_nsec >= SECOND)
        return EINVAL;
    pass_until(nanoseconds(request) + (flags & TIMER_ABSTIME ? 0 : atomic_load(&passed)));
    return 0;
}

/* Python 3.10 sleeps with it. */
VG_EXPORT int select(int count, fd_set *restrict reading, fd_set *restrict writing, fd_set *restrict others,
                     struct timeval *restrict timeout)
{
    if (!libc_select)
        look_up();
    if (!ours(CLOCK_MONOTONIC) || count > 0 || !timeout)
        return libc_select(count, reading, writing, others, timeout);
    pass_until(atomic_load(&passed) + timeout->tv_sec * SECOND + timeout->tv_usec * 1000);
    return 0;
}

/* Turns the clock on or off, and says whether it was on. It never goes back: where it is ahead of the real one when it is turned off, that is waited for. */
VG_EXPORT int virtual_gpu_clock(int wanted)
{
    struct timespec time;
    if (wanted == atomic_load(&on))
        return wanted;
    if (wanted) {
        real_gettime(CLOCK_MONOTONIC, &time);
        atomic_store(&passed, nanoseconds(&time));
        atomic_store(&on, 1);
        return 0;
    }
    atomic_store(&on, 0);
    int64_t shown = atomic_load(&passed);
    time = (struct timespec){shown / SECOND, shown % SECOND};
    while (libc_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR)
        ;
    return 1;
}
