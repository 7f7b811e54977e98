/* A stand-in for 3FS's user-space library: the interface that hf3fs_usrbio.h documents, over ordinary files. A thread of
 * its own reads what was submitted, so that results come when they come, in an order of its own. MOUNT, defined for the
 * compiler, is the mount point; files named *.short give half of what is asked for, *.never do not answer, *.broken fail with EIO. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct hf3fs_iov { uint8_t *base; void *iovh; char id[16]; char mount_point[256]; size_t size, block_size; int numa; };
struct hf3fs_ior {
    struct hf3fs_iov iov; void *iorh; char mount_point[256]; bool for_read; int io_depth, priority, timeout; uint64_t flags;
};
struct hf3fs_cqe { int32_t index, reserved; int64_t result; const void *userdata; };

enum { FDS = 4096, ENTRIES = 64 };
static char registered[FDS];
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;

struct io { void *ptr; int fd; size_t off; uint64_t len; const void *userdata; };
struct ring {
    pthread_mutex_t lock; pthread_cond_t changed; pthread_t worker;
    struct io prepared[ENTRIES]; int waiting, submitted, entries; bool ending;
    struct hf3fs_cqe done[ENTRIES]; int finished;
};

static int64_t perform(const struct io *io) {
    char link[64], name[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", io->fd);
    if (readlink(link, name, sizeof name - 1) < 0) return -errno;
    const char *dot = strrchr(name, '.');
    if (dot && !strcmp(dot, ".broken")) return -EIO;
    if (dot && !strcmp(dot, ".never")) return INT64_MIN;
    uint64_t len = dot && !strcmp(dot, ".short") && io->len > 1 ? io->len / 2 : io->len;
    ssize_t got = pread(io->fd, io->ptr, len, io->off);
    return got < 0 ? -errno : got;
}

static void *work(void *argument) {
    struct ring *ring = argument;
    pthread_mutex_lock(&ring->lock);
    for (;;) {
        while (!ring->submitted && !ring->ending) pthread_cond_wait(&ring->changed, &ring->lock);
        if (ring->ending) break;
        /* The last one first. */
        struct io io = ring->prepared[--ring->waiting];
        ring->submitted--;
        pthread_mutex_unlock(&ring->lock);
        int64_t result = perform(&io);
        pthread_mutex_lock(&ring->lock);
        if (result == INT64_MIN) continue;
        ring->done[ring->finished++] = (struct hf3fs_cqe){.result = result, .userdata = io.userdata};
        pthread_cond_broadcast(&ring->changed);
    }
    pthread_mutex_unlock(&ring->lock);
    return NULL;
}

int hf3fs_extract_mount_point(char *out, int size, const char *path) {
    const char *mount = MOUNT;
    if (strncmp(path, mount, strlen(mount)) || access(path, F_OK)) return -1;
    if ((int)strlen(mount) < size) strcpy(out, mount);
    return strlen(mount) + 1;
}

int hf3fs_iovcreate(struct hf3fs_iov *iov, const char *mount, size_t size, size_t block_size, int numa) {
    memset(iov, 0, sizeof *iov);
    if (strlen(mount) >= sizeof iov->mount_point) return -EINVAL;
    strcpy(iov->mount_point, mount);
    iov->base = malloc(size);
    iov->size = size, iov->block_size = block_size, iov->numa = numa;
    return iov->base ? 0 : -ENOMEM;
}

void hf3fs_iovdestroy(struct hf3fs_iov *iov) { free(iov->base); }

int hf3fs_iorcreate4(struct hf3fs_ior *ior, const char *mount, int entries, bool for_read, int io_depth, int timeout,
                     int numa, uint64_t flags) {
    (void)numa;
    memset(ior, 0, sizeof *ior);
    if (entries > ENTRIES || strlen(mount) >= sizeof ior->mount_point) return -EINVAL;
    strcpy(ior->mount_point, mount);
    ior->for_read = for_read, ior->io_depth = io_depth, ior->timeout = timeout, ior->flags = flags;
    struct ring *ring = calloc(1, sizeof *ring);
    ring->entries = entries;
    pthread_mutex_init(&ring->lock, NULL);
    pthread_cond_init(&ring->changed, NULL);
    pthread_create(&ring->worker, NULL, work, ring);
    ior->iorh = ring;
    return 0;
}

void hf3fs_iordestroy(struct hf3fs_ior *ior) {
    struct ring *ring = ior->iorh;
    pthread_mutex_lock(&ring->lock);
    ring->ending = true;
    pthread_cond_broadcast(&ring->changed);
    pthread_mutex_unlock(&ring->lock);
    pthread_join(ring->worker, NULL);
    free(ring);
}

int hf3fs_reg_fd(int fd, uint64_t flags) {
    (void)flags;
    if (fd < 0 || fd >= FDS) return EBADF;
    pthread_mutex_lock(&table);
    int answer = registered[fd] ? EINVAL : 0;
    registered[fd] = 1;
    pthread_mutex_unlock(&table);
    return answer ? answer : -fd;
}

void hf3fs_dereg_fd(int fd) {
    pthread_mutex_lock(&table);
    registered[fd] = 0;
    pthread_mutex_unlock(&table);
}

int hf3fs_prep_io(const struct hf3fs_ior *ior, const struct hf3fs_iov *iov, bool read, void *ptr, int fd, size_t off,
                  uint64_t len, const void *userdata) {
    struct ring *ring = ior->iorh;
    uint8_t *to = ptr;
    if (read != ior->for_read || !len || to < iov->base || to + len > iov->base + iov->size) return -EINVAL;
    pthread_mutex_lock(&table);
    bool known = registered[abs(fd)];
    pthread_mutex_unlock(&table);
    if (!known) return -EBADF;
    pthread_mutex_lock(&ring->lock);
    int index = ring->waiting + ring->finished < ring->entries ? ring->waiting : -EAGAIN;
    if (index >= 0) ring->prepared[ring->waiting++] = (struct io){ptr, abs(fd), off, len, userdata};
    pthread_mutex_unlock(&ring->lock);
    return index;
}

int hf3fs_submit_ios(const struct hf3fs_ior *ior) {
    struct ring *ring = ior->iorh;
    pthread_mutex_lock(&ring->lock);
    ring->submitted = ring->waiting;
    pthread_cond_broadcast(&ring->changed);
    pthread_mutex_unlock(&ring->lock);
    return 0;
}

int hf3fs_wait_for_ios(const struct hf3fs_ior *ior, struct hf3fs_cqe *cqes, int cqec, int min_results,
                       const struct timespec *abs_timeout) {
    struct ring *ring = ior->iorh;
    pthread_mutex_lock(&ring->lock);
    while (ring->finished < min_results) {
        if (!abs_timeout) pthread_cond_wait(&ring->changed, &ring->lock);
        else if (pthread_cond_timedwait(&ring->changed, &ring->lock, abs_timeout) == ETIMEDOUT) break;
    }
    int count = ring->finished < cqec ? ring->finished : cqec;
    memcpy(cqes, ring->done, count * sizeof *cqes);
    memmove(ring->done, ring->done + count, (ring->finished - count) * sizeof *cqes);
    ring->finished -= count;
    pthread_mutex_unlock(&ring->lock);
    return count;
}
