/* The system: see platform.h. First what differs between POSIX and Windows, then the processor. */
#include "platform.h"

#if defined(_WIN32)
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>
#include <process.h>
#else
#include <errno.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#endif

#if defined(NOVA_X86)
#include <xmmintrin.h>
#if !defined(_MSC_VER)
#include <cpuid.h>
#endif
#endif

#define THREAD_STACK ((size_t)1 << 20)   /* the same everywhere: some systems' default is 128 KiB, others' 8 MiB */
#define READ_PIECE   ((size_t)16 << 20)

/* ---- Libraries ---- */

#ifdef _WIN32

static void *library_open(const char *name) {
    /* Not from the current folder, where somebody else's file of that name may lie. */
    return (void *)LoadLibraryExA(name, NULL, LOAD_LIBRARY_SEARCH_DEFAULT_DIRS | LOAD_LIBRARY_SEARCH_SYSTEM32);
}

static any_function library_function(void *library, const char *name) {
    return (any_function)(uintptr_t)GetProcAddress((HMODULE)library, name);
}

static void library_close(void *library) { FreeLibrary((HMODULE)library); }

#else

static void *library_open(const char *name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL); }

static any_function library_function(void *library, const char *name) {
    void        *object = dlsym(library, name);
    any_function f;
    memcpy(&f, &object, sizeof f);   /* ISO C has no cast from an object's pointer to a function's */
    return f;
}

static void library_close(void *library) { dlclose(library); }

#endif

/* ---- Messages about paths ---- */

/* A path's last part that fits into a message together with the reason; whole characters. */
static const char *path_tail(const char *path) {
    size_t n = strlen(path), most = 180;
    if (n <= most) return path;
    const char *p = path + n - most;
    while ((*p & 0xC0) == 0x80) p++;
    return p;
}

static nova_result fail_path(nova_error *error, nova_result code, const char *path, const char *reason) {
    const char *tail = path_tail(path);
    return fail(error, code, "%s%s: %s", tail == path ? "" : "...", tail, reason);
}

static nova_result fail_path_code(nova_error *error, const char *path, const char *reason, long number) {
    const char *tail = path_tail(path);
    return fail(error, NOVA_ERROR_FILE, "%s%s: %s (system error %ld)", tail == path ? "" : "...", tail, reason, number);
}

typedef struct system_reason { long number; const char *text; } system_reason;

static nova_result fail_system(nova_error *error, const char *path, const char *what, long number,
                               const system_reason *reasons, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (reasons[i].number == number) return fail_path(error, NOVA_ERROR_FILE, path, reasons[i].text);
    return fail_path_code(error, path, what, number);
}

#if !defined(_WIN32)

/* ---- POSIX: threads ---- */

typedef char thread_handle_fits[sizeof(pthread_t) <= sizeof(uintptr_t) ? 1 : -1];

static void *thread_main(void *p) {
    thread *t = (thread *)p;
    t->fn(t->arg);
    return NULL;
}

/* The host's signals are not for our threads; faults and the profiler's clock must still arrive where they happen. */
static void thread_signals(sigset_t *set) {
    static const int stay[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGPROF};
    sigfillset(set);
    for (size_t i = 0; i < COUNT_OF(stay); i++) sigdelset(set, stay[i]);
}

