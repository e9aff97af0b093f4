#include "core/interrupt.hpp"

#include "core/errors.hpp"

#include <csignal>

namespace isobar {

namespace {

volatile std::sig_atomic_t asked_to_stop = 0;

extern "C" void ask_to_stop(int)
{
  asked_to_stop = 1;
}

}  // namespace

void catch_interrupts()
{
  struct sigaction action = {};
  action.sa_handler = ask_to_stop;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction before = {};
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
  std::signal(SIGXFSZ, SIG_IGN);
}

bool interrupted()
{
  return asked_to_stop != 0;
}

void throw_if_interrupted()
{
  if (interrupted()) throw Interrupted();
}

}  // namespace isobar
