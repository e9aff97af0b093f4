#include "core/base/interrupt.hpp"

#include "core/errors.hpp"

#include <sys/mman.h>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <new>

namespace isobar {

namespace {

// Written by the handler and the main thread, read by every thread.
std::atomic<int> requests = 0;
std::atomic<int> requests_without_effect = 0;
static_assert(std::atomic<int>::is_always_lock_free);

std::atomic<std::atomic<bool>*> first_request = nullptr;
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<std::atomic<bool>*>::is_always_lock_free);

std::atomic<std::int64_t> last_request = 0;  // milliseconds of the steady clock
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

extern "C" void ask_to_stop(int)
{
  constexpr std::int64_t one_request = 100;
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const std::int64_t time = now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
  const std::int64_t since_last = time - last_request.exchange(time);
  const bool is_repeated = requests > 0 && since_last < one_request;
  if (requests < 2 && !is_repeated) requests = requests + 1;
  if (auto* requested = first_request.load()) requested->store(true);
}

}  // namespace

void catch_interrupts()
{
  struct sigaction action = {};
  action.sa_handler = ask_to_stop;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  for (const int signal : {SIGHUP, SIGUSR1, SIGUSR2}) {
    struct sigaction before = {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGCHLD, SIG_DFL);
}

void leave_interrupts_to_parent()
{
  for (const int signal : {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) std::signal(signal, SIG_IGN);
}

void forget_interrupts()
{
  first_request = nullptr;
  requests_without_effect = 0;
  requests = 0;
}

bool interrupted()
{
  return requests > requests_without_effect;
}

void throw_if_interrupted()
{
  if (interrupted()) throw Interrupted();
}

GracefulStop::GracefulStop()
{
  void* shared = mmap(nullptr, sizeof(*requested_), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw std::bad_alloc();
  throw_if_interrupted();
  requested_ = new (shared) std::atomic<bool>(false);
  first_request = requested_;
  requests_without_effect = 1;
  if (requests > 0) requested_->store(true);  // one that came after the check above
}

GracefulStop::~GracefulStop()
{
  requests_without_effect = 0;
  first_request = nullptr;
  munmap(requested_, sizeof(*requested_));
}

ImmediateStop::ImmediateStop()
{
  if (requests > 0) throw Interrupted();
  requests_without_effect = 0;
}

ImmediateStop::~ImmediateStop()
{
  if (first_request.load() != nullptr) requests_without_effect = 1;
}

bool GracefulStop::requested() const
{
  return requested_->load();
}

}  // namespace isobar
