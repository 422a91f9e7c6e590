/* Writes a session of rt, one message for each line of standard input. docs/LOG_FORMAT.md is all it needs.
 *
 *     cc -O2 -o writer writer.c -lz
 *     seq 1000 | ./writer rt-data stream counter      # then: rt push --root rt-data
 *
 * Each start begins a new run and goes on with the next sequence number. A line is on the disk when its
 * number is printed. It rolls no file: after 1 GiB it asks to be started again. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

static char directory[4096];

static void fail(const char *words) {
    fprintf(stderr, "%s: %s: %s\n", directory, words, errno ? strerror(errno) : "see docs/LOG_FORMAT.md");
    exit(1);
}
static void put(uint8_t *p, uint64_t value, int bytes) { while (bytes--) *p++ = value, value >>= 8; }
static uint64_t get(const uint8_t *p, int n) { return n ? p[0] | get(p + 1, n - 1) << 8 : 0; }
static const char *in(const char *name) {
    static char path[4400];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}
static void sync_directory(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0 || fsync(fd)) fail("cannot sync the directory");
    close(fd);
}
static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}
static void add_line(const char *json) {
    char line[4096];
    int length = snprintf(line, sizeof line, "%s %08lx\n", json, crc32(0, (const uint8_t *)json, strlen(json)));
    int fd = open(in("manifest"), O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (fd < 0 || write(fd, line, length) != length || fsync(fd)) fail("cannot write the manifest");
    close(fd);
}
/* Returns the end of the whole frames of a file, and the next sequence number after them. */
static uint64_t scan(int fd, uint64_t *next, uint64_t times[2]) {
    uint8_t h[64];
    uint64_t at = 0;
    while (pread(fd, h, 64, at) == 64 && !memcmp(h, "RTF\1", 4) && crc32(0, h + 8, 56) == get(h + 4, 4)) {
        uint64_t length = get(h + 44, 4), n = get(h + 40, 4), size = 64 + length;
        uint8_t *body = malloc(length + 1);
        if (pread(fd, body, length, at + 64) != (ssize_t)length || crc32(0, body, length) != get(h + 52, 4)) break;
        free(body);
        if (n > size) size = n;
        if (!at) times[0] = get(h + 24, 8);
        times[1] = get(h + 24, 8), *next = get(h + 16, 8) + n, at += (size + 7) / 8 * 8;
    }
    return at;
}
int main(int argc, char **argv) {
    if (argc != 4) { fprintf(stderr, "usage: writer ROOT STREAM SESSION < lines\n"); return 2; }
    snprintf(directory, sizeof directory, "%s", argv[1]);
    mkdir(directory, 0755);
    snprintf(directory, sizeof directory, "%s/%s", argv[1], argv[2]);
    mkdir(directory, 0755);
    char above[4096];
    memcpy(above, directory, sizeof above);
    snprintf(directory, sizeof directory, "%s/%s/%s", argv[1], argv[2], argv[3]);
    if (mkdir(directory, 0755) && errno != EEXIST) fail("cannot be made");
    errno = 0;
    int lock = open(in("lock"), O_RDWR | O_CREAT, 0644);
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB)) fail("it has a live writer");
    char json[1024], *manifest = 0;
    FILE *file = fopen(in("manifest"), "r");
    if (file) { /* to know which files have their line already */
        manifest = calloc(1, 64 << 20);
        if (fread(manifest, 1, (64 << 20) - 1, file) == 0) fail("the manifest is empty");
        fclose(file);
    } else {
        uint64_t id[2];
        if (getentropy(id, sizeof id)) fail("no random numbers");
        snprintf(json, sizeof json, "{\"rt\":1,\"what\":\"log\",\"kind\":\"session\",\"stream\":\"%s\",\"name\":\"%s\","
                 "\"id\":\"%016llx%016llx\",\"created_ns\":%llu}", argv[2], argv[3], (unsigned long long)id[0],
                 (unsigned long long)id[1], (unsigned long long)now_ns());
        add_line(json);
        sync_directory(directory);
        sync_directory(above);
    }
    unsigned long run = 0, roll;
    uint64_t next = 0;
    DIR *listed = opendir(directory);
    for (struct dirent *each; (each = readdir(listed));) {
        unsigned long found;
        char again[64];
        if (sscanf(each->d_name, "log.%lu.%lu", &found, &roll) != 2) continue;
        snprintf(again, sizeof again, "log.%lu.%lu", found, roll);
        if (!strcmp(again, each->d_name) && found >= run) run = found + 1;
    }
    for (unsigned long old = 0; old < run; old++) { /* end older runs; this program wrote one file in each */
        char name[64], mark[96];
        snprintf(name, sizeof name, "log.%lu.0", old);
        snprintf(mark, sizeof mark, "\"what\":\"rolled\",\"file\":\"%s\"", name);
        int fd = open(in(name), O_RDONLY);
        uint64_t first = next, times[2] = {0, 0}, end = fd < 0 ? 0 : scan(fd, &next, times);
        if (fd >= 0) close(fd);
        if (manifest && strstr(manifest, mark)) continue;
        if (!end) { /* a run without a whole frame has never been */
            if (fd >= 0 && unlink(in(name))) fail("cannot delete a file without a frame");
            continue;
        }
        snprintf(json, sizeof json, "{\"rt\":1,%s,\"end\":%llu,\"first\":%llu,\"next\":%llu,\"first_time_ns\":%llu,"
                 "\"last_time_ns\":%llu,\"at_ns\":%llu}", mark, (unsigned long long)end, (unsigned long long)first,
                 (unsigned long long)next, (unsigned long long)times[0], (unsigned long long)times[1],
                 (unsigned long long)now_ns());
        add_line(json);
    }
    char name[64];
    snprintf(name, sizeof name, "log.%lu.0", run);
    int fd = -1;
    uint64_t offset = 0, durable = 0;
    char *line = 0;
    size_t room = 0;
    for (ssize_t length; (length = getline(&line, &room, stdin)) >= 0;) {
        if (length && line[length - 1] == '\n') length--;
        if (fd < 0) { /* a file that has no message is never made */
            fd = open(in(name), O_WRONLY | O_CREAT | O_EXCL, 0644);
            if (fd < 0) fail("cannot begin a file");
            sync_directory(directory);
        }
        uint64_t body = 8 + 4 * 2 + length, size = (64 + body + 7) / 8 * 8;
        if (body > 16 << 20 || offset + size > (1 << 30) - 8) { errno = 0; fail("start again: the file or the line is too long"); }
        uint8_t *frame = calloc(1, size);
        memcpy(frame, "RTF\1", 4);
        put(frame + 8, (uint64_t)run << 44 | offset, 8);
        put(frame + 16, next, 8);
        put(frame + 24, now_ns(), 8);
        put(frame + 32, durable, 8);
        put(frame + 40, 1, 4);
        put(frame + 44, body, 4);
        put(frame + 48, body, 4);
        memcpy(frame + 64, frame + 24, 8); /* the time of the message */
        put(frame + 76, length, 4);
        memcpy(frame + 80, line, length);
        put(frame + 52, crc32(0, frame + 64, body), 4);
        put(frame + 60, crc32(0, (uint8_t *)argv[3], strlen(argv[3])), 4);
        put(frame + 4, crc32(0, frame + 8, 56), 4);
        if (write(fd, frame, size) != (ssize_t)size || fdatasync(fd)) fail("cannot write; write nothing more");
        free(frame);
        offset += size;
        durable = (uint64_t)run << 44 | offset;
        printf("%llu\n", (unsigned long long)next++);
        fflush(stdout);
    }
    return 0;
}
