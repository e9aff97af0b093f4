#include "core/program/chrome_trace.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>

namespace isobar {

namespace {

/// Times are whole ticks, so that an event ends exactly where the next one on its track begins.
constexpr double ticks_per_second = 1e10;
constexpr long long ticks_per_microsecond = 10'000;

long long ticks_of(Seconds time)
{
  return std::llround(time.value * ticks_per_second);
}

std::string microseconds(long long ticks)
{
  return fmt::format("{}.{:04}", ticks / ticks_per_microsecond, ticks % ticks_per_microsecond);
}

std::string json_of(const nlohmann::ordered_json& value)
{
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// A metadata event of a process: its "process_name", "process_sort_index" or "process_labels".
std::string process_metadata(std::size_t process, const char* what, const char* key,
                             const nlohmann::ordered_json& value)
{
  return ",\n" + json_of({{"ph", "M"}, {"name", what}, {"pid", process}, {"args", {{key, value}}}});
}

/// "activation", "gradient".
const char* payload_of(const Instruction& transfer)
{
  const bool activation = transfer.lane == Lane::SendActivation || transfer.lane == Lane::ReceiveActivation;
  return activation ? "activation" : "gradient";
}

}  // namespace

std::string name_of_event(const Instruction& instruction)
{
  if (instruction.opcode == Opcode::Update || instruction.opcode == Opcode::AllReduce) {
    return std::string(name_of(instruction.opcode));
  }
  if (!is_transfer(instruction)) return fmt::format("{} {}", name_of(instruction.opcode), instruction.microbatch);
  return fmt::format("{} {} {}", name_of(instruction.opcode), payload_of(instruction), instruction.microbatch);
}

ChromeTraceWriter::ChromeTraceWriter(std::ostream& out, const std::vector<std::string>& ranks,
                                     const std::vector<std::string>& sites)
    : out_(&out), recorded_(ranks.size())
{
  ensure(sites.empty() || sites.size() == ranks.size(), "a site for each rank, or for none");
  std::string metadata;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    metadata += process_metadata(rank, "process_name", "name", ranks[rank]);
    metadata += process_metadata(rank, "process_sort_index", "sort_index", rank);
    if (!sites.empty() && !sites[rank].empty()) {
      metadata += process_metadata(rank, "process_labels", "labels", sites[rank]);
    }
    for (const Lane lane : all_lanes) {
      metadata += ",\n" + json_of({{"ph", "M"},
                                   {"name", "thread_name"},
                                   {"pid", rank},
                                   {"tid", static_cast<int>(lane)},
                                   {"args", {{"name", name_of(lane)}}}});
    }
  }
  *out_ << R"({"displayTimeUnit":"ms","otherData":{"schema":"isobar-trace/1"},"traceEvents":[)" << metadata.substr(1);
}

void ChromeTraceWriter::record(const TraceEvent& event)
{
  const Instruction& instruction = event.instruction;
  const long long begin = ticks_of(event.begin);
  std::string details =
      fmt::format(R"("step":{},"stage":{},"microbatch":{},"first_layer":{},"last_layer":{})", event.step,
                  instruction.stage, instruction.microbatch, instruction.first_layer, instruction.last_layer);
  if (is_transfer(instruction)) {
    details += fmt::format(R"(,"peer":{},"peer_position":{},"bytes":{})", instruction.peer, instruction.peer_position,
                           instruction.size.value);
  } else {
    details += fmt::format(R"(,"flops":{},"memory_bytes":{})", instruction.work.value, event.memory.value);
  }
  if (instruction.opcode == Opcode::AllReduce) details += fmt::format(R"(,"peer":{})", instruction.peer);
  if (instruction.wait.count > 0) {
    details += fmt::format(R"(,"wait_tid":{},"wait_count":{})", static_cast<int>(instruction.wait.lane),
                           instruction.wait.count);
  }
  *out_ << fmt::format(
      ",\n"
      R"({{"ph":"X","name":"{}","cat":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}}}}})",
      name_of_event(instruction), name_of(instruction.opcode), event.rank, static_cast<int>(instruction.lane),
      microseconds(begin), microseconds(ticks_of(event.end) - begin), details);
  const std::uint64_t position = position_of(event);
  if (is_transfer(instruction)) record_end_of_arrow(event, position);
}

std::uint64_t ChromeTraceWriter::position_of(const TraceEvent& event)
{
  Recorded& recorded = recorded_.at(event.rank)[static_cast<std::size_t>(event.instruction.lane)];
  if (recorded.step != event.step) recorded = {event.step, 0};
  return recorded.instructions++;
}

void ChromeTraceWriter::record_end_of_arrow(const TraceEvent& event, std::uint64_t position)
{
  const Instruction& transfer = event.instruction;
  const bool sends = transfer.opcode == Opcode::Send;
  const Receive receive = sends ? Receive(event.step, transfer.peer, other_end(transfer.lane), transfer.peer_position)
                                : Receive(event.step, event.rank, transfer.lane, position);
  const auto [arrow, is_new] = arrows_.try_emplace(receive, next_arrow_);
  // From the first byte sent to the last one received, each within its own event.
  *out_ << fmt::format(
      ",\n"
      R"({{"ph":"{}","name":"{} {}","cat":"transfer","id":{},"pid":{},"tid":{},"ts":{}}})",
      sends ? "s" : R"(f","bp":"e)", payload_of(transfer), transfer.microbatch, arrow->second, event.rank,
      static_cast<int>(transfer.lane), microseconds(ticks_of(sends ? event.begin : event.end)));
  if (is_new) {
    ++next_arrow_;
  } else {
    arrows_.erase(arrow);
  }
}

void ChromeTraceWriter::memory_changed(std::size_t rank, Seconds time, Bytes memory)
{
  *out_ << fmt::format(
      ",\n"
      R"({{"ph":"C","name":"memory","pid":{},"ts":{},"args":{{"bytes":{}}}}})",
      rank, microseconds(ticks_of(time)), memory.value);
}

void ChromeTraceWriter::link_changed(const std::string& link, Seconds time, std::size_t transfers)
{
  const std::size_t process = recorded_.size();
  if (links_.empty()) {
    *out_ << process_metadata(process, "process_name", "name", "links")
          << process_metadata(process, "process_sort_index", "sort_index", process);
  }
  const auto [name, is_new] = links_.try_emplace(link);
  if (is_new) name->second = json_of(link);
  *out_ << fmt::format(
      ",\n"
      R"({{"ph":"C","name":{},"pid":{},"ts":{},"args":{{"transfers":{}}}}})",
      name->second, process, microseconds(ticks_of(time)), transfers);
}

void ChromeTraceWriter::finish()
{
  *out_ << "\n]}\n" << std::flush;
}

}  // namespace isobar