static bool thread_start(thread *t, void (*fn)(void *arg), void *arg) {
    pthread_attr_t attributes;
    pthread_t      handle;
    sigset_t       blocked, before;
    t->fn  = fn;
    t->arg = arg;
    if (NOVA_FAULT("thread") || pthread_attr_init(&attributes) != 0) return false;
    (void)pthread_attr_setstacksize(&attributes, THREAD_STACK);   /* else the default, which is as good */
    thread_signals(&blocked);
    bool masked  = pthread_sigmask(SIG_SETMASK, &blocked, &before) == 0;
    bool started = pthread_create(&handle, &attributes, thread_main, t) == 0 ||
                   pthread_create(&handle, NULL, thread_main, t) == 0;   /* the host's thread-local data is larger */
    if (masked) (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (started) t->handle = (uintptr_t)handle;
    return started;
}

static void thread_join(thread *t) { (void)pthread_join((pthread_t)t->handle, NULL); }

static void thread_yield(void) { (void)sched_yield(); }

typedef struct posix_lock { pthread_mutex_t mutex; pthread_cond_t condition; } posix_lock;
typedef char posix_lock_fits[sizeof(posix_lock) <= sizeof(wait_lock) ? 1 : -1];

static posix_lock *posix_lock_of(wait_lock *l) { return (posix_lock *)(void *)l->storage; }

static bool wait_lock_init(wait_lock *l) {
    posix_lock *p = posix_lock_of(l);
    if (NOVA_FAULT("mutex") || pthread_mutex_init(&p->mutex, NULL) != 0) return false;
    if (pthread_cond_init(&p->condition, NULL) == 0) return true;
    pthread_mutex_destroy(&p->mutex);
    return false;
}

static void wait_lock_free(wait_lock *l) {
    pthread_cond_destroy(&posix_lock_of(l)->condition);
    pthread_mutex_destroy(&posix_lock_of(l)->mutex);
}

static void wait_lock_enter(wait_lock *l) { pthread_mutex_lock(&posix_lock_of(l)->mutex); }
static void wait_lock_leave(wait_lock *l) { pthread_mutex_unlock(&posix_lock_of(l)->mutex); }
static void wait_lock_sleep(wait_lock *l) { pthread_cond_wait(&posix_lock_of(l)->condition, &posix_lock_of(l)->mutex); }
static void wait_lock_wake_all(wait_lock *l) { pthread_cond_broadcast(&posix_lock_of(l)->condition); }

/* ---- POSIX: time ---- */

static uint64_t clock_ns(void) {
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC, &now) != 0) return 0;
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool clock_local(int64_t unix_time, struct tm *out) {
    time_t t = (time_t)unix_time;
    return (int64_t)t == unix_time && localtime_r(&t, out) != NULL;
}

/* ---- POSIX: files ---- */

static nova_result fail_errno(nova_error *error, const char *path, const char *what, int number) {
    static const system_reason reasons[] = {
        {ENOENT, "no such file"},
        {ENOTDIR, "no such file: a part of the path is not a directory"},
        {ENAMETOOLONG, "the path is too long for this system"},
        {ELOOP, "too many symbolic links"},
        {EACCES, "no permission to read it"},
        {EPERM, "no permission to read it"},
        {EISDIR, "is a directory, not a file"},
        {ENXIO, "is not a regular file"},
        {EMFILE, "cannot be opened: the process has too many files open"},
        {ENFILE, "cannot be opened: the system has too many files open"},
        {EOVERFLOW, "is too large for this system"},
        {ENODEV, "cannot be mapped on this file system; read it into memory instead"},
        {EIO, "cannot be read: input/output error"},
    };
    return fail_system(error, path, what, number, reasons, COUNT_OF(reasons));
}

/* The descriptor's size if it is a regular file that has something in it and fits the address space. */
static nova_result file_check(int fd, const char *path, size_t *size, nova_error *error) {
    struct stat s;
    if (fstat(fd, &s) != 0) return fail_errno(error, path, "cannot be examined", errno);
    if (S_ISDIR(s.st_mode)) return fail_path(error, NOVA_ERROR_FILE, path, "is a directory, not a file");
    if (!S_ISREG(s.st_mode)) return fail_path(error, NOVA_ERROR_FILE, path, "is not a regular file");
    if (s.st_size <= 0) return fail_path(error, NOVA_ERROR_FILE, path, "is empty");
    if ((uint64_t)s.st_size > SIZE_MAX / 2)
        return fail_path(error, NOVA_ERROR_FILE, path, "is too large for the address space of this process");
    *size = (size_t)s.st_size;
    return NOVA_OK;
}

