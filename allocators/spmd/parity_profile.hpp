#pragma once

#include "core/spmd/reform.hpp"
#include "core/units.hpp"

#include <cstdint>
#include <filesystem>
#include <string>

namespace isobar::allocators::spmd {

/// Equal devices and the rates from which the published search computes times.
struct ParityProfile {
  std::uint64_t devices = 1;
  FlopsPerSecond device_flops;
  BytesPerSecond all_gather;
  BytesPerSecond all_reduce;
  BytesPerSecond reduce_scatter;
  BytesPerSecond all_to_all;

  /// Time of a collective on a tensor of `size` bytes in all: size / rate + 0.1 ms. All other reforms are free.
  Seconds time_of(isobar::spmd::ReformKind kind, Bytes size) const;
};

/// Reads a profile (docs/spmd.md): a JSON mapping of `devices`, `device_flops`, in FLOP per second, and a rate in bytes
/// per second for each collective.
/// @throws InputError naming file, line and key of every fault.
ParityProfile read_parity_profile(const std::filesystem::path& file);
/// Parses a profile; `name` stands for the file in messages.
ParityProfile parity_profile_from_json(const std::string& text, const std::string& name);

}  // namespace isobar::allocators::spmd
