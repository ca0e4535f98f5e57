/* Stands in for a Windows compiler when build.bat is tested under Wine: adds its command line to the file `calls`. It fails
 * where FAKE_FAILS is set, but not when it is only asked whether it is there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    const char *name = strrchr(argv[0], '\\');
    FILE       *calls = fopen("calls", "a");
    if (!calls) return 3;
    fputs(name ? name + 1 : argv[0], calls);
    for (int i = 1; i < argc; i++) fprintf(calls, " %s", argv[i]);
    fputs("\n", calls);
    fclose(calls);
    return argc > 2 && getenv("FAKE_FAILS") ? 1 : 0;
}