static nova_result file_map_os(file_map *f, int fd, const char *path, nova_error *error) {
    void *p = NOVA_FAULT("map") ? (errno = ENODEV, MAP_FAILED) : mmap(NULL, f->size, PROT_READ, MAP_SHARED, fd, 0);
    if (p != MAP_FAILED) {
        f->data = (const uint8_t *)p;
        return NOVA_OK;
    }
    if (errno != ENOMEM) return fail_errno(error, path, "cannot be mapped", errno);
    return fail_path(error, NOVA_ERROR_MEMORY, path, "no address space left to map it");
}

/* Reads up to n bytes; fewer at the end of the file; -1 on errors. */
static int64_t file_read_some(int fd, uint8_t *to, size_t n) {
    for (;;) {
        ssize_t got = NOVA_FAULT("read") ? (errno = EIO, -1) : read(fd, to, n);
        if (got >= 0 || errno != EINTR) return (int64_t)got;
    }
}

static nova_result fail_read(nova_error *error, const char *path) {
    return fail_errno(error, path, "cannot be read", errno);
}

typedef int os_file;

/* A FIFO without a writer would hold us up, hence O_NONBLOCK; regular files do not care. */
static nova_result file_open_handle(os_file *out, size_t *size, const host *h, const char *path, nova_error *error) {
    (void)h;
    int fd;
    do fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    while (fd < 0 && errno == EINTR);
    if (fd < 0) return fail_errno(error, path, "cannot be opened", errno);
    nova_result r = file_check(fd, path, size, error);
    if (r != NOVA_OK) (void)close(fd);
    else *out = fd;
    return r;
}

static void file_close_handle(os_file fd) { (void)close(fd); }

static void file_unmap(const uint8_t *data, size_t size) { (void)munmap((void *)(uintptr_t)data, size); }

#else

/* ---- Windows: threads ---- */

static unsigned __stdcall thread_main(void *p) {
    thread *t = (thread *)p;
    t->fn(t->arg);
    return 0;
}

static bool thread_start(thread *t, void (*fn)(void *arg), void *arg) {
    t->fn     = fn;
    t->arg    = arg;
    t->handle = NOVA_FAULT("thread") ? 0
              : (uintptr_t)_beginthreadex(NULL, (unsigned)THREAD_STACK, thread_main, t,
                                          STACK_SIZE_PARAM_IS_A_RESERVATION, NULL);
    return t->handle != 0;
}

static void thread_join(thread *t) {
    WaitForSingleObject((HANDLE)t->handle, INFINITE);
    CloseHandle((HANDLE)t->handle);
}

static void thread_yield(void) { SwitchToThread(); }

typedef struct windows_lock { SRWLOCK lock; CONDITION_VARIABLE condition; } windows_lock;
typedef char windows_lock_fits[sizeof(windows_lock) <= sizeof(wait_lock) ? 1 : -1];

static windows_lock *windows_lock_of(wait_lock *l) { return (windows_lock *)(void *)l->storage; }

static bool wait_lock_init(wait_lock *l) {
    if (NOVA_FAULT("mutex")) return false;
    InitializeSRWLock(&windows_lock_of(l)->lock);
    InitializeConditionVariable(&windows_lock_of(l)->condition);
    return true;
}

static void wait_lock_free(wait_lock *l) { (void)l; }
static void wait_lock_enter(wait_lock *l) { AcquireSRWLockExclusive(&windows_lock_of(l)->lock); }
static void wait_lock_leave(wait_lock *l) { ReleaseSRWLockExclusive(&windows_lock_of(l)->lock); }
static void wait_lock_sleep(wait_lock *l) {
    SleepConditionVariableSRW(&windows_lock_of(l)->condition, &windows_lock_of(l)->lock, INFINITE, 0);
}
static void wait_lock_wake_all(wait_lock *l) { WakeAllConditionVariable(&windows_lock_of(l)->condition); }

