/* Preloaded: the clocks of a machine that is TIMES as fast as this one.
 *
 * The monotonic clock and those of CPU time show a TIMESth of the time, the calendar's what has passed since ANCHOR at that rate;
 * sleeps and timeouts last TIMES as long. What the kernel counts on its own stays real: the times of files and processes, the
 * time since boot, the timeouts of sockets.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/times.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)
#define MICRO INT64_C(1000000)
#define LIBC(name)                                                                                                             \
    ({                                                                                                                         \
        static __typeof__(name) *libc;                                                                                         \
        if (!libc)                                                                                                             \
            libc = (__typeof__(libc))dlsym(RTLD_NEXT, #name);                                                                  \
        libc;                                                                                                                  \
    })

static int of_calendar(clockid_t clock)
{
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
}

static int changed(clockid_t clock)
{
    return !of_calendar(clock) && clock != CLOCK_BOOTTIME && clock != CLOCK_TAI;
}

static struct timespec by(const struct timespec *time, double factor)
{
    int64_t result = (int64_t)((double)(time->tv_sec * SECOND + time->tv_nsec) * factor);
    return (struct timespec){result / SECOND, result % SECOND};
}

/* The calendar's time, where the time since ANCHOR is multiplied. */
static struct timespec since_anchor_by(const struct timespec *time, double factor)
{
    int64_t passed = (time->tv_sec - ANCHOR) * SECOND + time->tv_nsec;
    int64_t result = (int64_t)((double)passed * factor) + ANCHOR * SECOND;
    return (struct timespec){result / SECOND, result % SECOND};
}

static struct timeval micro_by(const struct timeval *time, double factor)
{
    int64_t result = (int64_t)((double)(time->tv_sec * MICRO + time->tv_usec) * factor);
    return (struct timeval){result / MICRO, result % MICRO};
}

/* Whether this is a time, and none of the calendar's: those are far beyond thirty years. */
static int counts(const struct timespec *time)
{
    return time && time->tv_sec >= 0 && time->tv_sec < SECOND && time->tv_nsec >= 0 && time->tv_nsec < SECOND;
}

/* The time itself, or where it counts, the same by the real clock, written to `room`. */
static const struct timespec *real(const struct timespec *time, struct timespec *room)
{
    if (!counts(time))
        return time;
    *room = by(time, TIMES);
    return room;
}

static const struct timespec *real_by(clockid_t clock, const struct timespec *time, struct timespec *room)
{
    return changed(clock) ? real(time, room) : time;
}

/* Rounded up; none, 0, and without end, -1, stay. */
static int milliseconds(int timeout)
{
    double result = timeout * TIMES + 0.999;
    return timeout <= 0 ? timeout : result < INT32_MAX ? (int)result : INT32_MAX;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, time);
    if (!failed && changed(clock))
        *time = by(time, 1 / TIMES);
    else if (!failed && of_calendar(clock))
        *time = since_anchor_by(time, 1 / TIMES);
    return failed;
}

time_t time(time_t *result)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return result ? (*result = now.tv_sec) : now.tv_sec;
}

int gettimeofday(struct timeval *restrict result, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *result = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}

clock_t clock(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * CLOCKS_PER_SEC + time.tv_nsec / 1000;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *request, struct timespec *remain)
{
    struct timespec room;
    int error = LIBC(clock_nanosleep)(clock, flags, real_by(clock, request, &room), remain);
    if (error == EINTR && remain && !(flags & TIMER_ABSTIME) && changed(clock))
        *remain = by(remain, 1 / TIMES);
    return error;
}

int nanosleep(const struct timespec *request, struct timespec *remain)
{
    struct timespec room;
    int failed = LIBC(nanosleep)(real(request, &room), remain);
    if (failed && remain)
        *remain = by(remain, 1 / TIMES);
    return failed;
}

int usleep(useconds_t microseconds)
{
    struct timespec time = {microseconds / MICRO, microseconds % MICRO * 1000};
    return nanosleep(&time, NULL);
}

unsigned sleep(unsigned seconds)
{
    struct timespec time = {seconds, 0};
    return nanosleep(&time, &time) ? (unsigned)time.tv_sec + 1 : 0;
}

int select(int count, fd_set *restrict reading, fd_set *restrict writing, fd_set *restrict others,
           struct timeval *restrict timeout)
{
    struct timeval room;
    if (timeout)
        room = micro_by(timeout, TIMES);
    return LIBC(select)(count, reading, writing, others, timeout ? &room : NULL);
}

