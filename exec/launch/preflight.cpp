#include "exec/launch/preflight.hpp"

#include "core/errors.hpp"
#include "core/text/document.hpp"
#include "core/text/json_text.hpp"
#include "core/text/quantity_text.hpp"
#include "exec/launch/plan_ranks.hpp"
#include "exec/links/network_options.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <utility>

namespace isobar::exec {

namespace {

constexpr std::size_t nowhere = static_cast<std::size_t>(-1);

/// "rank 1 (n1)".
std::string name_of(std::size_t rank, const PresentRank& present)
{
  return fmt::format("rank {} ({})", rank, shown(present.facts.host));
}

std::string list_of(const std::vector<std::string>& names)
{
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + shown(name);
  return text;
}

/// Index of the device with this name; `nowhere` when there is none.
std::size_t device_with_name(const std::string& name, const std::vector<std::string>& devices)
{
  const auto found = std::find(devices.begin(), devices.end(), name);
  return found == devices.end() ? nowhere : static_cast<std::size_t>(found - devices.begin());
}

std::size_t device_of_host(const std::string& host, const std::vector<std::string>& devices)
{
  const std::size_t device = device_with_name(host, devices);
  return device != nowhere ? device : device_with_name(host.substr(0, host.find('.')), devices);
}

/// Devices, each of which one rank takes.
class Assignments {
 public:
  explicit Assignments(const std::vector<std::string>& names) : names_(&names), rank_of_device_(names.size(), nowhere)
  {
  }

  /// `source`: for messages, the option and the name that it gave.
  void take(std::size_t rank, const PresentRank& present, std::size_t device, const std::string& source)
  {
    if (device == nowhere) {
      assignment_.faults.push_back(fmt::format("{}: {} is not one of the plan's devices, which are {}",
                                               name_of(rank, present), source, list_of(*names_)));
    } else if (rank_of_device_[device] != nowhere) {
      assignment_.faults.push_back(fmt::format("{}: {} is already the device of rank {}", name_of(rank, present),
                                               source, rank_of_device_[device]));
    } else {
      rank_of_device_[device] = rank;
    }
  }

  /// The first free device goes to the rank.
  void take_next(std::size_t rank)
  {
    const auto free = std::find(rank_of_device_.begin(), rank_of_device_.end(), nowhere);
    ensure(free != rank_of_device_.end(), "there are as many devices as ranks");
    *free = rank;
  }

  DeviceAssignment result()
  {
    if (!assignment_.faults.empty()) return std::move(assignment_);
    assignment_.device_of_rank.resize(rank_of_device_.size());
    for (std::size_t device = 0; device < rank_of_device_.size(); ++device)
      assignment_.device_of_rank[rank_of_device_[device]] = device;
    return std::move(assignment_);
  }

