#pragma once

#include "core/errors.hpp"

#include <fmt/format.h>

#include <system_error>
#include <thread>
#include <utility>

namespace isobar {

/// Starts a thread that runs `work` and is joined when it is destroyed.
/// @throws EnvironmentError when the system allows no more threads.
template <typename Work>
std::jthread start_thread(Work&& work)
{
  try {
    return std::jthread(std::forward<Work>(work));
  } catch (const std::system_error& error) {
    throw EnvironmentError(fmt::format(
        "cannot start a thread: {}; the limits are `ulimit -u` and, in a container, pids.max", error.code().message()));
  }
}

}  // namespace isobar