/* ---- Windows: time ---- */

static uint64_t clock_ns(void) {
    LARGE_INTEGER ticks, per_second;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&per_second);
    uint64_t t = (uint64_t)ticks.QuadPart, f = (uint64_t)per_second.QuadPart;
    return t / f * 1000000000u + t % f * 1000000000u / f;
}

static bool clock_local(int64_t unix_time, struct tm *out) {
    __time64_t t = unix_time;
    return _localtime64_s(out, &t) == 0;
}

/* ---- Windows: files ---- */

static nova_result fail_windows(nova_error *error, const char *path, const char *what, DWORD number) {
    static const system_reason reasons[] = {
        {ERROR_FILE_NOT_FOUND, "no such file"},
        {ERROR_PATH_NOT_FOUND, "no such file"},
        {ERROR_INVALID_NAME, "no such file: the name is not valid"},
        {ERROR_BAD_PATHNAME, "no such file: the name is not valid"},
        {ERROR_BAD_NETPATH, "no such file: the network path was not found"},
        {ERROR_NO_UNICODE_TRANSLATION, "no such file: the path is not UTF-8"},
        {ERROR_FILENAME_EXCED_RANGE, "the path is too long for this system"},
        {ERROR_ACCESS_DENIED, "no permission to read it"},
        {ERROR_SHARING_VIOLATION, "is in use by another program"},
        {ERROR_LOCK_VIOLATION, "is in use by another program"},
        {ERROR_NOT_READY, "cannot be opened: the drive is not ready"},
        {ERROR_TOO_MANY_OPEN_FILES, "cannot be opened: too many files are open"},
        {ERROR_DIRECTORY, "is a directory, not a file"},
    };
    return fail_system(error, path, what, (long)number, reasons, COUNT_OF(reasons));
}

/* UTF-8 to UTF-16; *n counts units, the end included. NULL with the reason in `error`. */
static WCHAR *path_widen(const host *h, const char *path, size_t *n, nova_error *error) {
    int need = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, NULL, 0);
    if (need <= 0) {
        fail_windows(error, path, "the path cannot be understood", GetLastError());
        return NULL;
    }
    *n = (size_t)need;
    WCHAR *wide = (WCHAR *)mem_alloc(h, *n * sizeof(WCHAR));
    if (!wide) fail_memory(error, *n * sizeof(WCHAR), "a path");
    else MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, need);
    return wide;
}

/* Paths of MAX_PATH and longer work only absolute and behind the prefix "\\?\" (Win32, "Maximum Path Length").
 * Returns the path to use, inside or equal to a block of *n units that the caller frees; NULL with a reason. */
static WCHAR *path_long(const host *h, const char *path, const WCHAR *wide, size_t *n, WCHAR **use, nova_error *error) {
    static const WCHAR prefix[] = {'\\', '\\', '?', '\\', 'U', 'N', 'C'};
    enum { ROOM = 8 };
    DWORD need = GetFullPathNameW(wide, 0, NULL, NULL);   /* the end included */
    if (need == 0) {
        fail_windows(error, path, "the path cannot be understood", GetLastError());
        return NULL;
    }
    *n = (size_t)need + ROOM;
    WCHAR *block = (WCHAR *)mem_alloc(h, *n * sizeof(WCHAR));
    if (!block) {
        fail_memory(error, *n * sizeof(WCHAR), "a path");
        return NULL;
    }
    WCHAR *full = block + ROOM;
    DWORD    got  = GetFullPathNameW(wide, need, full, NULL);
    if (got == 0 || got >= need) full[0] = 0;
    *use = full;
    bool device = full[0] == '\\' && full[1] == '\\' && (full[2] == '?' || full[2] == '.') && full[3] == '\\';
    if (got < MAX_PATH || device) return block;
    bool share = full[0] == '\\' && full[1] == '\\';      /* \\server\share becomes \\?\UNC\server\share */
    size_t k = share ? 7 : 4;
    *use = full + (share ? 1 : 0) - k;
    memcpy(*use, prefix, k * sizeof(WCHAR));
    return block;
}