 private:
  const std::vector<std::string>* names_;
  std::vector<std::size_t> rank_of_device_;
  DeviceAssignment assignment_;
};

bool every_host_is_a_device(const std::vector<PresentRank>& ranks, const std::vector<std::string>& devices)
{
  std::vector<bool> taken(devices.size());
  for (const auto& present : ranks) {
    const std::size_t device = device_of_host(present.facts.host, devices);
    if (device == nowhere || taken[device]) return false;
    taken[device] = true;
  }
  return true;
}

/// Reports the differences from rank 0 in what all ranks must share.
void compare_with_first(const RankFacts& facts, const RankFacts& first, const std::string& name,
                        std::vector<std::string>& faults)
{
  const auto compare = [&](const char* what, const std::string& here, const std::string& there) {
    if (here != there) {
      constexpr std::size_t longest = 600;
      faults.push_back(
          fmt::format("{}: {} \"{}\"; rank 0 has \"{}\"", name, what, shown(here, longest), shown(there, longest)));
    }
  };
  compare("Isobar", facts.version, first.version);
  compare("LibTorch", facts.torch_version, first.torch_version);
  compare("a plan with hash", facts.plan_hash, first.plan_hash);
  compare("a workload with hash", facts.workload_hash, first.workload_hash);
  compare("data with hash", facts.data_hash, first.data_hash);
  compare("options", facts.settings, first.settings);
}

/// Ranks on one device of one machine share its memory.
void compare_memory(const Preflight& preflight, const std::vector<PresentRank>& ranks,
                    const std::vector<std::size_t>& device_of_rank, std::vector<std::string>& faults)
{
  std::map<std::pair<std::string, std::string>, std::vector<std::size_t>> ranks_of_device;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks_of_device[{ranks[rank].facts.host, ranks[rank].facts.device}].push_back(rank);
  }
  for (const auto& [place, sharing] : ranks_of_device) {
    Bytes needed;
    std::vector<std::string> devices;
    for (const std::size_t rank : sharing) {
      needed += preflight.peak_memory[device_of_rank[rank]];
      devices.push_back(preflight.devices[device_of_rank[rank]]);
    }
    const Bytes memory = ranks[sharing.front()].facts.memory;
    if (needed <= memory) continue;
    faults.push_back(fmt::format("{}: {} of memory on {} ({}); the plan needs {} there, for {}",
                                 name_of(sharing.front(), ranks[sharing.front()]), text_of(memory), shown(place.second),
                                 shown(ranks[sharing.front()].facts.device_name), text_of(needed), list_of(devices)));
  }
}

bool is_same_type(std::string planned, std::string found)
{
  for (auto* text : {&planned, &found}) {
    std::transform(text->begin(), text->end(), text->begin(),
                   [](unsigned char letter) { return std::tolower(letter); });
  }
  return found.find(planned) != std::string::npos || planned.find(found) != std::string::npos;
}

/// Compares by inclusion, since people and profiles abbreviate the names of devices.
void compare_types(const Preflight& preflight, const std::vector<PresentRank>& ranks,
                   const std::vector<std::size_t>& device_of_rank, std::vector<std::string>& faults)
{
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string& planned = preflight.types.at(device_of_rank[rank]);
    const std::string& found = ranks[rank].facts.device_name;
    if (planned.empty() || is_same_type(planned, found)) continue;
    faults.push_back(
        fmt::format("{}: {} ({}) is of another type than the plan's {}, which is {}; plan for the present devices, "
                    "or give --emulate",
                    name_of(rank, ranks[rank]), shown(ranks[rank].facts.device), shown(found),
                    shown(preflight.devices[device_of_rank[rank]]), in_quotes(planned)));
  }
}

/// A rank that connects over the loopback interface cannot be reached from other machines.
void compare_addresses(const std::vector<PresentRank>& ranks, std::vector<std::string>& faults)
{
  std::size_t inside = nowhere;
  std::size_t outside = nowhere;
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    (is_loopback(ranks[rank].address) ? inside : outside) = rank;
  }
  if (inside == nowhere || outside == nowhere) return;
  faults.push_back(fmt::format(
      "{}: connects to rank 0 from {}, where {}, which connects from {}, cannot reach it; give --master an address "
      "of rank 0's machine that is the same for all",
      name_of(inside, ranks[inside]), ranks[inside].address, name_of(outside, ranks[outside]), ranks[outside].address));
}

}  // namespace

std::string facts_to_json(const RankFacts& facts)
{
  nlohmann::ordered_json json = {{"host", facts.host},
                                 {"device", facts.device},
                                 {"device_name", facts.device_name},
                                 {"memory_bytes", facts.memory.value},
                                 {"dtypes", facts.dtypes},
                                 {"version", facts.version},
                                 {"torch_version", facts.torch_version},
                                 {"plan_hash", facts.plan_hash},
                                 {"workload_hash", facts.workload_hash},
                                 {"data_hash", facts.data_hash},
                                 {"settings", facts.settings},
                                 {"first_step", facts.first_step}};
  if (facts.plan_device) json["plan_device"] = *facts.plan_device;
  return json_line(json);
}

RankFacts facts_from_json(const std::string& text)
{
  const std::string name = "a rank's facts";
  const DocumentNode document = parse_json(text, name);
  FaultList faults(name);
  MappingReader reader(document, "", faults);
  RankFacts facts;
  facts.host = reader.required_text("host");
  facts.plan_device = reader.optional_text("plan_device");
  facts.device = reader.required_text("device");
  facts.device_name = reader.required_text("device_name");
  facts.memory = Bytes(reader.required_number("memory_bytes"));
  for (const auto& item : reader.required_sequence("dtypes")) facts.dtypes.push_back(item.scalar);
  facts.version = reader.required_text("version");
  facts.torch_version = reader.required_text("torch_version");
  facts.plan_hash = reader.required_text("plan_hash");
  facts.workload_hash = reader.required_text("workload_hash");
  facts.data_hash = reader.required_text("data_hash");
  facts.settings = reader.required_text("settings");
  facts.first_step = reader.required_count("first_step");
  faults.throw_if_any();
  return facts;
}

