// Faults for one process, by LD_PRELOAD: errors, short transfers and delays of calls on files below a folder, and a wall clock
// that jumps. The process that runs the test writes the array that FAULTS_CONTROL names (faults.py), at any time.
//
//   FAULTS_CONTROL  file of struct Control, mapped shared
//   FAULTS_FOLDER   absolute path of the folder
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { OPEN, WRITE, FSYNC, RENAME, READDIR, PREAD, UNLINK, CALLS };

struct Fault {
  int32_t error;     // errno, 0: none
  int32_t every;     // the fault happens at each call of this number; 0: never
  int32_t shorten;   // bytes that a transfer has at most, 0: all
  int32_t delay_ms;  // before the call
  int32_t calls;     // counted here
  int32_t faults;    // counted here
};

struct Control {
  int64_t clock_offset_seconds;
  struct Fault fault[CALLS];
};

static struct Control* control;
static char folder[PATH_MAX];
static size_t folder_length;

#define REAL(type, name, ...) \
  static type (*real_##name)(__VA_ARGS__); \
  if (real_##name == NULL) real_##name = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void Start(void) {
  const char* const path = getenv("FAULTS_CONTROL");
  const char* const root = getenv("FAULTS_FOLDER");
  if (path == NULL || root == NULL || strlen(root) >= sizeof(folder)) return;
  strcpy(folder, root);
  folder_length = strlen(folder);
  REAL(int, open, const char*, int, ...);
  const int fd = real_open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void* const mapped = mmap(NULL, sizeof(struct Control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped != MAP_FAILED) control = mapped;
  close(fd);
}

static int Below(const char* path) {
  return control != NULL && path != NULL && strncmp(path, folder, folder_length) == 0 &&
         (path[folder_length] == '/' || path[folder_length] == '\0');
}

static int DescriptorBelow(int fd) {
  if (control == NULL) return 0;
  char link[64];
  char path[PATH_MAX];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const int saved = errno;
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  errno = saved;
  if (length < 0) return 0;
  path[length] = '\0';
  return Below(path);
}

// Counts a call on the folder and waits. Whether it fails, with errno set.
static int Fails(int call, size_t* bytes) {
  struct Fault* const fault = &control->fault[call];
  const int number = __atomic_add_fetch(&fault->calls, 1, __ATOMIC_RELAXED);
  if (fault->every == 0 || number % fault->every != 0) return 0;
  __atomic_add_fetch(&fault->faults, 1, __ATOMIC_RELAXED);
  if (fault->delay_ms > 0) {
    const struct timespec wait = {fault->delay_ms / 1000, fault->delay_ms % 1000 * 1000000L};
    nanosleep(&wait, NULL);
  }
  if (bytes != NULL && fault->shorten > 0 && *bytes > (size_t)fault->shorten) *bytes = (size_t)fault->shorten;
  if (fault->error == 0) return 0;
  errno = fault->error;
  return 1;
}

static int OpenMode(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? (int)va_arg(arguments, unsigned) : 0;
}

#define OPEN_FUNCTION(name) \
  int name(const char* path, int flags, ...) { \
    va_list arguments; \
    va_start(arguments, flags); \
    const int mode = OpenMode(flags, arguments); \
    va_end(arguments); \
    REAL(int, name, const char*, int, ...); \
    if (Below(path) && Fails(OPEN, NULL)) return -1; \
    return real_##name(path, flags, mode); \
  }
OPEN_FUNCTION(open)
OPEN_FUNCTION(open64)

#define OPENAT_FUNCTION(name) \
  int name(int at, const char* path, int flags, ...) { \
    va_list arguments; \
    va_start(arguments, flags); \
    const int mode = OpenMode(flags, arguments); \
    va_end(arguments); \
    REAL(int, name, int, const char*, int, ...); \
    const int below = path[0] == '/' ? Below(path) : at != AT_FDCWD && DescriptorBelow(at); \
    if (below && Fails(OPEN, NULL)) return -1; \
    return real_##name(at, path, flags, mode); \
  }
OPENAT_FUNCTION(openat)
OPENAT_FUNCTION(openat64)

ssize_t write(int fd, const void* data, size_t bytes) {
  REAL(ssize_t, write, int, const void*, size_t);
  if (DescriptorBelow(fd) && Fails(WRITE, &bytes)) return -1;
  return real_write(fd, data, bytes);
}

int fsync(int fd) {
  REAL(int, fsync, int);
  if (DescriptorBelow(fd) && Fails(FSYNC, NULL)) return -1;
  return real_fsync(fd);
}

int rename(const char* from, const char* to) {
  REAL(int, rename, const char*, const char*);
  if (Below(to) && Fails(RENAME, NULL)) return -1;
  return real_rename(from, to);
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  REAL(int, renameat, int, const char*, int, const char*);
  if ((to[0] == '/' ? Below(to) : DescriptorBelow(to_folder)) && Fails(RENAME, NULL)) return -1;
  return real_renameat(from_folder, from, to_folder, to);
}

struct dirent* readdir(DIR* names) {
  REAL(struct dirent*, readdir, DIR*);
  if (DescriptorBelow(dirfd(names)) && Fails(READDIR, NULL)) return NULL;
  return real_readdir(names);
}

struct dirent64* readdir64(DIR* names) {
  REAL(struct dirent64*, readdir64, DIR*);
  if (DescriptorBelow(dirfd(names)) && Fails(READDIR, NULL)) return NULL;
  return real_readdir64(names);
}

#define PREAD_FUNCTION(name, offset_type) \
  ssize_t name(int fd, void* data, size_t bytes, offset_type offset) { \
    REAL(ssize_t, name, int, void*, size_t, offset_type); \
    if (DescriptorBelow(fd) && Fails(PREAD, &bytes)) return -1; \
    return real_##name(fd, data, bytes, offset); \
  }
PREAD_FUNCTION(pread, off_t)
PREAD_FUNCTION(pread64, off64_t)

int unlink(const char* path) {
  REAL(int, unlink, const char*);
  if (Below(path) && Fails(UNLINK, NULL)) return -1;
  return real_unlink(path);
}

int unlinkat(int at, const char* path, int flags) {
  REAL(int, unlinkat, int, const char*, int);
  const int below = path[0] == '/' ? Below(path) : at != AT_FDCWD && DescriptorBelow(at);
  if (below && Fails(UNLINK, NULL)) return -1;
  return real_unlinkat(at, path, flags);
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  REAL(int, clock_gettime, clockid_t, struct timespec*);
  const int result = real_clock_gettime(clock, now);
  if (result == 0 && control != NULL && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    now->tv_sec += control->clock_offset_seconds;
  }
  return result;
}

int gettimeofday(struct timeval* now, void* zone) {
  REAL(int, gettimeofday, struct timeval*, void*);
  const int result = real_gettimeofday(now, zone);
  if (result == 0 && control != NULL) now->tv_sec += control->clock_offset_seconds;
  return result;
}

time_t time(time_t* result) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (result != NULL) *result = now.tv_sec;
  return now.tv_sec;
}
