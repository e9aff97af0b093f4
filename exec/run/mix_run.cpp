#include "exec/run/mix_run.hpp"

#include "core/base/child_process.hpp"
#include "core/base/interrupt.hpp"
#include "core/base/threads.hpp"
#include "core/errors.hpp"
#include "exec/control/rank_turn.hpp"
#include "exec/launch/plan_ranks.hpp"
#include "exec/watch/rank_failures.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace isobar::exec {

namespace {

using Json = nlohmann::json;

/// A rank of a job.
struct JobRank {
  std::size_t job = 0;
  std::size_t rank = 0;
};

/// The devices of a mix, and who is on them.
struct MixDevices {
  std::vector<std::string> names;                  // in the order of the jobs
  std::vector<std::vector<std::size_t>> of_ranks;  // by job and rank
  std::vector<std::vector<JobRank>> ranks;         // by device

  explicit MixDevices(const std::vector<MixedRun>& jobs)
  {
    for (std::size_t job = 0; job < jobs.size(); ++job) {
      auto& devices = of_ranks.emplace_back();
      for (const auto& name : devices_of_ranks(*jobs[job].plan)) {
        const auto device = static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
        if (device == names.size()) {
          names.push_back(name);
          ranks.emplace_back();
        }
        ranks[device].push_back({job, devices.size()});
        devices.push_back(device);
      }
    }
  }
};

/// Whether collectives of the jobs follow each other in one order: those over a link that one job has at a time, and
/// those of NCCL, which asks for one order over all communicators.
bool orders_collectives(const Mix& mix, const std::vector<MixedRun>& jobs)
{
  const bool by_nccl = std::any_of(jobs.begin(), jobs.end(),
                                   [](const MixedRun& job) { return job.options.transport != TransportChoice::Tcp; });
  return mix.discipline != Discipline::None && (mix.links == LinkSharing::Fifo || by_nccl);
}

DeviceTurns::Jobs places_of(const std::vector<MixedRun>& jobs, const MixDevices& devices)
{
  DeviceTurns::Jobs result;
  result.places = devices.of_ranks;
  result.devices = devices.names.size();
  for (const auto& job : jobs) {
    auto& collectives = result.collectives.emplace_back();
    for (std::size_t rank = 0; rank < job.program->ranks(); ++rank) {
      collectives.push_back(collectives_of_turn(*job.program, rank));
    }
  }
  return result;
}

/// Turns that wait for one job's next instruction while its other devices wait for theirs would never come.
void require_progress(const Mix& mix, const MixDevices& devices)
{
  if (mix.discipline != Discipline::Strict || mix.hand_over != HandOver::Instruction) return;
  for (std::size_t job = 0; job < mix.jobs.size(); ++job) {
    if (devices.of_ranks[job].size() == 1) continue;
    throw InputError(
        fmt::format("hand_over: instruction, in strict rotation, waits for ever where a job has several "
                    "devices, as {} has; use step, or discipline conserving",
                    mix.jobs[job].name));
  }
}

class MixRunner {
 public:
  using Failed = std::function<void(std::size_t, const Failure&)>;

  MixRunner(const Mix& mix, std::vector<MixedRun> jobs, MixProcesses processes, const Failed& failed)
      : jobs_(std::move(jobs)),
        processes_(processes),
        failed_(failed),
        devices_(jobs_),
        turns_(mix, places_of(jobs_, devices_), orders_collectives(mix, jobs_)),
        events_(devices_.names.size()),
        outcomes_(jobs_.size()),
        parts_(jobs_.size())
  {
    const Seconds round = predicted_round(mix, jobs_);
    for (std::size_t job = 0; job < jobs_.size(); ++job) {
      parts_[job] = {&turns_, processes == MixProcesses::Job ? nullptr : &events_, job, devices_.of_ranks[job], round};
      jobs_[job].options.turns = &parts_[job];
    }
  }

  std::vector<JobOutcome> run_device(const MixPlace& place)
  {
    play_threads(devices_.ranks.at(place.device).size(), [&](std::size_t i) {
      const auto [job, rank] = devices_.ranks[place.device][i];
      return std::pair(job, [this, &place, job, rank] { play_among_machines(place, job, rank); });
    });
    return std::move(outcomes_);
  }

  std::vector<JobOutcome> run()
  {
    processes_ == MixProcesses::None ? run_threads() : run_processes();
    return std::move(outcomes_);
  }

