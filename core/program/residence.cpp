#include "core/program/residence.hpp"

#include "core/names.hpp"

#include <fmt/format.h>

namespace isobar {

namespace {

constexpr NameTable<UpdateOverlap, 4> overlaps = {{{UpdateOverlap::None, "none"},
                                                   {UpdateOverlap::Step, "step"},
                                                   {UpdateOverlap::NextForward, "next-forward"},
                                                   {UpdateOverlap::Delayed, "delayed"}}};
constexpr NameTable<Copies, 3> all_copies = {
    {{Copies::Lean, "lean"}, {Copies::WriteBack, "write-back"}, {Copies::Redundant, "redundant"}}};

}  // namespace

std::string_view name_of(UpdateOverlap overlap)
{
  return name_in(overlaps, overlap);
}
std::string_view name_of(Copies copies)
{
  return name_in(all_copies, copies);
}
std::optional<UpdateOverlap> update_overlap_from_name(std::string_view name)
{
  return value_in(overlaps, name);
}
std::optional<Copies> copies_from_name(std::string_view name)
{
  return value_in(all_copies, name);
}
std::vector<std::string> tier_names()
{
  return {std::string(name_of(Tier::Device)), std::string(name_of(Tier::Host)), std::string(name_of(Tier::Disk))};
}
std::vector<std::string> update_overlap_names()
{
  return names_in(overlaps);
}
std::vector<std::string> copies_names()
{
  return names_in(all_copies);
}

CountedStep counted_step(UpdateOverlap overlap)
{
  return overlap >= UpdateOverlap::NextForward ? CountedStep{2, 1} : CountedStep{};
}

std::optional<ResidenceFault> fault_of(const Residence& residence)
{
  const bool moves_parameters = residence.parameters != Tier::Device;
  const bool moves_gradients = residence.gradients != Tier::Device;
  const std::pair<const char*, Tier> kept_in_memory[] = {
      {"parameters", residence.parameters}, {"gradients", residence.gradients}, {"activations", residence.activations}};
  for (const auto& [key, tier] : kept_in_memory) {
    if (tier == Tier::Disk) return ResidenceFault{key, "disk, where only the optimizer can be; write host"};
  }
  if ((moves_parameters || moves_gradients) && residence.optimizer == Tier::Device) {
    return ResidenceFault{"optimizer", fmt::format("device, while {} are on the host, which then updates them; write "
                                                   "host or disk",
                                                   moves_parameters ? "parameters" : "gradients")};
  }
  const auto fault_of_slots = [](const char* key, std::size_t slots, bool is_needed, const char* what) {
    std::optional<ResidenceFault> fault;
    if (is_needed && slots == 0) {
      fault = ResidenceFault{key, fmt::format("0; {} on the host need at least 1 on the device", what)};
    } else if (!is_needed && slots > 0) {
      fault = ResidenceFault{key, fmt::format("{}, while {} stay on the device; leave it out", slots, what)};
    }
    return fault;
  };
  if (auto fault = fault_of_slots("parameter_slots", residence.parameter_slots, moves_parameters, "parameters")) {
    return fault;
  }
  if (auto fault = fault_of_slots("gradient_slots", residence.gradient_slots, moves_gradients, "gradients")) {
    return fault;
  }
  if (residence.copies == Copies::Redundant && residence.overlap == UpdateOverlap::None) {
    return ResidenceFault{"copies",
                          "redundant, where places become free by updates, and overlap none lets these begin "
                          "after the last gradient; write overlap step"};
  }
  if (residence.copies != Copies::Lean && !moves_parameters) {
    return ResidenceFault{
        "copies", fmt::format("{}, while parameters stay on the device; leave it out", name_of(residence.copies))};
  }
  return std::nullopt;
}

}  // namespace isobar
