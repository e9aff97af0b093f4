#include "exec/rank/rank_report.hpp"

#include "core/errors.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

namespace isobar::exec {

using Json = nlohmann::json;

namespace {

/// The numbers of a rank's lanes.
std::vector<LaneId> lanes_of(const Program& program, std::size_t rank)
{
  std::vector<LaneId> lanes(program.lanes(rank).size());
  std::iota(lanes.begin(), lanes.end(), compute_lane);
  return lanes;
}

}  // namespace

std::uint64_t timed_steps(const Program& program)
{
  constexpr std::uint64_t most_instructions = 200'000, fewest_steps = 10, most_steps = 1'000;
  std::uint64_t busiest = 1;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    std::uint64_t instructions = 0;
    for (const LaneId lane : lanes_of(program, rank)) instructions += program.length(rank, lane);
    busiest = std::max(busiest, instructions);
  }
  return std::clamp(most_instructions / busiest, fewest_steps, most_steps);
}

RankReport RankReport::of(const Program& program, std::size_t rank)
{
  RankReport report;
  for (const Lane& lane : program.lanes(rank)) report.lanes.push_back({lane.name, {}});
  return report;
}

void RankReport::shift(Seconds offset)
{
  for (auto& lane : lanes) {
    for (auto& time : lane.times) {
      time.begin += offset;
      time.end += offset;
    }
  }
  for (auto& samples : memory) {
    for (auto& sample : samples) sample.time += offset;
  }
}

std::string report_to_json(const RankReport& report)
{
  Json lanes = Json::array();
  for (const auto& lane : report.lanes) {
    Json times = Json::array();
    for (const auto& time : lane.times) times.push_back({time.begin.value, time.end.value, time.memory.value});
    lanes.push_back({{"name", lane.name}, {"times", std::move(times)}});
  }
  Json memory = Json::array();
  for (const auto& samples : report.memory) {
    Json& of_tier = memory.emplace_back(Json::array());
    for (const auto& sample : samples) of_tier.push_back({sample.time.value, sample.memory.value});
  }
  Json peak_memory = Json::array();
  for (const Bytes peak : report.peak_memory) peak_memory.push_back(peak.value);
  Json evaluation;
  if (report.evaluation) {
    evaluation = {report.evaluation->loss, report.evaluation->labels, report.evaluation->correct};
  }
  return Json{{"evaluation", std::move(evaluation)},
              {"lanes", std::move(lanes)},
              {"memory", std::move(memory)},
              {"losses", report.losses},
              {"peak_memory_bytes", std::move(peak_memory)},
              {"processor_wait_fraction", report.processor_wait_fraction}}
      .dump();
}

RankReport report_from_json(const std::string& text)
{
  try {
    const auto json = Json::parse(text);
    RankReport report;
    for (const auto& json_of_lane : json.at("lanes")) {
      LaneReport& lane = report.lanes.emplace_back();
      lane.name = json_of_lane.at("name");
      for (const auto& time : json_of_lane.at("times")) {
        lane.times.push_back({Seconds(time.at(0)), Seconds(time.at(1)), Bytes(time.at(2))});
      }
    }
    for (std::size_t tier = 0; tier < tier_count; ++tier) {
      for (const auto& sample : json.at("memory").at(tier)) {
        report.memory[tier].push_back({Seconds(sample.at(0)), Bytes(sample.at(1))});
      }
      report.peak_memory[tier] = Bytes(json.at("peak_memory_bytes").at(tier));
    }
    for (const auto& loss : json.at("losses")) {
      // JSON cannot represent a loss that is not finite; it is written as null.
      report.losses.push_back(loss.is_null() ? std::numeric_limits<double>::quiet_NaN() : loss.get<double>());
    }
    report.processor_wait_fraction = json.at("processor_wait_fraction");
    if (const auto& sums = json.at("evaluation"); !sums.is_null()) {
      // As with losses, null means not finite.
      const double loss = sums.at(0).is_null() ? std::numeric_limits<double>::quiet_NaN() : sums.at(0).get<double>();
      report.evaluation = EvaluationSums{loss, sums.at(1), sums.at(2)};
    }
    return report;
  } catch (const Json::exception& error) {
    throw InputError("a rank's report", error.what());
  }
}

void RankRecorder::record(const TraceEvent& event)
{
  ended_ = ended_ || event.step >= end_;
  if (event.step >= end_) return;
  report_->lanes.at(event.instruction.lane).times.push_back({event.begin, event.end, event.memory});
}

void RankRecorder::memory_changed(std::size_t /*rank*/, Tier tier, Seconds time, Bytes memory)
{
  if (ended_) return;
  auto& samples = report_->memory[static_cast<std::size_t>(tier)];
  const Bytes before = samples.empty() ? Bytes(0) : samples.back().memory;
  if (before != memory) samples.push_back({time, memory});
}