 private:
  void run_threads()
  {
    play_threads(jobs_.size(), [&](std::size_t job) {
      return std::pair(job, [this, job] {
        const MixedRun& own = jobs_[job];
        auto& outcome = outcomes_[job];
        outcome.measured = run_in_process(*own.workload, *own.plan, *own.program, own.options, own.step_ended);
        outcome.steps_done = outcome.measured->first_step() + outcome.measured->steps();
      });
    });
  }

  void play_among_machines(const MixPlace& place, std::size_t job, std::size_t rank)
  {
    const MixedRun& own = jobs_[job];
    RankPlace rank_place{rank, {}, place.secret};
    for (const std::size_t device : devices_.of_ranks[job]) {
      Endpoint endpoint = place.endpoints.at(device);
      endpoint.port = static_cast<std::uint16_t>(endpoint.port + job);
      rank_place.endpoints.push_back(std::move(endpoint));
    }
    auto outcome = run_rank(*own.workload, *own.plan, *own.program, std::move(rank_place), own.options, own.step_ended);
    outcomes_[job].steps_done = outcome.steps_done;
    outcomes_[job].measured = std::move(outcome.measured);
  }

  /// Plays jobs, or the rank of each on a device, in a thread each. `part(i)`: which job, and its work.
  template <typename Part>
  void play_threads(std::size_t parts, Part part)
  {
    std::mutex mutex;
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < parts; ++i) {
      const auto [job, work] = part(i);
      const auto ended = [this, job = job, &mutex](const std::exception* error) {
        turns_.leave(job);
        if (error == nullptr) return;
        const std::lock_guard lock(mutex);
        fail(job, failure_of(*error));
      };
      const auto play = [work = work, ended] {
        try {
          work();
          ended(nullptr);
        } catch (const std::exception& error) {
          ended(&error);
        }
      };
      try {
        threads.push_back(start_thread(play));
      } catch (const EnvironmentError& error) {
        ended(&error);
      }
    }
  }

  void run_processes()
  {
    for (const auto& job : jobs_) {
      ranks_.push_back(std::make_unique<LocalRanks>(*job.workload, *job.plan, *job.program, job.options));
      failures_.emplace_back(names_of_ranks(*job.plan));
      ends_.emplace_back(job.program->ranks());
    }
    std::vector<std::vector<JobRank>> of_processes;
    for (std::size_t device = 0; device < devices_.ranks.size(); ++device) {
      if (processes_ == MixProcesses::Device) {
        of_processes.push_back(devices_.ranks[device]);
      } else {
        for (const JobRank& rank : devices_.ranks[device]) of_processes.push_back({rank});
      }
    }
    std::vector<std::function<std::string()>> work;
    for (const auto& ranks : of_processes) {
      work.emplace_back([this, &ranks] {
        if (jobs_.front().options.stop) catch_interrupts();  // a request to one rank stops all of them gracefully
        return play(ranks);
      });
    }
    const auto ended = [&](std::size_t process, const ChildResult& result) { end(of_processes[process], result); };
    const auto are_of_one_job = [&](std::size_t one, std::size_t other) {
      return processes_ == MixProcesses::Job && of_processes[one].front().job == of_processes[other].front().job;
    };
    run_in_children(work, work.size(), no_limit, ended, grace_after_fault, are_of_one_job);
  }

