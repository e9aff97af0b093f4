// Preloaded by tests/cli/faults_test.py: limits each process to ISOBAR_FEW_THREADS threads, as if the system's limit
// was reached.
#include <dlfcn.h>
#include <pthread.h>
#include <atomic>
#include <cerrno>
#include <cstdlib>

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                              void* argument)
{
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  static std::atomic<long> left = std::atol(std::getenv("ISOBAR_FEW_THREADS"));
  return left-- > 0 ? create(thread, attributes, start, argument) : EAGAIN;
}