typedef HANDLE os_file;

/* The handle's size if it is a regular file that has something in it and fits the address space. */
static nova_result file_check(HANDLE file, const char *path, size_t *size, nova_error *error) {
    LARGE_INTEGER n;
    if (GetFileType(file) != FILE_TYPE_DISK) return fail_path(error, NOVA_ERROR_FILE, path, "is not a regular file");
    if (!GetFileSizeEx(file, &n)) return fail_windows(error, path, "cannot be examined", GetLastError());
    if (n.QuadPart <= 0) return fail_path(error, NOVA_ERROR_FILE, path, "is empty");
    if ((uint64_t)n.QuadPart > SIZE_MAX / 2)
        return fail_path(error, NOVA_ERROR_FILE, path, "is too large for the address space of this process");
    *size = (size_t)n.QuadPart;
    return NOVA_OK;
}

static nova_result file_open_wide(os_file *out, size_t *size, const WCHAR *wide, const char *path, nova_error *error) {
    DWORD kind = GetFileAttributesW(wide);
    if (kind != INVALID_FILE_ATTRIBUTES && (kind & FILE_ATTRIBUTE_DIRECTORY))
        return fail_path(error, NOVA_ERROR_FILE, path, "is a directory, not a file");
    HANDLE file = CreateFileW(wide, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, NULL, OPEN_EXISTING,
                              FILE_ATTRIBUTE_NORMAL, NULL);
    if (file == INVALID_HANDLE_VALUE) return fail_windows(error, path, "cannot be opened", GetLastError());
    nova_result r = file_check(file, path, size, error);
    if (r != NOVA_OK) CloseHandle(file);
    else *out = file;
    return r;
}

static nova_result file_open_handle(os_file *out, size_t *size, const host *h, const char *path, nova_error *error) {
    size_t      n_wide, n_block;
    nova_error  unheard;
    if (!error) error = &unheard;
    WCHAR    *use  = NULL;
    WCHAR    *wide = path_widen(h, path, &n_wide, error);
    if (!wide) return error->code;
    WCHAR    *block = path_long(h, path, wide, &n_block, &use, error);
    nova_result r     = block ? file_open_wide(out, size, use, path, error) : error->code;
    mem_free(h, block, block ? n_block * sizeof(WCHAR) : 0);
    mem_free(h, wide, n_wide * sizeof(WCHAR));
    return r;
}

/* The view keeps the mapping alive: no handle has to be kept. */
static nova_result file_map_os(file_map *f, os_file file, const char *path, nova_error *error) {
    HANDLE mapping = NOVA_FAULT("map") ? NULL : CreateFileMappingW(file, NULL, PAGE_READONLY, 0, 0, NULL);
    if (!mapping) return fail_windows(error, path, "cannot be mapped", GetLastError());
    f->data = (const uint8_t *)MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, f->size);
    nova_result r = f->data ? NOVA_OK : fail_path(error, NOVA_ERROR_MEMORY, path, "no address space left to map it");
    CloseHandle(mapping);
    return r;
}

static int64_t file_read_some(os_file file, uint8_t *to, size_t n) {
    DWORD got = 0;
    if (NOVA_FAULT("read") || !ReadFile(file, to, (DWORD)size_min(n, READ_PIECE), &got, NULL)) return -1;
    return (int64_t)got;
}

static nova_result fail_read(nova_error *error, const char *path) {
    return fail_windows(error, path, "cannot be read", GetLastError());
}

static void file_close_handle(os_file file) { CloseHandle(file); }

static void file_unmap(const uint8_t *data, size_t size) {
    (void)size;
    UnmapViewOfFile(data);
}

#endif

/* ---- Both ---- */