  /// In a child: plays ranks of several jobs, and tells how each ended.
  std::string play(const std::vector<JobRank>& ranks)
  {
    for (std::size_t job = 0; job < jobs_.size(); ++job) {
      std::vector<std::size_t> own;
      for (const JobRank& each : ranks) {
        if (each.job == job) own.push_back(each.rank);
      }
      ranks_[job]->keep(own);
    }
    std::vector<Json> ends(ranks.size());
    const auto play_one = [&](std::size_t i) {
      const auto [job, rank] = ranks[i];
      try {
        ends[i] = {{"report", report_to_json(ranks_[job]->play(rank, jobs_[job].step_ended))}};
      } catch (const std::exception& error) {
        ends[i] = {{"failure", serialize_failure(failure_of(error))}};
      }
      turns_.leave(job, devices_.of_ranks[job][rank]);
    };
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 1; i < ranks.size(); ++i) {
        threads.push_back(start_thread([&play_one, i] { play_one(i); }));
      }
      play_one(0);
    }
    return Json(ends).dump();
  }

  /// In this process, once a child has ended: its jobs leave its device, whatever ended it.
  void end(const std::vector<JobRank>& ranks, const ChildResult& result)
  {
    const Json ends = result.failure ? Json() : Json::parse(result.output);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const auto [job, rank] = ranks[i];
      turns_.leave(job, devices_.of_ranks[job][rank]);
      ChildResult& own = ends_[job][rank].emplace();
      if (result.failure) {
        own.failure = result.failure;
      } else if (ends[i].contains("failure")) {
        own.failure = parse_failure(ends[i]["failure"].get<std::string>());
      } else {
        own.output = ends[i]["report"];
      }
      failures_[job].ended(rank, own);
      if (std::all_of(ends_[job].begin(), ends_[job].end(), [](const auto& each) { return each.has_value(); })) {
        end_job(job);
      }
    }
  }

  /// Once all ranks of a job have ended.
  void end_job(std::size_t job)
  {
    try {
      failures_[job].throw_if_any();
    } catch (const std::exception& error) {
      return fail(job, failure_of(error));
    }
    std::vector<RankReport> reports;
    for (const auto& each : ends_[job]) reports.push_back(report_from_json(each->output));
    auto& outcome = outcomes_[job];
    outcome.measured.emplace(*jobs_[job].program, jobs_[job].options.first_step, std::move(reports));
    outcome.steps_done = outcome.measured->first_step() + outcome.measured->steps();
  }

  void fail(std::size_t job, const Failure& failure)
  {
    outcomes_[job].failure = failure;
    if (failed_) failed_(job, failure);
  }

  std::vector<MixedRun> jobs_;
  MixProcesses processes_;
  const Failed& failed_;
  MixDevices devices_;
  DeviceTurns turns_;
  TurnEvents events_;
  std::vector<JobOutcome> outcomes_;
  std::vector<JobTurns> parts_;  // by job, as are the next three
  std::vector<std::unique_ptr<LocalRanks>> ranks_;
  std::vector<RankFailures> failures_;
  std::vector<std::vector<std::optional<ChildResult>>> ends_;  // by rank
};

/// One process would have to number turns that do not follow a rotation from the beginning.
void require_known_order(const Mix& mix)
{
  if (mix.discipline == Discipline::Conserving) {
    throw InputError(
        "discipline: conserving, of devices on several machines, needs a process that numbers all turns, "
        "and each machine grants its own; use strict");
  }
  for (const auto& job : mix.jobs) {
    if (job.start == mix.jobs.front().start) continue;
    throw InputError(
        fmt::format("start_s: job {} starts later than job {}, and several machines do not agree on the "
                    "round; leave it out",
                    job.name, mix.jobs.front().name));
  }
}

}  // namespace

std::vector<std::string> devices_of_mix(const std::vector<MixedRun>& jobs)
{
  return MixDevices(jobs).names;
}

void require_executable(const Mix& mix, const std::vector<MixedRun>& jobs, bool on_several_machines)
{
  require_progress(mix, MixDevices(jobs));
  if (on_several_machines) require_known_order(mix);
}

Seconds predicted_round(const Mix& mix, const std::vector<MixedRun>& jobs)
{
  Seconds round;
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    const auto& predicted = jobs[job].plan->predicted;
    if (!predicted) return Seconds(0);
    round += static_cast<double>(steps_per_round(mix, job)) * predicted->step_time;
  }
  return round;
}

std::vector<JobOutcome> run_mix(const Mix& mix, std::vector<MixedRun> jobs, MixProcesses processes,
                                const std::function<void(std::size_t, const Failure&)>& failed)
{
  ensure(jobs.size() == mix.jobs.size(), "every job of a mix is ready");
  require_executable(mix, jobs, false);
  return MixRunner(mix, std::move(jobs), processes, failed).run();
}

std::vector<JobOutcome> run_mix_device(const Mix& mix, std::vector<MixedRun> jobs, const MixPlace& place,
                                       const std::function<void(std::size_t, const Failure&)>& failed)
{
  ensure(jobs.size() == mix.jobs.size(), "every job of a mix is ready");
  require_executable(mix, jobs, true);
  return MixRunner(mix, std::move(jobs), MixProcesses::None, failed).run_device(place);
}

}  // namespace isobar::exec
