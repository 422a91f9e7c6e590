/* Prints the messages of an rt log: a session, or a merged log. docs/LOG_FORMAT.md is all it needs.
 *
 *     cc -O2 -o reader reader.c -lz              # with -DZSTD -lzstd it reads compressed frames too
 *     ./reader rt-data/stream/out
 *
 * A line is: position, number in the merged log, session, sequence number, time in ns, key, headers,
 * payload; the last three in hexadecimal, "-" for nothing. A torn end is no error. Exit: 1 if the log is
 * damaged, 2 if it cannot be read here. A last file is not searched for later frames that would prove
 * that a damaged one was whole. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#ifdef ZSTD
#include <zstd.h>
#endif

enum { HEADER = 64, FILES = 65536, MIB = 1 << 20 };
typedef struct { uint64_t at, end; int rolled, archived; } LogFile;
static LogFile files[FILES];
static int count, merged;
static char session[64]; /* of the session log, or of the range that is being read */
static uint64_t left, next, skip, number; /* of that range: bytes, position, repeats, next number */

static void fail(int code, const char *words, uint64_t at) {
    fprintf(stderr, "%llu.%llu.%llu: %s\n", (unsigned long long)(at >> 44),
            (unsigned long long)(at >> 30 & 16383), (unsigned long long)(at & 0x3fffffff), words);
    exit(code);
}
static uint64_t little(const uint8_t *p, int n) { return n ? p[0] | little(p + 1, n - 1) << 8 : 0; }
static uint64_t field(const char *line, const char *name) {
    const char *found = strstr(line, name);
    return found ? strtoull(found + strlen(name), 0, 10) : 0;
}
static LogFile *file_of(const char *name) {
    unsigned long run, roll;
    char again[64];
    if (sscanf(name, "log.%lu.%lu", &run, &roll) != 2 || run > 524287 || roll > 16383) return 0;
    int length = snprintf(again, sizeof again, "log.%lu.%lu", run, roll);
    if (strncmp(name, again, length) || (name[length] && name[length] != '"')) return 0;
    uint64_t at = (uint64_t)run << 44 | (uint64_t)roll << 30;
    for (int i = 0; i < count; i++) if (files[i].at == at) return &files[i];
    if (count == FILES) fail(2, "more files than this program can hold", at);
    files[count].at = at;
    return &files[count++];
}
static uint8_t *load(const char *directory, const char *name, size_t *size) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "rb");
    if (!file) { *size = 0; return 0; }
    fseek(file, 0, SEEK_END);
    *size = ftell(file);
    rewind(file);
    uint8_t *data = malloc(*size + 1);
    *size = fread(data, 1, *size, file);
    data[*size] = 0;
    fclose(file);
    return data;
}
static void manifest(const char *directory) {
    size_t size;
    char *data = (char *)load(directory, "manifest", &size), *line = data, *end;
    if (!data) { fprintf(stderr, "%s has no manifest: it is not a log\n", directory); exit(2); }
    for (; (end = strchr(line, '\n')); line = end + 1) { /* what follows the last one was not written */
        *end = 0;
        size_t length = end - line;
        if (length < 10 || crc32(0, (uint8_t *)line, length - 9) != strtoul(end - 8, 0, 16)) {
            fprintf(stderr, "manifest: a line is damaged: %.40s\n", line);
            exit(1);
        }
        const char *name = strstr(line, "\"file\":\"");
        LogFile *file = name ? file_of(name + 8) : 0;
        if (strstr(line, "\"what\":\"log\"")) {
            merged = strstr(line, "\"kind\":\"merged\"") != 0;
            if (!merged) sscanf(strstr(line, "\"name\":\"") + 8, "%63[^\"]", session);
        } else if (file && strstr(line, "\"what\":\"rolled\"")) {
            file->rolled = 1;
            file->end = field(line, "\"end\":");
        } else if (file && strstr(line, "\"what\":\"archived\"")) file->archived = 1;
    }
    free(data);
}
static void hex(const uint8_t *p, uint64_t n) { while (n--) printf("%02x", *p++); }
static void text(const uint8_t *p, uint64_t n) { if (n) hex(p, n); else putchar('-'); }

