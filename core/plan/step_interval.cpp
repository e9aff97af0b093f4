#include "core/plan/step_interval.hpp"

#include <fmt/format.h>

#include <utility>

namespace isobar {

namespace {

/// A reader of one item of a sequence, under the name `key[index]`.
template <typename Read>
auto read_item(const DocumentNode& item, const std::string& key, std::size_t index, FaultList& faults, Read read)
{
  const std::string name = fmt::format("{}[{}]", key, index);
  DocumentNode mapping;
  mapping.kind = DocumentNode::Kind::Mapping;
  mapping.line = item.line;
  mapping.members.push_back({name, item});
  MappingReader reader(mapping, "", faults);
  return read(reader, name);
}

}  // namespace

std::optional<StepInterval> read_step_interval(MappingReader& reader, FaultList& faults)
{
  if (!reader.has("step_interval_s")) {
    if (reader.optional("interval_because") != nullptr) {
      reader.add_fault("interval_because", "goes with step_interval_s; leave it out, or write that");
    }
    return std::nullopt;
  }
  const auto number = [](MappingReader& item, const std::string& name) { return item.required_number(name); };
  const auto text = [](MappingReader& item, const std::string& name) { return item.required_text(name); };
  const auto& ends = reader.required_sequence("step_interval_s");
  std::vector<double> times;
  for (const auto& end : ends) {
    times.push_back(read_item(end, reader.path_of("step_interval_s"), times.size(), faults, number));
  }
  StepInterval interval;
  if (reader.has("interval_because")) {
    for (const auto& cause : reader.required_sequence("interval_because")) {
      const std::size_t index = interval.because.size();
      interval.because.push_back(read_item(cause, reader.path_of("interval_because"), index, faults, text));
    }
  }
  if (times.size() != 2 || times[0] > times[1]) {
    reader.add_fault("step_interval_s", "is no interval; write its two ends, the lower one first");
    return std::nullopt;
  }
  interval.low = Seconds(times[0]);
  interval.high = Seconds(times[1]);
  return interval;
}

std::string text_of(const StepInterval& interval)
{
  const auto digits = [](Seconds time) {
    constexpr Seconds long_step(1000);
    return time < long_step ? fmt::format("{:.3g}", time.value) : fmt::format("{:.0f}", time.value);
  };
  return fmt::format("{:.0f} %: {} to {} s", 100 * interval_probability, digits(interval.low), digits(interval.high));
}

}  // namespace isobar