static int64_t clock_unix(void) { return (int64_t)time(NULL); }

/* Fills f->data, or says why not. One byte more is asked for: a file that grows is as wrong as one that shrinks. */
static nova_result file_fill(file_map *f, os_file file, const char *path, nova_progress_fn progress,
                             void *progress_user, nova_error *error) {
    uint8_t *to   = (uint8_t *)(uintptr_t)f->data;
    size_t   done = 0, shown = 0;
    while (done < f->size) {
        int64_t got = file_read_some(file, to + done, size_min(f->size - done, READ_PIECE - (done - shown)));
        if (got < 0) return fail_read(error, path);
        if (got == 0) return fail_path(error, NOVA_ERROR_FILE, path, "became shorter while it was read");
        done += (size_t)got;
        if (done < f->size && done - shown < READ_PIECE) continue;
        shown = done;
        if (progress && !progress(progress_user, "reading", done, f->size))
            return fail_path(error, NOVA_CANCELLED, path, "reading was cancelled");
    }
    uint8_t more;
    int64_t got = file_read_some(file, &more, 1);
    if (got < 0) return fail_read(error, path);
    return got == 0 ? NOVA_OK : fail_path(error, NOVA_ERROR_FILE, path, "became longer while it was read");
}

static nova_result file_load(file_map *f, os_file file, const host *h, const char *path, nova_progress_fn progress,
                             void *progress_user, nova_error *error) {
    f->block = mem_alloc(h, f->size + CACHE_LINE);   /* the size is at most SIZE_MAX / 2 */
    if (!f->block) return fail_memory(error, f->size + CACHE_LINE, "the file");
    f->data = (const uint8_t *)(((uintptr_t)f->block + CACHE_LINE - 1) & ~(uintptr_t)(CACHE_LINE - 1));
    nova_result r = file_fill(f, file, path, progress, progress_user, error);
    if (r != NOVA_OK) file_close(f, h);
    return r;
}

static nova_result file_open(file_map *f, const host *h, const char *path, bool to_memory,
                             nova_progress_fn progress, void *progress_user, nova_error *error) {
    os_file file = (os_file)0;
    memset(f, 0, sizeof *f);
    nova_result r = file_open_handle(&file, &f->size, h, path, error);
    if (r != NOVA_OK) return r;
    r = to_memory ? file_load(f, file, h, path, progress, progress_user, error) : file_map_os(f, file, path, error);
    file_close_handle(file);
    if (r != NOVA_OK) memset(f, 0, sizeof *f);
    return r;
}

static void file_close(file_map *f, const host *h) {
    if (f->block) mem_free(h, f->block, f->size + CACHE_LINE);
    else if (f->data) file_unmap(f->data, f->size);
    memset(f, 0, sizeof *f);
}

/* ---- The processor: features ---- */

#if defined(NOVA_X86)

/* EAX, EBX, ECX, EDX; zeros for leaves that the processor does not have. */
static void cpuid_read(uint32_t leaf, uint32_t r[4]) {
    memset(r, 0, 4 * sizeof r[0]);
#if defined(_MSC_VER)
    int regs[4];
    __cpuid(regs, 0);
    if ((uint32_t)regs[0] < leaf) return;
    __cpuidex(regs, (int)leaf, 0);
    memcpy(r, regs, sizeof regs);
#else
    (void)__get_cpuid_count(leaf, 0, &r[0], &r[1], &r[2], &r[3]);
#endif
}

/* Which registers the operating system saves (XCR0). Only where cpuid says OSXSAVE. */
static uint64_t xgetbv_read(void) {
#if defined(_MSC_VER)
    return _xgetbv(0);
#else
    uint32_t low, high;
    __asm__ __volatile__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
#endif
}

