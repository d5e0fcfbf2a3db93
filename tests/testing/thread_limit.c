// For LD_PRELOAD: pthread_create fails with EAGAIN where the process has as many threads as the file
// says that THREAD_LIMIT names, as under pids.max or RLIMIT_NPROC. Without the file there is no limit.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static int count_threads(void) {
  DIR* tasks = opendir("/proc/self/task");
  int count = 0;
  if (tasks == NULL) return 0;
  for (struct dirent* task; (task = readdir(tasks)) != NULL;) count += task->d_name[0] != '.';
  closedir(tasks);
  return count;
}

static int limit(void) {
  const char* name = getenv("THREAD_LIMIT");
  FILE* file = name == NULL ? NULL : fopen(name, "r");
  int most = INT_MAX;
  if (file == NULL) return most;
  if (fscanf(file, "%d", &most) != 1) most = INT_MAX;
  fclose(file);
  return most;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* argument) {
  static int (*real)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  if (real == NULL) *(void**)(&real) = dlsym(RTLD_NEXT, "pthread_create");
  if (count_threads() >= limit()) return EAGAIN;
  return real(thread, attributes, start, argument);
}
