#pragma once

#include "core/base/threads.hpp"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace isobar::exec {

/// Calls `work(begin, end)` with consecutive parts of `count` values, on at most `threads` threads, of which this is
/// one; few values are one part. All parts but the last have a multiple of 65536 values. Waits for all, then rethrows
/// the exception of the first part that failed.
template <typename Work>
void in_parallel_parts(std::size_t count, std::size_t threads, const Work& work)
{
  constexpr std::size_t grain = std::size_t{1} << 16;
  const std::size_t grains = (count + grain - 1) / grain;
  const std::size_t parts = std::clamp<std::size_t>(threads, 1, std::max<std::size_t>(grains, 1));
  std::vector<std::exception_ptr> errors(parts);
  const auto run = [&](std::size_t part) {
    const auto bound = [&](std::size_t index) { return std::min(count, grains * index / parts * grain); };
    try {
      work(bound(part), bound(part + 1));
    } catch (...) {
      errors[part] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t part = 1; part < parts; ++part) others.push_back(start_thread([&run, part] { run(part); }));
    run(0);
  }
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace isobar::exec