int pselect(int count, fd_set *restrict reading, fd_set *restrict writing, fd_set *restrict others,
            const struct timespec *restrict timeout, const sigset_t *restrict mask)
{
    struct timespec room;
    return LIBC(pselect)(count, reading, writing, others, real(timeout, &room), mask);
}

int poll(struct pollfd *list, nfds_t count, int timeout)
{
    return LIBC(poll)(list, count, milliseconds(timeout));
}

int ppoll(struct pollfd *list, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
    struct timespec room;
    return LIBC(ppoll)(list, count, real(timeout, &room), mask);
}

int epoll_wait(int fd, struct epoll_event *events, int most, int timeout)
{
    return LIBC(epoll_wait)(fd, events, most, milliseconds(timeout));
}

int epoll_pwait(int fd, struct epoll_event *events, int most, int timeout, const sigset_t *mask)
{
    return LIBC(epoll_pwait)(fd, events, most, milliseconds(timeout), mask);
}

int sigtimedwait(const sigset_t *restrict set, siginfo_t *restrict info, const struct timespec *restrict timeout)
{
    struct timespec room;
    return LIBC(sigtimedwait)(set, info, real(timeout, &room));
}

int sem_clockwait(sem_t *restrict semaphore, clockid_t clock, const struct timespec *restrict until)
{
    struct timespec room;
    return LIBC(sem_clockwait)(semaphore, clock, real_by(clock, until, &room));
}

int pthread_mutex_clocklock(pthread_mutex_t *restrict mutex, clockid_t clock, const struct timespec *restrict until)
{
    struct timespec room;
    return LIBC(pthread_mutex_clocklock)(mutex, clock, real_by(clock, until, &room));
}

int pthread_cond_clockwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, clockid_t clock,
                           const struct timespec *restrict until)
{
    struct timespec room;
    return LIBC(pthread_cond_clockwait)(condition, mutex, clock, real_by(clock, until, &room));
}

/* Until when by the real clock, written to `room`. Which clock it is was said to pthread_cond_init; the time itself tells. */
static const struct timespec *real_deadline(const struct timespec *until, struct timespec *room)
{
    if (counts(until) || until->tv_nsec < 0 || until->tv_nsec >= SECOND)
        return real(until, room);
    *room = since_anchor_by(until, TIMES);
    return room;
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until)
{
    struct timespec room;
    return LIBC(sem_timedwait)(semaphore, real_deadline(until, &room));
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until)
{
    static int (*libc)(pthread_cond_t *restrict, pthread_mutex_t *restrict, const struct timespec *restrict);
    struct timespec room;
    if (!libc) /* dlsym may find the one of before 2003, for other conditions */
        libc = (__typeof__(libc))dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!libc)
        libc = (__typeof__(libc))dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    return libc(condition, mutex, real_deadline(until, &room));
}

unsigned alarm(unsigned seconds)
{
    return (unsigned)(LIBC(alarm)((unsigned)(seconds * TIMES + 0.999)) / TIMES + 0.999);
}

int setitimer(__itimer_which_t which, const struct itimerval *restrict wanted, struct itimerval *restrict old)
{
    struct itimerval room;
    if (wanted)
        room = (struct itimerval){micro_by(&wanted->it_interval, TIMES), micro_by(&wanted->it_value, TIMES)};
    int failed = LIBC(setitimer)(which, wanted ? &room : NULL, old);
    if (!failed && old)
        *old = (struct itimerval){micro_by(&old->it_interval, 1 / TIMES), micro_by(&old->it_value, 1 / TIMES)};
    return failed;
}

int timerfd_settime(int fd, int flags, const struct itimerspec *wanted, struct itimerspec *old)
{
    struct itimerspec room = *wanted;
    if (counts(&wanted->it_value))
        room = (struct itimerspec){by(&wanted->it_interval, TIMES), by(&wanted->it_value, TIMES)};
    return LIBC(timerfd_settime)(fd, flags, &room, old);
}

int getrusage(__rusage_who_t who, struct rusage *usage)
{
    int failed = LIBC(getrusage)(who, usage);
    if (!failed) {
        usage->ru_utime = micro_by(&usage->ru_utime, 1 / TIMES);
        usage->ru_stime = micro_by(&usage->ru_stime, 1 / TIMES);
    }
    return failed;
}

clock_t times(struct tms *buffer)
{
    clock_t now = LIBC(times)(buffer);
    if (buffer)
        *buffer = (struct tms){(clock_t)(buffer->tms_utime / TIMES), (clock_t)(buffer->tms_stime / TIMES),
                               (clock_t)(buffer->tms_cutime / TIMES), (clock_t)(buffer->tms_cstime / TIMES)};
    return (clock_t)(now / TIMES);
}