DeviceAssignment assign_devices(const std::vector<PresentRank>& ranks, const std::vector<std::string>& names,
                                AssignmentRule rule)
{
  ensure(ranks.size() == names.size(), "there are as many devices as ranks");
  Assignments devices(names);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto& device = ranks[rank].facts.plan_device;
    if (!device) continue;
    devices.take(rank, ranks[rank], device_with_name(*device, names), "--plan-device " + in_quotes(*device));
  }
  const bool none_is_set = std::none_of(ranks.begin(), ranks.end(),
                                        [](const PresentRank& rank) { return rank.facts.plan_device.has_value(); });
  const bool by_host = rule == AssignmentRule::Host ||
                       (rule == AssignmentRule::Automatic && none_is_set && every_host_is_a_device(ranks, names));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].facts.plan_device) continue;
    if (!by_host) {
      devices.take_next(rank);
      continue;
    }
    const std::string& host = ranks[rank].facts.host;
    devices.take(rank, ranks[rank], device_of_host(host, names), "--map host: " + in_quotes(host));
  }
  return devices.result();
}

Preflight preflight_of(const Plan& plan, DType dtype)
{
  Preflight preflight;
  preflight.devices = devices_of_ranks(plan);
  preflight.dtype = dtype;
  preflight.peak_memory.resize(preflight.devices.size());
  preflight.types.resize(preflight.devices.size());
  for (std::size_t rank = 0; rank < preflight.devices.size(); ++rank) {
    const auto replicas = shards_of_rank(plan, rank);
    if (replicas.empty()) continue;  // the data server
    preflight.types[rank] = shard_of(plan, replicas.front()).type.value_or("");
    if (!plan.predicted) continue;
    const auto found = plan.predicted->peak_memory.find(preflight.devices[rank]);
    if (found != plan.predicted->peak_memory.end()) preflight.peak_memory[rank] = found->second;
  }
  return preflight;
}

std::string assignment_text(const Preflight& preflight, const std::vector<PresentRank>& ranks,
                            const std::vector<std::size_t>& device_of_rank)
{
  std::string text;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto& facts = ranks[rank].facts;
    text += fmt::format("{} is the plan's {}: {} ({}), {}\n", name_of(rank, ranks[rank]),
                        shown(preflight.devices[device_of_rank[rank]]), shown(facts.device), shown(facts.device_name),
                        text_of(facts.memory));
  }
  return text;
}

DeviceAssignment examine_ranks(const Preflight& preflight, const std::vector<PresentRank>& ranks)
{
  std::vector<std::string> faults;
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    compare_with_first(ranks[rank].facts, ranks.front().facts, name_of(rank, ranks[rank]), faults);
  }
  const std::string dtype(isobar::name_of(preflight.dtype));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto& facts = ranks[rank].facts;
    if (std::find(facts.dtypes.begin(), facts.dtypes.end(), dtype) == facts.dtypes.end()) {
      faults.push_back(fmt::format("{}: {} ({}) does not compute in {}, which the workload requires",
                                   name_of(rank, ranks[rank]), shown(facts.device), shown(facts.device_name), dtype));
    }
    const auto& clock = ranks[rank].clock;
    if (std::abs(clock.value) - ranks[rank].round_trip.value / 2 > preflight.clock_skew.value) {
      faults.push_back(
          fmt::format("{}: its clock is {} {} rank 0's; set the clocks, or allow more than {} with --clock-skew",
                      name_of(rank, ranks[rank]), text_of(Seconds(std::abs(clock.value))),
                      clock.value > 0 ? "ahead of" : "behind", text_of(preflight.clock_skew)));
    }
  }
  compare_addresses(ranks, faults);
  if (ranks.size() != preflight.devices.size()) {
    faults.push_back(fmt::format("{} ranks are here; the plan has {}: {}", ranks.size(), preflight.devices.size(),
                                 list_of(preflight.devices)));
    return {{}, std::move(faults)};
  }
  DeviceAssignment assignment = assign_devices(ranks, preflight.devices, preflight.rule);
  if (assignment.faults.empty()) {
    compare_memory(preflight, ranks, assignment.device_of_rank, faults);
    compare_types(preflight, ranks, assignment.device_of_rank, faults);
  }
  faults.insert(faults.end(), assignment.faults.begin(), assignment.faults.end());
  assignment.faults = std::move(faults);
  return assignment;
}

std::string different_steps(const std::vector<PresentRank>& ranks)
{
  const std::uint64_t first = ranks.front().facts.first_step;
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    const std::uint64_t step = ranks[rank].facts.first_step;
    if (step != first)
      return fmt::format("{} begins at step {}, rank 0 at step {}", name_of(rank, ranks[rank]), step, first);
  }
  return "";
}

}  // namespace isobar::exec