static void headers(const uint8_t *p, uint64_t n, uint64_t at) {
    if (!n) putchar('-');
    for (const uint8_t *end = p + n; p < end;) {
        if (end - p < 3 || end - p < 3 + p[0] + (long)little(p + 1, 2)) fail(1, "wrong headers", at);
        hex(p + 3, p[0]);
        putchar('=');
        hex(p + 3 + p[0], little(p + 1, 2));
        p += 3 + p[0] + little(p + 1, 2);
        if (p < end) putchar(',');
    }
}
/* Checks a column's offsets, and returns where they end. */
static const uint8_t *offsets(const uint8_t *p, uint64_t messages, uint64_t at) {
    for (uint64_t i = 0; i < messages; i++)
        if (little(p + 4 * i, 4) > little(p + 4 * i + 4, 4)) fail(1, "offsets decrease", at);
    if (little(p, 4)) fail(1, "offsets do not begin with 0", at);
    return p + 4 * (messages + 1);
}
static void messages_of(const uint8_t *h, const uint8_t *body, uint64_t size, uint64_t at) {
    uint64_t n = little(h + 40, 4), columns = 1 + (h[58] & 1) + (h[58] >> 1);
    const uint8_t *offset[3] = {body + 8 * n, 0, 0}, *data[3] = {0, 0, 0}, *p = body + 8 * n;
    if (size < 8 * n + columns * 4 * (n + 1)) fail(1, "the columns do not fit", at);
    p = offsets(p, n, at);
    for (int i = 1; i < 3; i++) if (h[58] & i) { offset[i] = p; p = offsets(p, n, at); }
    for (int i = 0; i < 3; i++) if (offset[i]) { data[i] = p; p += little(offset[i] + 4 * n, 4); }
    if (p != body + size) fail(1, "the columns do not add up to the body", at);
    for (uint64_t i = 0; i < n; i++) {
        if (merged && skip) { skip--; continue; } /* a repeat */
        printf("%llu.%llu.%llu\t", (unsigned long long)(at >> 44), (unsigned long long)(at >> 30 & 16383),
               (unsigned long long)((at & 0x3fffffff) + i));
        if (merged) printf("%llu\t", (unsigned long long)number++); else printf("-\t");
        printf("%s\t%llu\t%lld\t", session, (unsigned long long)(little(h + 16, 8) + i),
               (long long)little(body + 8 * i, 8));
        for (int each = 1; each < 3; each++) {
            const uint8_t *o = offset[each] ? offset[each] + 4 * i : 0;
            uint64_t begin = o ? little(o, 4) : 0, length = o ? little(o + 4, 4) - begin : 0;
            if (each == 1) text(data[1] + begin, length); else headers(data[2] + begin, length, at);
            putchar('\t');
        }
        uint64_t begin = little(offset[0] + 4 * i, 4);
        text(data[0] + begin, little(offset[0] + 4 * i + 4, 4) - begin);
        putchar('\n');
    }
}
/* Returns the bytes of the whole, intact frame at p, or 0. */
static uint64_t whole(const uint8_t *p, uint64_t room) {
    if (room < HEADER || memcmp(p, "RTF\1", 4) || crc32(0, p + 8, 56) != little(p + 4, 4)) return 0;
    uint64_t length = little(p + 44, 4), raw = little(p + 48, 4), n = little(p + 40, 4), size = HEADER + length;
    if (p[56] > 2 || p[57] > 1 || p[58] > 3 || p[59] || length > 32 * MIB || raw > 32 * MIB) return 0;
    if ((p[56] == 0 && (!n || n > raw / 12)) || (p[56] == 2 && n) || (!p[57] && raw != length)) return 0;
    if (p[56] == 0 && n > size) size = n;
    size = (size + 7) / 8 * 8;
    if (size > room || crc32(0, p + HEADER, length) != little(p + 52, 4)) return 0;
    for (uint64_t i = HEADER + length; i < size; i++) if (p[i]) return 0;
    return size;
}
static void frame(const uint8_t *p, uint64_t size, uint64_t at) {
    const uint8_t *body = p + HEADER;
    uint64_t length = little(p + 44, 4), raw = little(p + 48, 4);
    if (p[56] == 1) {
        uint64_t name = little(body + 36, 2);
        if (!merged || left || little(p + 8, 8) != at || length < 56 || name != length - 56 || name > 63)
            fail(1, "a range is where none can be", at);
        memcpy(session, body + 56, name);
        session[name] = 0;
        next = little(body + 16, 8), left = little(body + 24, 8), skip = little(body + 32, 4);
        number = little(p + 16, 8);
        return;
    }
    if (crc32(0, (uint8_t *)session, strlen(session)) != little(p + 60, 4)) fail(1, "another session's", at);
    if (little(p + 8, 8) != (merged ? next : at) || (merged && size > left)) fail(1, "not in its place", at);
    if (merged) next += size, left -= size;
    if (p[56] == 2) return;
    if (p[57] == 0) { messages_of(p, body, length, at); return; }
#ifdef ZSTD
    uint8_t *plain = malloc(raw + 1);
    if (ZSTD_decompress(plain, raw, body, length) != raw) fail(1, "does not decompress", at);
    messages_of(p, plain, raw, at);
    free(plain);
#else
    (void)raw;
    fail(2, "is compressed; build this program with -DZSTD -lzstd", at);
#endif
}
static int by_place(const void *a, const void *b) {
    uint64_t x = ((LogFile *)a)->at, y = ((LogFile *)b)->at;
    return (x > y) - (x < y);
}
int main(int argc, char **argv) {
    if (argc != 2) { fprintf(stderr, "usage: reader DIRECTORY\n"); return 2; }
    DIR *directory = opendir(argv[1]);
    if (!directory) { fprintf(stderr, "%s cannot be listed\n", argv[1]); return 2; }
    for (struct dirent *each; (each = readdir(directory));) file_of(each->d_name);
    manifest(argv[1]);
    qsort(files, count, sizeof *files, by_place);
    for (int i = 0; i < count; i++) {
        LogFile *file = &files[i];
        char name[64];
        size_t size, at = 0;
        snprintf(name, sizeof name, "log.%llu.%llu", (unsigned long long)(file->at >> 44),
                 (unsigned long long)(file->at >> 30 & 16383));
        if (file->archived) { fprintf(stderr, "%s is archived\n", name); continue; }
        uint8_t *data = load(argv[1], name, &size);
        uint64_t end = file->rolled ? file->end : size, bytes;
        if (end > size) fail(1, "the file is missing or shorter than its rolled line says", file->at);
        for (; at < end && (bytes = whole(data + at, end - at)); at += bytes) frame(data + at, bytes, file->at + at);
        if (at < end || (left && file->rolled)) { /* torn, unless something says that it was written */
            if (file->rolled || i + 1 < count) fail(1, "is damaged", file->at + at);
            break;
        }
        free(data);
    }
    return 0;
}
