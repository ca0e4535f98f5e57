/* A main() for fuzz targets without libFuzzer: replays each file, and each file of each folder, that it is given. */
#ifndef NOVA_FUZZ_REPLAY_H
#define NOVA_FUZZ_REPLAY_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if !defined(_WIN32)
#include <dirent.h>
#endif

#ifdef __cplusplus
extern "C"
#endif
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* 1 when the file was read and replayed. */
static int replay_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) return 0;
    size_t   n = 0, cap = 1 << 16, got;
    uint8_t *p = (uint8_t *)malloc(cap);
    while (p && (got = fread(p + n, 1, cap - n, f)) > 0) {
        n += got;
        if (n == cap) p = (uint8_t *)realloc(p, cap *= 2);
    }
    int bad = ferror(f);
    fclose(f);
    if (p && !bad) LLVMFuzzerTestOneInput(p, n);
    free(p);
    return p && !bad;
}

/* How many files of a folder were replayed; -1: it is no folder. */
static int replay_folder(const char *path) {
#if defined(_WIN32)
    (void)path;
    return -1;
#else
    char name[4096];
    int  n = 0;
    DIR *d = opendir(path);
    if (!d) return -1;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        n += replay_file(name);
    }
    closedir(d);
    return n;
#endif
}

int main(int argc, char **argv) {
    int n = 0;
    for (int i = 1; i < argc; i++) {
        int in_folder = replay_folder(argv[i]);
        int here      = in_folder >= 0 ? in_folder : replay_file(argv[i]);
        if (here == 0) {
            fprintf(stderr, "nothing to replay in %s\n", argv[i]);
            return 1;
        }
        n += here;
    }
    printf("%d inputs replayed\n", n);
    return n == 0;
}

#endif