/* Bits: Intel SDM volume 2, CPUID leaves 1 and 7; volume 1, 13.3 (XCR0). */
static uint32_t cpu_features(void) {
    enum { FMA = 1 << 12, OSXSAVE = 1 << 27, AVX = 1 << 28, F16C = 1 << 29 };                 /* leaf 1, ECX */
    enum { AVX2 = 1 << 5, AVX512F = 1 << 16, AVX512DQ = 1 << 17, AVX512BW = 1 << 30 };        /* leaf 7, EBX */
    const uint32_t AVX512VL = (uint32_t)1 << 31;
    enum { AVX512VBMI = 1 << 1, AVX512VNNI = 1 << 11 };                                       /* leaf 7, ECX */
    enum { YMM_STATE = 0x06, ZMM_STATE = 0xE6 };                                              /* XCR0 */
    const uint32_t need1 = FMA | OSXSAVE | AVX | F16C;
    const uint32_t need7b = (uint32_t)(AVX512F | AVX512DQ | AVX512BW) | AVX512VL;
    const uint32_t need7c = AVX512VBMI | AVX512VNNI;
    uint32_t leaf1[4], leaf7[4];
    cpuid_read(1, leaf1);
    cpuid_read(7, leaf7);
    if ((leaf1[2] & need1) != need1 || !(leaf7[1] & AVX2)) return 0;
    uint64_t state = xgetbv_read();
    if ((state & YMM_STATE) != YMM_STATE) return 0;
    bool wide = (state & ZMM_STATE) == ZMM_STATE && (leaf7[1] & need7b) == need7b && (leaf7[2] & need7c) == need7c;
    return NOVA_CPU_AVX2 | (wide ? (uint32_t)NOVA_CPU_AVX512 : 0);
}

#else

static uint32_t cpu_features(void) { return 0; }

#endif

/* ---- The processor: cores ---- */

#if defined(__linux__)

/* The file's start as text; false when it cannot be read. */
static bool system_text(const char *path, char *text, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, text, size - 1);
    (void)close(fd);
    text[n > 0 ? n : 0] = 0;
    return n > 0;
}

#define CPU_MASK_BYTES 4096

static bool mask_has(const uint8_t *mask, unsigned long cpu) {
    return cpu < CPU_MASK_BYTES * 8 && (mask[cpu / 8] >> (cpu % 8) & 1);
}

/* A core counts once: for the first of its hardware threads that we may use. The list reads "0,4" or "0-1". */
static bool core_counts(const uint8_t *mask, unsigned long cpu) {
    char path[96], text[256];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%lu/topology/thread_siblings_list", cpu);
    if (!system_text(path, text, sizeof text)) return true;
    for (char *p = text; *p >= '0' && *p <= '9';) {
        unsigned long first = strtoul(p, &p, 10), last = first;
        if (*p == '-') last = strtoul(p + 1, &p, 10);
        for (unsigned long i = first; i <= last && i < cpu; i++)
            if (mask_has(mask, i)) return false;
        if (*p == ',') p++;
    }
    return true;
}

/* How many processors' time a control group grants ("200000 100000": two), or UINT32_MAX. */
static uint32_t quota_read(const char *path) {
    char text[64], *p;
    if (!system_text(path, text, sizeof text)) return UINT32_MAX;
    unsigned long long quota = strtoull(text, &p, 10), period = strtoull(p, NULL, 10);
    if (p == text || quota == 0 || period == 0 || quota / period >= UINT32_MAX - 1) return UINT32_MAX;
    return (uint32_t)((quota + period - 1) / period);
}

/* The tightest quota of our control group (version 2) and those around it. */
static uint32_t quota_cores(void) {
    char text[512], path[600];
    uint32_t cores = quota_read("/sys/fs/cgroup/cpu.max");
    if (!system_text("/proc/self/cgroup", text, sizeof text) || strncmp(text, "0::/", 4) != 0) return cores;
    text[strcspn(text, "\n")] = 0;
    for (char *group = text + 3, *slash; (slash = strrchr(group, '/')) != NULL; *slash = 0) {
        if (!slash[1]) continue;
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
        uint32_t here = quota_read(path);
        if (here < cores) cores = here;
    }
    return cores;
}