MeasuredRun::MeasuredRun(const Program& program, std::uint64_t first_step, std::vector<RankReport> reports)
    : program_(&program),
      first_step_(first_step),
      reports_(std::move(reports)),
      begin_(std::numeric_limits<double>::infinity())
{
  ensure(reports_.size() == program.ranks(), "a run has a report from every rank");
  for (std::size_t rank = 0; rank < reports_.size(); ++rank) {
    if (reports_[rank].losses.empty()) continue;
    ensure(steps_ == 0, "one rank tells the losses");
    steps_ = reports_[rank].losses.size();
    rank_of_loss_ = rank;
  }
  timed_steps_ = std::min(steps_, exec::timed_steps(program));
  for (std::size_t rank = 0; rank < reports_.size(); ++rank) {
    ensure(reports_[rank].lanes.size() == program.lanes(rank).size(), "a report has the lanes of its rank");
    for (const LaneId id : lanes_of(program, rank)) {
      const auto& times = lane(rank, id).times;
      ensure(times.size() == timed_steps_ * program.length(rank, id), "a report holds every timed instruction");
      if (!times.empty()) begin_ = std::min(begin_, times.front().begin);
    }
  }
}

std::optional<EvaluationSums> MeasuredRun::evaluation() const
{
  std::optional<EvaluationSums> sums;
  for (const auto& report : reports_) {
    if (!report.evaluation) continue;
    if (!sums) sums.emplace();
    sums->loss += report.evaluation->loss;
    sums->labels += report.evaluation->labels;
    sums->correct += report.evaluation->correct;
  }
  return sums;
}

std::vector<Seconds> MeasuredRun::step_times() const
{
  std::vector<Seconds> ends(timed_steps_, begin_);
  for (const auto& report : reports_) {
    for (const auto& lane : report.lanes) {
      for (std::size_t i = 0; i < lane.times.size(); ++i) {
        Seconds& end = ends[i / (lane.times.size() / timed_steps_)];
        end = std::max(end, lane.times[i].end);
      }
    }
  }
  std::vector<Seconds> durations;
  Seconds before = begin_;
  for (const Seconds end : ends) durations.push_back(end - std::exchange(before, end));
  return durations;
}

std::vector<Seconds> MeasuredRun::compute_times(std::size_t rank, std::size_t stage) const
{
  const auto& times = lane(rank, compute_lane).times;
  const std::uint64_t length = program_->length(rank, compute_lane);
  std::vector<Seconds> by_step(timed_steps_);
  for (std::size_t i = 0; i < times.size(); ++i) {
    if (program_->at(rank, compute_lane, i % length).stage != stage) continue;
    by_step[i / length] += times[i].end - times[i].begin;
  }
  return by_step;
}

void MeasuredRun::replay(TraceSink& sink, const std::vector<std::string>& devices) const
{
  std::vector<TraceEvent> events;
  for (std::size_t rank = 0; rank < reports_.size(); ++rank) {
    for (const LaneId id : lanes_of(*program_, rank)) {
      const auto& times = lane(rank, id).times;
      const std::uint64_t length = program_->length(rank, id);
      for (std::size_t i = 0; i < times.size(); ++i) {
        events.push_back({first_step_ + i / length, rank, i % length, program_->at(rank, id, i % length),
                          times[i].begin - begin_, times[i].end - begin_, times[i].memory});
      }
    }
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const TraceEvent& a, const TraceEvent& b) { return a.end < b.end; });
  for (const auto& event : events) sink.record(event);
  for (std::size_t rank = 0; rank < reports_.size(); ++rank) {
    for (const Tier tier : {Tier::Device, Tier::Host, Tier::Disk}) {
      for (const auto& sample : reports_[rank].memory[static_cast<std::size_t>(tier)]) {
        sink.memory_changed(rank, tier, std::max(Seconds(0), sample.time - begin_), sample.memory);
      }
    }
  }
  replay_links(sink, devices);
}

void MeasuredRun::replay_links(TraceSink& sink, const std::vector<std::string>& devices) const
{
  struct Change {
    Seconds time;
    bool begins = false;
  };
  std::map<std::string, std::vector<Change>> changes;
  for (const auto& channel : program_->channels()) {
    const std::size_t ends = channel.ends.size();
    for (std::size_t from = 0; from < ends; ++from) {
      const auto [rank, id] = channel.ends[from];
      const auto& times = lane(rank, id).times;
      // A transfer has one sender; in a collective each end sends to the next one of the ring.
      if (times.empty() || program_->at(rank, id, 0).opcode == Opcode::Recv) continue;
      auto& link_changes = changes[devices.at(rank) + " → " + devices.at(channel.ends[(from + 1) % ends].rank)];
      for (const auto& time : times) {
        link_changes.push_back({time.begin - begin_, true});
        link_changes.push_back({time.end - begin_, false});
      }
    }
  }
  for (auto& [link, link_changes] : changes) {
    std::stable_sort(link_changes.begin(), link_changes.end(),
                     [](const Change& a, const Change& b) { return a.time < b.time; });
    std::size_t transfers = 0;
    for (const auto& change : link_changes) {
      transfers = change.begins ? transfers + 1 : transfers - 1;
      sink.link_changed(link, change.time, transfers);
    }
  }
}

}  // namespace isobar::exec
