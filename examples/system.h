/* The system under the command line: time, memory in use, terminals, files with UTF-8 names, input, Ctrl-C.
 * To be included first: it chooses what the system's headers declare. */
#ifndef NOVA_EXAMPLES_SYSTEM_H
#define NOVA_EXAMPLES_SYSTEM_H

#if !defined(_WIN32) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE   /* sigaction, getrusage, clock_gettime in strict C11 */
#endif
#define _CRT_SECURE_NO_WARNINGS

#include "../nova.h"
#include "json.h"

#include <errno.h>
#include <signal.h>
#include <time.h>

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#ifndef NOMINMAX
#define NOMINMAX
#endif
#define PSAPI_VERSION 2   /* GetProcessMemoryInfo from kernel32 */
#include <windows.h>
#include <fcntl.h>
#include <io.h>
#include <psapi.h>
#include <shellapi.h>
#ifdef _MSC_VER
#pragma comment(lib, "shell32")
#endif
#else
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>
#endif

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* Signals and console events reach the program from outside: these two are the way in. */
static volatile sig_atomic_t  interrupts;   /* Ctrl-C since somebody last looked */
static nova_session *volatile answering;    /* what Ctrl-C cancels; NULL: nothing runs */

static void on_interrupt(void) {
    nova_session *session = answering;
    interrupts = interrupts + 1;
    if (session) nova_session_cancel(session);
}

#ifdef _WIN32

static BOOL WINAPI on_console_event(DWORD event) {
    if (event != CTRL_C_EVENT) return FALSE;
    on_interrupt();
    return TRUE;
}

static void catch_interrupts(void) { SetConsoleCtrlHandler(on_console_event, TRUE); }

static double now_ms(void) {
    LARGE_INTEGER count, frequency;
    QueryPerformanceCounter(&count);
    QueryPerformanceFrequency(&frequency);
    return (double)count.QuadPart * 1e3 / (double)frequency.QuadPart;
}

static uint64_t peak_rss_bytes(void) {
    PROCESS_MEMORY_COUNTERS counters;
    memset(&counters, 0, sizeof counters);
    return GetProcessMemoryInfo(GetCurrentProcess(), &counters, sizeof counters) ? counters.PeakWorkingSetSize : 0;
}

static bool is_terminal(FILE *file) {
    DWORD mode;
    return GetConsoleMode((HANDLE)_get_osfhandle(_fileno(file)), &mode) != 0;
}

/* UTF-16 to UTF-8; the result is never freed, for it lives as long as the program or its one caller. */
static char *utf8_from_wide(const wchar_t *wide, int n) {
    int   size = WideCharToMultiByte(CP_UTF8, 0, wide, n, NULL, 0, NULL, NULL);
    char *utf8 = (char *)resize_or_exit(NULL, (size_t)size + 1, 1);
    WideCharToMultiByte(CP_UTF8, 0, wide, n, utf8, size, NULL, NULL);
    utf8[size] = 0;
    return utf8;
}

static FILE *open_file(const char *path, const char *mode) {
    wchar_t wide_path[4096], wide_mode[8];
    if (!MultiByteToWideChar(CP_UTF8, 0, path, -1, wide_path, COUNT_OF(wide_path)) ||
        !MultiByteToWideChar(CP_UTF8, 0, mode, -1, wide_mode, COUNT_OF(wide_mode))) {
        errno = ENOENT;
        return NULL;
    }
    return _wfopen(wide_path, wide_mode);
}

/* Bytes from standard input: 0 at the end, -1 with errno (EINTR after Ctrl-C). */
static long read_stdin(char *buffer, size_t size) {
    if (!is_terminal(stdin)) return _read(0, buffer, (unsigned)size);
    wchar_t wide[1024];   /* a console gives UTF-8 only through its wide calls */
    DWORD   n    = 0;
    int     seen = interrupts;
    if (!ReadConsoleW(GetStdHandle(STD_INPUT_HANDLE), wide, COUNT_OF(wide), &n, NULL)) return errno = EIO, -1;
    if (n == 0) {
        Sleep(50);   /* the handler runs on a thread of its own, perhaps a little later */
        if (interrupts != seen) return errno = EINTR, -1;
    }
    if (n == 0 || wide[0] == 26) return 0;   /* Ctrl-Z */
    return WideCharToMultiByte(CP_UTF8, 0, wide, (int)n, buffer, (int)size, NULL, NULL);
}

static bool is_broken_pipe(int number) { return number == EPIPE || number == EINVAL; }   /* EINVAL: once it is known */

static char **system_start(int *argc, char **argv) {
    int       n;
    wchar_t **wide = CommandLineToArgvW(GetCommandLineW(), &n);
    SetConsoleOutputCP(CP_UTF8);
    _setmode(_fileno(stdin), _O_BINARY);
    _setmode(_fileno(stdout), _O_BINARY);
    DWORD  mode;
    HANDLE console = GetStdHandle(STD_ERROR_HANDLE);
    if (GetConsoleMode(console, &mode)) SetConsoleMode(console, mode | 4);   /* ENABLE_VIRTUAL_TERMINAL_PROCESSING */
    if (!wide) return argv;
    char **utf8 = (char **)resize_or_exit(NULL, (size_t)n + 1, sizeof *utf8);
    for (int i = 0; i < n; i++) utf8[i] = utf8_from_wide(wide[i], -1);
    utf8[n] = NULL;
    LocalFree(wide);
    *argc = n;
    return utf8;
}

#else

static void on_signal(int number) {
    int saved = errno;
    (void)number;
    on_interrupt();
    errno = saved;
}

static void catch_interrupts(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;   /* without SA_RESTART: a waiting read ends */
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static uint64_t peak_rss_bytes(void) {
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
#ifdef __APPLE__
    return (uint64_t)usage.ru_maxrss;
#else
    return (uint64_t)usage.ru_maxrss * 1024;
#endif
}

static bool  is_terminal(FILE *file) { return isatty(fileno(file)) != 0; }
static FILE *open_file(const char *path, const char *mode) { return fopen(path, mode); }
static long  read_stdin(char *buffer, size_t size) { return (long)read(0, buffer, size); }

static bool is_broken_pipe(int number) { return number == EPIPE; }

static char **system_start(int *argc, char **argv) {
    (void)argc;
    signal(SIGPIPE, SIG_IGN);   /* a reader that has gone shows as a failed write */
    for (int fd = 0; fd < 3; fd++)   /* or a file opened later would take the place of a closed stdout */
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) != fd) exit(1);
    return argv;
}

#endif

#endif
