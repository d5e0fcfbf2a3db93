// The live heap of one process, by LD_PRELOAD: a thread of its own writes the bytes that malloc has handed out, four times a
// second, to the file that HEAP_FILE names (heap.py). glibc counts chunks that a thread keeps for itself as handed out.
#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct Heap {
  uint64_t samples;
  uint64_t bytes;
};

static void* Watch(void* mapped) {
  struct Heap* const heap = mapped;
  const struct timespec pause = {0, 250000000L};
  for (;;) {
    const struct mallinfo2 info = mallinfo2();
    __atomic_store_n(&heap->bytes, info.uordblks + info.hblkhd, __ATOMIC_RELEASE);
    __atomic_add_fetch(&heap->samples, 1, __ATOMIC_RELEASE);
    nanosleep(&pause, NULL);
  }
  return NULL;
}

__attribute__((constructor)) static void Start(void) {
  const char* const path = getenv("HEAP_FILE");
  if (path == NULL) return;
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  unsetenv("HEAP_FILE");  // programs that this one starts have heaps of their own
  if (fd < 0) return;
  void* const mapped = mmap(NULL, sizeof(struct Heap), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (mapped == MAP_FAILED) return;
  // Signals are for the threads of the program.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  if (pthread_create(&thread, NULL, Watch, mapped) == 0) pthread_detach(thread);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}
