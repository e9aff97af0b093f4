#pragma once

#include "core/program/program.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

/// When the machine updates the parameters of parts whose optimizer is not on the device.
enum class UpdateOverlap : std::uint8_t {
  None,         ///< after the last gradient of the device has left, before the next step
  Step,         ///< as gradients arrive, before the next step
  NextForward,  ///< as gradients arrive; the next forward of a part waits for the part's own update alone
  Delayed       ///< the same, but the forward of the step after the next waits: training with stale parameters
};

/// Which copies a part makes beyond those that it needs.
enum class Copies : std::uint8_t {
  Lean,       ///< none: parameters come in before a pass, gradients leave after the last backward
  WriteBack,  ///< parameters return after each pass, and the next ones come after that (L2L)
  Redundant   ///< parameters return after each pass, and a place becomes free by the update (STRONGHOLD's artifact)
};

std::string_view name_of(UpdateOverlap overlap);  ///< "none", "step", "next-forward", "delayed"
std::string_view name_of(Copies copies);          ///< "lean", "write-back", "redundant"
std::optional<UpdateOverlap> update_overlap_from_name(std::string_view name);
std::optional<Copies> copies_from_name(std::string_view name);
/// All names of an enumeration, in its order.
std::vector<std::string> tier_names();
std::vector<std::string> update_overlap_names();
std::vector<std::string> copies_names();

/// Where the bytes of a part live between their uses. What is on the host or the disk is in the machine of the device.
struct Residence {
  Tier parameters = Tier::Device;   ///< device or host
  Tier gradients = Tier::Device;    ///< device or host
  Tier optimizer = Tier::Device;    ///< the machine updates the part unless it is device
  Tier activations = Tier::Device;  ///< device or host
  // Of the device, for all of its parts that are not there:
  std::size_t parameter_slots = 0;  ///< places for parameters, each for the largest part
  std::size_t gradient_slots = 0;   ///< the same for gradients
  UpdateOverlap overlap = UpdateOverlap::Step;
  Copies copies = Copies::Lean;

  /// Whether nothing of the part ever leaves the device.
  bool is_on_device() const
  {
    return parameters == Tier::Device && gradients == Tier::Device && optimizer == Tier::Device &&
           activations == Tier::Device;
  }
  bool operator==(const Residence&) const = default;
};

/// Which of several steps in a row counts. Where updates run into the next step, it is one between others: the first
/// ones have less before them, and the last one nothing after it.
struct CountedStep {
  std::uint64_t before = 0;  ///< steps before it
  std::uint64_t after = 0;   ///< steps after it

  bool overlaps() const { return before > 0; }
  std::uint64_t played() const { return before + 1 + after; }
};
CountedStep counted_step(UpdateOverlap overlap);

/// A key of a residence that cannot be so, and why.
struct ResidenceFault {
  std::string key;  ///< as plan files spell it
  std::string text;
};
/// The first fault of a residence; none if a part can live so.
std::optional<ResidenceFault> fault_of(const Residence& residence);

}  // namespace isobar
