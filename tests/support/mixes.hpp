#pragma once

#include "core/jobs/mix.hpp"
#include "core/program/program.hpp"
#include "sim/play/simulation.hpp"
#include "tests/support/simulated.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

/// Mixes of small jobs, simulated.
namespace isobar::sim {

/// Jobs with a turn of one step each.
inline Mix mix_of(std::size_t jobs, Discipline discipline = Discipline::Strict, LinkSharing links = LinkSharing::Fifo)
{
  Mix mix;
  for (std::size_t job = 0; job < jobs; ++job) {
    mix.jobs.push_back({std::string(1, static_cast<char>('a' + job)), "", "", Seconds(0)});
    mix.turns.push_back({job, 1});
  }
  mix.discipline = discipline;
  mix.links = links;
  return mix;
}

/// A program of a mix and the devices of its ranks, which compute 1 GFLOP/s.
struct TestJob {
  std::shared_ptr<const Program> program;
  std::vector<std::string> hosts;
  double interference = 1;
};

/// A job of two devices that computes for `compute` seconds, and then sums gradients over links of 1 GB/s for
/// `transfer` seconds, in up to four equal `buckets`. Each becomes ready with an equal part of the last `backward`
/// seconds of the computation. The next step waits for all of them.
inline TestJob lockstep(double compute, double transfer, std::vector<std::string> hosts = {"a", "b"},
                        std::uint64_t buckets = 1, double backward = 0)
{
  auto program = std::make_shared<ListedProgram>(2);
  const double part = backward / static_cast<double>(buckets);
  Waits all;
  for (std::uint64_t bucket = 0; bucket < buckets && transfer > 0; ++bucket) {
    const std::string lane = fmt::format("sync {}", bucket);
    const std::size_t channel = program->connect({{0, lane}, {1, lane}});
    program->testing_support::EditableProgram::collective(channel, Opcode::AllReduce, Payload::ParameterGradient,
                                                          1e9 * transfer / static_cast<double>(buckets),
                                                          after_compute(bucket + 1));
    all.add({program->channels().at(channel).ends[0].lane, 1, 1});
  }
  for (const std::size_t rank : {0U, 1U}) {
    const Waits& waits = all;
    program->compute(rank, Seconds((compute - backward + part)), waits);
    for (std::uint64_t bucket = 1; bucket < buckets; ++bucket) program->compute(rank, Seconds(part));
  }
  return {program, std::move(hosts)};
}

/// When each step of each job ends, and how long each job waited for a device at most.
struct MixTimes {
  std::vector<std::vector<double>> ends;
  std::vector<double> longest_wait;
  std::vector<double> link_bytes;
  double total = 0;

  /// The mean time of rounds `first` to `last`, where each job has a step per round.
  double round(std::size_t first, std::size_t last) const
  {
    const auto end_of = [&](std::size_t step) {
      double end = 0;
      for (const auto& job : ends) end = std::max(end, job.at(step));
      return end;
    };
    return (end_of(last) - end_of(first - 1)) / static_cast<double>(last - first + 1);
  }
  /// That of the rounds after the first.
  double round() const { return round(1, ends.front().size() - 1); }
};

/// The longest wait for a device.
class WaitMeter : public TraceSink {
 public:
  void record(const TraceEvent& /*event*/) override {}
  void device_held(std::size_t /*rank*/, Seconds asked, Seconds got, Seconds /*given_back*/) override
  {
    longest = std::max(longest, (got - asked).value);
  }
  double longest = 0;
};

/// Simulates a mix in this process. Each job has `rounds` times its steps per round, or its steps if it has them.
inline MixTimes times_of(const Platform& platform, const std::vector<TestJob>& jobs, const Mix& mix,
                         std::uint64_t rounds)
{
  std::vector<WaitMeter> meters(jobs.size());
  std::vector<SimulatedJob> simulated;
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    auto ranks = on_hosts(jobs[job].hosts);
    for (auto& rank : ranks) rank.interference = jobs[job].interference;
    simulated.push_back({*jobs[job].program, std::move(ranks),
                         mix.jobs[job].steps.value_or(rounds * steps_per_round(mix, job)), &meters[job]});
  }
  const MixReport report = simulate(platform, simulated, mix);
  MixTimes times;
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    double end = mix.jobs[job].start.value;
    times.ends.emplace_back();
    for (const Seconds step : report.step_times[job]) times.ends.back().push_back(end += step.value);
    times.total = std::max(times.total, end);
    times.longest_wait.push_back(meters[job].longest);
  }
  for (const auto& link : report.links) times.link_bytes.push_back(link.bytes.value);
  return times;
}

inline std::string text_of(const MixTimes& times)
{
  return nlohmann::json{
      {"ends", times.ends}, {"waits", times.longest_wait}, {"bytes", times.link_bytes}, {"total", times.total}}
      .dump();
}

inline MixTimes times_from(const std::string& text)
{
  const auto json = nlohmann::json::parse(text);
  return {json["ends"].get<std::vector<std::vector<double>>>(), json["waits"].get<std::vector<double>>(),
          json["bytes"].get<std::vector<double>>(), json["total"].get<double>()};
}

/// Simulates mixes on one platform, each in a process of its own.
class MixRuns {
 public:
  explicit MixRuns(const Platform& platform) : platform_(platform) {}

  MixTimes operator()(const std::vector<TestJob>& jobs, const Mix& mix, std::uint64_t rounds) const
  {
    const auto work = [&] { return text_of(times_of(platform_, jobs, mix, rounds)); };
    return times_from(run_in_child(work, Seconds(60)).output_or_throw());
  }

 private:
  const Platform& platform_;
};

/// Loads a platform in a process of its own and runs checks there. They return what failed.
inline void on_platform(PlatformFile& file, const std::function<std::string(const MixRuns&)>& checks)
{
  const auto work = [&] {
    const Platform platform = file.load();
    return checks(MixRuns(platform));
  };
  EXPECT_EQ(run_in_child(work, Seconds(300)).output_or_throw(), "");
}

/// "" if the values are equal to 1e-9, else a line with the values and what they are of.
inline std::string differs(double found, double expected, const std::string& what)
{
  const bool equal = std::abs(found - expected) <= 1e-9 * std::max(1.0, std::abs(expected));
  return equal ? "" : fmt::format("{}: {:.12g} is not {:.12g}\n", what, found, expected);
}

}  // namespace isobar::sim
