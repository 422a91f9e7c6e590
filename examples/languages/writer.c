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
static uint64_t scan(int fd, uint64_t *first, uint64_t *next, uint64_t times[2]) {
    uint8_t h[64];
    uint64_t at = 0;
    while (pread(fd, h, 64, at) == 64 && !memcmp(h, "RTF\1", 4) && crc32(0, h + 8, 56) == get(h + 4, 4)) {
        uint64_t length = get(h + 44, 4), n = get(h + 40, 4), size = 64 + length;
        uint8_t *body = malloc(length + 1);
        int whole = pread(fd, body, length, at + 64) == (ssize_t)length && crc32(0, body, length) == get(h + 52, 4);
        free(body);
        if (!whole) break;
        if (n > size) size = n;
        if (!at) times[0] = get(h + 24, 8), *first = get(h + 16, 8);
        times[1] = get(h + 24, 8), *next = get(h + 16, 8) + n, at += (size + 7) / 8 * 8;
    }
    return at;
}
/* Cuts off a line that was only half written. Returns the whole ones, to know which files have theirs already, or
 * 0; and the sequence number after the last file that has: it may be archived, and only the line knows. */
static char *read_manifest(uint64_t *next) {
    int fd = open(in("manifest"), O_RDWR);
    if (fd < 0 && errno == ENOENT) { errno = 0; return 0; }
    struct stat now;
    if (fd < 0 || fstat(fd, &now)) fail("the manifest cannot be opened");
    char *all = calloc(1, now.st_size + 1), *line = all, *end;
    if (read(fd, all, now.st_size) != now.st_size) fail("the manifest cannot be read");
    for (; (end = memchr(line, '\n', all + now.st_size - line)); line = end + 1) {
        char *number = memmem(line, end - line, "\"next\":", 7);
        if (end - line < 10 || crc32(0, (uint8_t *)line, end - line - 9) != strtoul(end - 8, 0, 16)) {
            errno = 0;
            fail("a line of the manifest is damaged");
        }
        if (number) *next = strtoull(number + 7, 0, 10);
    }
    if (ftruncate(fd, line - all)) fail("the manifest cannot be cut");
    close(fd);
    *line = 0;
    return line > all ? all : 0;
}
/* Names become a part of a path, and of JSON. */
static void check_name(const char *name) {
    const char *marks = "-._", *letters = "abcdefghijklmnopqrstuvwxyz0123456789";
    const char *p = name + strspn(name, letters);
    while (p > name && *p && strchr(marks, *p) && strspn(p + 1, letters)) p += 1 + strspn(p + 1, letters);
    if (p > name && !*p && p - name < 64) return;
    fprintf(stderr, "cannot use the name \"%s\": it needs 1 to 63 of a-z and 0-9, with single - . _ inside\n", name);
    exit(1);
}
typedef struct { unsigned long run, roll; } Place;
static int by_place(const void *a, const void *b) {
    const Place *x = a, *y = b;
    return x->run != y->run ? (x->run > y->run) - (x->run < y->run) : (x->roll > y->roll) - (x->roll < y->roll);
}
/* Ends the files of earlier runs that have no line yet; returns a new run. */
static unsigned long end_runs(const char *manifest, uint64_t *next) {
    Place *files = 0, place;
    int count = 0;
    DIR *listed = opendir(directory);
    for (struct dirent *each; (each = readdir(listed));) {
        char again[64];
        if (sscanf(each->d_name, "log.%lu.%lu", &place.run, &place.roll) != 2) continue;
        snprintf(again, sizeof again, "log.%lu.%lu", place.run, place.roll);
        if (strcmp(again, each->d_name)) continue;
        files = realloc(files, (count + 1) * sizeof *files);
        files[count++] = place;
    }
    closedir(listed);
    if (count) qsort(files, count, sizeof *files, by_place);
    unsigned long run = count ? files[count - 1].run + 1 : 0;
    for (int i = 0; i < count; i++) {
        char name[64], mark[96], json[1024];
        snprintf(name, sizeof name, "log.%lu.%lu", files[i].run, files[i].roll);
        snprintf(mark, sizeof mark, "\"file\":\"%s\"", name);
        if (manifest && strstr(manifest, mark)) continue;
        int fd = open(in(name), O_RDONLY);
        uint64_t first = 0, times[2] = {0, 0}, end = fd < 0 ? 0 : scan(fd, &first, next, times);
        if (fd < 0) fail("cannot open a file");
        if (!end) { /* a file without a whole frame has never been */
            if (unlink(in(name))) fail("cannot delete a file without a frame");
        } else { /* a killed writer may have written more than it synced */
            if (fsync(fd)) fail("cannot sync a file");
            snprintf(json, sizeof json, "{\"rt\":1,\"what\":\"rolled\",%s,\"end\":%llu,\"first\":%llu,\"next\":%llu,"
                     "\"first_time_ns\":%llu,\"last_time_ns\":%llu,\"at_ns\":%llu}", mark, (unsigned long long)end,
                     (unsigned long long)first, (unsigned long long)*next, (unsigned long long)times[0],
                     (unsigned long long)times[1], (unsigned long long)now_ns());
            add_line(json);
        }
        close(fd);
    }
    free(files);
    return run;
}
int main(int argc, char **argv) {
    if (argc != 4) { fprintf(stderr, "usage: writer ROOT STREAM SESSION < lines\n"); return 2; }
    check_name(argv[2]);
    check_name(argv[3]);
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
    char json[1024];
    uint64_t next = 0;
    char *manifest = read_manifest(&next);
    if (!manifest) {
        uint64_t id[2];
        if (getentropy(id, sizeof id)) fail("no random numbers");
        snprintf(json, sizeof json, "{\"rt\":1,\"what\":\"log\",\"kind\":\"session\",\"stream\":\"%s\",\"name\":\"%s\","
                 "\"id\":\"%016llx%016llx\",\"created_ns\":%llu}", argv[2], argv[3], (unsigned long long)id[0],
                 (unsigned long long)id[1], (unsigned long long)now_ns());
        add_line(json);
        sync_directory(directory);
        sync_directory(above);
    }
    unsigned long run = end_runs(manifest, &next);
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