static uint32_t cpu_cores(void) {
    NOVA_ALIGN(16) uint8_t mask[CPU_MASK_BYTES];
    uint32_t n = 0;
    memset(mask, 0, sizeof mask);
    if (syscall(SYS_sched_getaffinity, 0, sizeof mask, mask) <= 0) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        return online > 0 ? (uint32_t)online : 1;
    }
    for (unsigned long cpu = 0; cpu < CPU_MASK_BYTES * 8; cpu++)
        if (mask_has(mask, cpu) && core_counts(mask, cpu)) n++;
    uint32_t quota = quota_cores();
    if (quota < n) n = quota;
    return n ? n : 1;
}

#elif defined(_WIN32)

/* Of the process's processor group (64 at most): more threads than that are asked for by hand. */
static uint32_t cpu_cores(void) {
    SYSTEM_LOGICAL_PROCESSOR_INFORMATION info[512];
    DWORD_PTR ours = 0, all = 0;
    DWORD     bytes = sizeof info;
    uint32_t  n = 0;
    if (!GetProcessAffinityMask(GetCurrentProcess(), &ours, &all)) ours = 0;
    if (ours && GetLogicalProcessorInformation(info, &bytes)) {
        for (DWORD i = 0; i < bytes / sizeof info[0]; i++)
            if (info[i].Relationship == RelationProcessorCore && (info[i].ProcessorMask & ours)) n++;
    }
    if (n == 0) for (; ours; ours &= ours - 1) n++;   /* the system does not tell: hardware threads */
    return n ? n : 1;
}

#else

static uint32_t cpu_cores(void) {
#if defined(__APPLE__)
    /* The fast ones: work that meets at barriers is as slow as its slowest thread. */
    static const char *const names[] = {"hw.perflevel0.physicalcpu", "hw.physicalcpu"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        int32_t n = 0;
        size_t  size = sizeof n;
        if (sysctlbyname(names[i], &n, &size, NULL, 0) == 0 && size == sizeof n && n > 0) return (uint32_t)n;
    }
#endif
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}

#endif

/* ---- Floating-point modes ---- */

#if defined(NOVA_X86)

/* MXCSR (Intel SDM volume 1, 10.2.3): all exceptions masked, nearest, FTZ and DAZ off, no flag raised. */
static float_mode float_mode_enter(void) {
    float_mode m;
    m.saved = _mm_getcsr();
    _mm_setcsr(0x1F80);
    return m;
}

static void float_mode_leave(float_mode m) { _mm_setcsr((unsigned)m.saved); }

#elif defined(NOVA_ARM64)

#if defined(_MSC_VER)
#ifndef ARM64_FPCR
#define ARM64_FPCR 0x5A20   /* op0 3, op1 3, CRn 4, CRm 4, op2 0 */
#endif
static uint64_t fpcr_read(void) { return (uint64_t)_ReadStatusReg(ARM64_FPCR); }
static void     fpcr_write(uint64_t v) { _WriteStatusReg(ARM64_FPCR, (__int64)v); }
#else
static uint64_t fpcr_read(void) {
    uint64_t v;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(v));
    return v;
}
static void fpcr_write(uint64_t v) { __asm__ __volatile__("msr fpcr, %0" : : "r"(v) : "memory"); }
#endif

/* FPCR (Arm ARM, C5.2): zero is nearest, no flushing, no default NaN, no traps. */
static float_mode float_mode_enter(void) {
    float_mode m;
    m.saved = fpcr_read();
    fpcr_write(0);
    return m;
}

static void float_mode_leave(float_mode m) { fpcr_write(m.saved); }

#else

static float_mode float_mode_enter(void) {
    float_mode m;
    m.saved = 0;
    return m;
}

static void float_mode_leave(float_mode m) { (void)m; }

#endif
