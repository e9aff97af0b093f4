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

std::string track_metadata(std::size_t process, std::size_t track, const std::string& name)
{
  return ",\n" +
         json_of({{"ph", "M"}, {"name", "thread_name"}, {"pid", process}, {"tid", track}, {"args", {{"name", name}}}});
}

bool has_several_stages(const Program& program, std::size_t rank)
{
  // The last instructions of a lane are the updates, one of each stage.
  std::uint64_t left = program.length(rank, compute_lane);
  if (left == 0) return false;
  const std::uint32_t last = program.at(rank, compute_lane, --left).stage;
  while (left > 0) {
    if (program.at(rank, compute_lane, --left).stage != last) return true;
  }
  return false;
}

/// True where each micro-batch has its own instruction of this kind.
bool is_of_microbatch(const Instruction& instruction)
{
  if (is_computation(instruction.opcode)) return is_pass(instruction.opcode);
  return instruction.payload == Payload::Activation || instruction.payload == Payload::Gradient;
}

/// "activation 3", "gradient facts".
std::string subject_of(const Instruction& instruction)
{
  std::string subject(name_of(instruction.payload));
  if (is_of_microbatch(instruction)) subject += fmt::format(" {}", instruction.microbatch);
  return subject;
}

std::string list_of(const Waits& waits)
{
  std::string text;
  for (const Wait& wait : waits) {
    text += fmt::format(R"({}{{"tid":{},"count":{},"periods_back":{}}})", text.empty() ? "" : ",", wait.lane,
                        wait.count, wait.periods_back);
  }
  return "[" + text + "]";
}

}  // namespace

std::string name_of_event(const Instruction& instruction)
{
  const auto opcode = name_of(instruction.opcode);
  if (!is_computation(instruction.opcode)) return fmt::format("{} {}", opcode, subject_of(instruction));
  return is_of_microbatch(instruction) ? fmt::format("{} {}", opcode, instruction.microbatch) : std::string(opcode);
}

ChromeTraceWriter::ChromeTraceWriter(std::ostream& out, const Program& program, const std::vector<std::string>& ranks,
                                     const std::vector<std::string>& sites)
    : ChromeTraceWriter(out, {{&program, ranks, sites}}, false)
{
}

ChromeTraceWriter::ChromeTraceWriter(std::ostream& out, const std::vector<TracedProgram>& programs, bool has_turns)
    : out_(&out)
{
  std::string metadata;
  for (const auto& traced : programs) {
    const Program& program = *traced.program;
    ensure(traced.ranks.size() == program.ranks(), "a name for each rank");
    ensure(traced.sites.empty() || traced.sites.size() == traced.ranks.size(), "a site for each rank, or for none");
    sinks_.push_back(std::make_unique<Part>(*this, program, ranks_.size(), first_arrow_.size()));
    metadata += metadata_of(traced, has_turns);
    for (const auto& channel : program.channels()) {
      first_arrow_.push_back(arrows_);
      arrows_ += program.length(channel.ends.front().rank, channel.ends.front().lane);
    }
  }
  *out_ << R"({"displayTimeUnit":"ms","otherData":{"schema":"isobar-trace/2"},"traceEvents":[)" << metadata.substr(1);
}

/// Adds the ranks of a program and describes their processes and tracks.
std::string ChromeTraceWriter::metadata_of(const TracedProgram& traced, bool has_turns)
{
  std::string metadata;
  for (std::size_t rank = 0; rank < traced.ranks.size(); ++rank) {
    const std::size_t process = ranks_.size();
    ranks_.push_back({has_several_stages(*traced.program, rank)});
    metadata += process_metadata(process, "process_name", "name", traced.ranks[rank]);
    metadata += process_metadata(process, "process_sort_index", "sort_index", process);
    if (!traced.sites.empty() && !traced.sites[rank].empty()) {
      metadata += process_metadata(process, "process_labels", "labels", traced.sites[rank]);
    }
    const auto& lanes = traced.program->lanes(rank);
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) metadata += track_metadata(process, lane, lanes[lane].name);
    if (has_turns) metadata += track_metadata(process, lanes.size(), "turns");
  }
  return metadata;
}

std::size_t ChromeTraceWriter::Part::channel_of(const TraceEvent& event) const
{
  const auto& channel = program_->lanes(event.rank).at(event.instruction.lane).channel;
  ensure(channel.has_value(), "transfers and collectives have a channel");
  return *channel;
}

void ChromeTraceWriter::record(const TraceEvent& event)
{
  sinks_.front()->record(event);
}

void ChromeTraceWriter::memory_changed(std::size_t rank, Tier tier, Seconds time, Bytes memory)
{
  sinks_.front()->memory_changed(rank, tier, time, memory);
}

void ChromeTraceWriter::device_held(std::size_t rank, Seconds asked, Seconds got, Seconds given_back)
{
  sinks_.front()->device_held(rank, asked, got, given_back);
}

void ChromeTraceWriter::Part::record(const TraceEvent& event)
{
  const Instruction& instruction = event.instruction;
  std::string details = fmt::format(
      R"("step":{},"position":{},"stage":{},"microbatch":{},"first_layer":{},"last_layer":{})", event.step,
      event.position, instruction.stage, instruction.microbatch, instruction.first_layer, instruction.last_layer);
  if (is_computation(instruction.opcode)) {
    // Not known of runs on devices that are not emulated.
    if (instruction.time > Seconds(0)) details += fmt::format(R"(,"alone_s":{})", instruction.time.value);
    details += fmt::format(R"(,"memory_bytes":{})", event.memory.value);
  } else if (is_copy(instruction.opcode)) {
    details += fmt::format(R"(,"payload":"{}","pass":"{}","bytes":{})", name_of(instruction.payload),
                           name_of(instruction.pass), instruction.size.value);
  } else {
    details += fmt::format(R"(,"channel":{},"payload":"{}","bytes":{})", first_channel_ + channel_of(event),
                           name_of(instruction.payload), instruction.size.value);
  }
  if (is_transfer(instruction.opcode)) {
    const Channel& channel = program_->channels().at(channel_of(event));
    details += fmt::format(R"(,"peer":{})", first_rank_ + other_end(channel, event.rank, instruction.lane).rank);
  }
  if (!instruction.waits.empty()) details += R"(,"waits":)" + list_of(instruction.waits);
  std::string name = name_of_event(instruction);
  if (writer_->ranks_.at(first_rank_ + event.rank).has_several_stages &&
      instruction.payload != Payload::GradientFacts) {
    name += fmt::format(", stage {}", instruction.stage);
  }
  const long long begin = ticks_of(event.begin);
  *writer_->out_ << fmt::format(
      ",\n"
      R"({{"ph":"X","name":"{}","cat":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}}}}})",
      name, name_of(instruction.opcode), first_rank_ + event.rank, instruction.lane, microseconds(begin),
      microseconds(ticks_of(event.end) - begin), details);
  if (is_transfer(instruction.opcode)) record_end_of_arrow(event, channel_of(event));
}

void ChromeTraceWriter::Part::record_end_of_arrow(const TraceEvent& event, std::size_t channel)
{
  const Instruction& transfer = event.instruction;
  const bool sends = transfer.opcode == Opcode::Send;
  // From the first byte sent to the last one received, each within its own event.
  *writer_->out_ << fmt::format(
      ",\n"
      R"({{"ph":"{}","name":"{}","cat":"transfer","id":{},"pid":{},"tid":{},"ts":{}}})",
      sends ? "s" : R"(f","bp":"e)", subject_of(transfer),
      1 + event.step * writer_->arrows_ + writer_->first_arrow_[first_channel_ + channel] + event.position,
      first_rank_ + event.rank, transfer.lane, microseconds(ticks_of(sends ? event.begin : event.end)));
}

void ChromeTraceWriter::Part::memory_changed(std::size_t rank, Tier tier, Seconds time, Bytes memory)
{
  bool& holds = writer_->ranks_.at(first_rank_ + rank).holds[static_cast<std::size_t>(tier)];
  holds = holds || memory > Bytes(0);
  if (!holds && tier != Tier::Device) return;
  *writer_->out_ << fmt::format(
      ",\n"
      R"({{"ph":"C","name":"{}","pid":{},"ts":{},"args":{{"bytes":{}}}}})",
      tier == Tier::Device ? "memory" : name_of(tier), first_rank_ + rank, microseconds(ticks_of(time)), memory.value);
}

void ChromeTraceWriter::Part::device_held(std::size_t rank, Seconds asked, Seconds got, Seconds given_back)
{
  const auto span = [&](const char* name, Seconds begin, Seconds end) {
    *writer_->out_ << fmt::format(
        ",\n"
        R"({{"ph":"X","name":"{}","cat":"turn","pid":{},"tid":{},"ts":{},"dur":{},"args":{{}}}})",
        name, first_rank_ + rank, program_->lanes(rank).size(), microseconds(ticks_of(begin)),
        microseconds(ticks_of(end) - ticks_of(begin)));
  };
  if (got > asked) span("wait", asked, got);
  span("hold", got, given_back);
}

void ChromeTraceWriter::link_changed(const std::string& link, Seconds time, std::size_t transfers)
{
  const std::size_t process = ranks_.size();
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
