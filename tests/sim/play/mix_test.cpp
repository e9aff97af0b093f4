#include "sim/play/simulation.hpp"
#include "tests/support/mixes.hpp"
#include "tests/support/simulated.hpp"
#include "tests/support/thrown_message.hpp"
#include "tests/support/unit_devices.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

// Closed forms of jobs that compute for c_j and then communicate for m_j: docs/costs.md, "Jobs that share devices".
namespace isobar::sim::mix_test {
namespace {

/// Devices a and b with a link of 1 GB/s each way.
void pair_of_devices(PlatformFile& file)
{
  two_hosts(file, "1GBps", "0s");
}

struct Sizes {
  double compute;
  double transfer;
};

/// 1 to `most` quarter seconds: bytes and halves of them are whole.
std::vector<Sizes> random_sizes(std::mt19937& random, std::size_t jobs)
{
  std::vector<Sizes> sizes;
  const auto quarters = [&] { return 0.25 * static_cast<double>(1 + random() % 16); };
  for (std::size_t job = 0; job < jobs; ++job) sizes.push_back({quarters(), quarters()});
  return sizes;
}

std::vector<TestJob> jobs_of(const std::vector<Sizes>& sizes)
{
  std::vector<TestJob> jobs;
  for (const auto& job : sizes) jobs.push_back(lockstep(job.compute, job.transfer));
  return jobs;
}

double bound_of(const std::vector<Sizes>& sizes)
{
  double compute = 0;
  double transfer = 0;
  double longest = 0;
  for (const auto& job : sizes) {
    compute += job.compute;
    transfer += job.transfer;
    longest = std::max(longest, job.compute + job.transfer);
  }
  return std::max({compute, transfer, longest});
}

/// The time of a flow shop of two machines, in this order.
double flow_shop(const std::vector<Sizes>& sizes)
{
  double longest = 0;
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    double path = 0;
    for (std::size_t i = 0; i <= k; ++i) path += sizes[i].compute;
    for (std::size_t i = k; i < sizes.size(); ++i) path += sizes[i].transfer;
    longest = std::max(longest, path);
  }
  return longest;
}

TEST(Mix, StrictRotationTakesTheLargestOfTheSumsAndTheLongestJob)
{
  PlatformFile file;
  pair_of_devices(file);
  on_platform(file, [](const MixRuns& run) {
    std::string faults;
    std::mt19937 random(1);
    for (std::size_t i = 0; i < 60; ++i) {
      const auto sizes = random_sizes(random, 1 + i % 5);
      constexpr std::uint64_t rounds = 12;
      const auto times = run(jobs_of(sizes), mix_of(sizes.size()), rounds);
      faults += differs(times.total, (rounds - 1) * bound_of(sizes) + flow_shop(sizes), fmt::format("total of {}", i));
      faults += differs(times.round(), bound_of(sizes), fmt::format("round of {}", i));
    }
    return faults;
  });
}

TEST(Mix, ConservingTurnsAreTheStrictOnesWhereLinksAreFifo)
{
  PlatformFile file;
  pair_of_devices(file);
  on_platform(file, [](const MixRuns& run) {
    std::string faults;
    std::mt19937 random(2);
    for (std::size_t i = 0; i < 30; ++i) {
      const auto sizes = random_sizes(random, 2 + i % 4);
      const auto strict = run(jobs_of(sizes), mix_of(sizes.size()), 8);
      const auto conserving = run(jobs_of(sizes), mix_of(sizes.size(), Discipline::Conserving), 8);
      if (strict.ends != conserving.ends) faults += fmt::format("mix {} differs\n", i);
    }
    return faults;
  });
}

TEST(Mix, OverlapOfAJobWithItselfShortensOnlyItsOwnStep)
{
  PlatformFile file;
  pair_of_devices(file);
  on_platform(file, [](const MixRuns& run) {
    std::string faults;
    for (const std::uint64_t buckets : {1U, 2U, 4U}) {
      for (const double transfer : {0.5, 1.0, 2.0, 4.0}) {
        const double forward = 0.5;
        const double backward = 1;
        const double parts = static_cast<double>(buckets);
        const double exposed = std::max(transfer / parts, transfer - backward * (parts - 1) / parts);
        const TestJob job = lockstep(forward + backward, transfer, {"a", "b"}, buckets, backward);
        const std::string what = fmt::format("{} buckets of {} s", buckets, transfer);
        faults += differs(run({job}, mix_of(1), 6).round(), forward + backward + exposed, "alone, " + what);
        const auto both = run({job, lockstep(1, 0.75)}, mix_of(2), 40);
        faults += differs(both.round(), std::max({2.5, transfer + 0.75, 1.5 + exposed, 1.75}), what);
      }
    }
    return faults;
  });
}

TEST(Mix, MoreTurnsOfOneJobHideNothingMore)
{
  PlatformFile file;
  pair_of_devices(file);
  on_platform(file, [](const MixRuns& run) {
    std::string faults;
    std::mt19937 random(3);
    for (std::size_t i = 0; i < 12; ++i) {
      const auto sizes = random_sizes(random, 2);
      const double alone = sizes[0].compute + sizes[0].transfer;
      for (const std::uint64_t turns : {1U, 2U, 3U}) {
        Mix mix = mix_of(2);
        mix.turns = {{0, turns}, {1, 1}};
        constexpr std::uint64_t rounds = 10;
        const auto times = run(jobs_of(sizes), mix, rounds);
        const double round = (times.ends[1].back() - times.ends[1].front()) / (rounds - 1);
        faults += differs(round, bound_of(sizes) + static_cast<double>(turns - 1) * alone,
                          fmt::format("{} turns of ({}, {}) for one of ({}, {})", turns, sizes[0].compute,
                                      sizes[0].transfer, sizes[1].compute, sizes[1].transfer));
      }
    }
    return faults;
  });
}

TEST(Mix, AnIdenticalPairGainsTheSmallerPartOfItsStep)
{
  PlatformFile file;
  pair_of_devices(file);
  on_platform(file, [](const MixRuns& run) {
    std::string faults;
    for (const double transfer : {0.1, 0.2, 0.5, 1.0, 2.0, 4.0}) {
      const TestJob job = lockstep(1, transfer);
      const double two = run({job, job}, mix_of(2), 6).round();
      const double three = run({job, job, job}, mix_of(3), 6).round();
      const double speedup = 1 + std::min(transfer, 1 / transfer);
      faults += differs(2 * (1 + transfer) / two, speedup, fmt::format("{}", transfer));
      faults += differs(3 * (1 + transfer) / three, speedup, fmt::format("three of {}", transfer));
    }
    return faults;
  });
}

TEST(Mix, UpdatesWhoseParametersAreGatheredRunOutsideTurns)
{
  // 2 s of computation, 1 s of sync, 0.5 s of updates, 1 s of gathers, which the next step waits for.
  const auto divided = [] {
    auto program = std::make_shared<ListedProgram>(2);
    const std::size_t sync = program->connect({{0, "sync"}, {1, "sync"}});
    const std::size_t gather = program->connect({{0, "gather"}, {1, "gather"}});
    const auto lane_of = [&](std::size_t channel) { return program->channels().at(channel).ends[0].lane; };
    for (const std::size_t rank : {0U, 1U}) {
      program->compute(rank, Seconds(2), Wait{lane_of(gather), 1, 1});
      program->testing_support::EditableProgram::compute(rank, Opcode::Update, 0, 0.5, Wait{lane_of(sync), 0, 1});
    }
    const auto add = [&](std::size_t channel, const Waits& waits) {
      program->testing_support::EditableProgram::collective(channel, Opcode::AllReduce, Payload::ParameterGradient, 1e9,
                                                            waits);
    };
    add(sync, after_compute(1));
    add(gather, after_compute(2));
    return TestJob{program, {"a", "b"}};
  };
  PlatformFile file;
  pair_of_devices(file);
  on_platform(file, [&](const MixRuns& run) {
    const auto times = run({divided(), divided()}, mix_of(2), 12);
    // In turns that hold the device from the updates to the computation: 2 x (0.5 + 1 + 2). Here an update and a
    // computation share the device for a second, and the next computation waits half a second for its parameters.
    return differs(times.round(3, 9), 6, "round of two jobs that take 4.5 s each alone");
  });
}

TEST(Mix, FairLinksLoseWhereJobsDiffer)
{
  PlatformFile file;
  pair_of_devices(file);
  on_platform(file, [](const MixRuns& run) {
    std::string faults;
    const auto round = [&](const std::vector<TestJob>& jobs, LinkSharing links) {
      return run(jobs, mix_of(jobs.size(), Discipline::Strict, links), 50).round(21, 40);
    };
    const std::vector<TestJob> unlike = {lockstep(1, 1), lockstep(0.5, 2)};
    faults += differs(round(unlike, LinkSharing::Fifo), 3, "fifo");
    faults += differs(round(unlike, LinkSharing::Fair), 3.5, "fair");
    const std::vector<TestJob> alike = {lockstep(1, 0.5), lockstep(1, 0.5)};
    faults += differs(round(alike, LinkSharing::Fair), 2, "alike, fair");
    return faults;
  });
}

TEST(Mix, JobsOnTheirOwnDevicesShareALinkByTurnsOrFairly)
{
  PlatformFile file;
  for (const char* host : {"a", "b", "c", "d"}) file.device(host, "1Gf");
  file.link("there", "1GBps", "0s");
  file.link("back", "1GBps", "0s");
  for (const auto& [from, to] : {std::pair{"a", "b"}, std::pair{"c", "d"}}) {
    file.route(from, to, {"there"});
    file.route(to, from, {"back"});
  }
  on_platform(file, [](const MixRuns& run) {
    std::string faults;
    const auto steps = [&](Sizes one, Sizes other, LinkSharing links) {
      const std::vector<TestJob> jobs = {lockstep(one.compute, one.transfer),
                                         lockstep(other.compute, other.transfer, {"c", "d"})};
      Mix mix = mix_of(2, Discipline::Strict, links);
      mix.jobs[1].steps = other.compute < one.compute ? 120 : 60;
      const auto times = run(jobs, mix, 60);
      std::vector<double> result;  // mean over a common multiple of periods
      for (const auto& ends : times.ends) result.push_back((ends[50] - ends[10]) / 40);
      return result;
    };
    const auto alike_fair = steps({1, 0.5}, {1, 0.5}, LinkSharing::Fair);
    const auto alike_fifo = steps({1, 0.5}, {1, 0.5}, LinkSharing::Fifo);
    for (const std::size_t job : {0U, 1U}) {
      faults += differs(alike_fair[job], 2, "alike, fair");
      faults += differs(alike_fifo[job], 1.5, "alike, fifo");
    }
    const auto fair = steps({3, 1}, {1, 1}, LinkSharing::Fair);
    faults += differs(fair[0], 5, "(3, 1), fair");
    faults += differs(fair[1], 2.5, "(1, 1), fair");
    const auto fifo = steps({3, 1}, {1, 1}, LinkSharing::Fifo);
    faults += differs(fifo[0], 4, "(3, 1), fifo");
    faults += differs(fifo[1], 2, "(1, 1), fifo");
    return faults;
  });
}

/// A 1F1B pipeline of 1 s forward and 2 s backward per stage, whose transfers take no time.
TestJob pipeline(std::size_t stages, std::uint64_t microbatches)
{
  const Workload workload = equal_layers(stages, Bytes(0), Bytes(0));
  const auto hosts = names(stages);
  return {testing_support::program_at(FlopsPerSecond(1e9),
                                      one_layer_per_device(hosts, ChainSchedule::OneForwardOneBackward, microbatches),
                                      workload),
          hosts};
}

TEST(Mix, PipelinesFillEachOthersBubblesInstructionByInstruction)
{
  PlatformFile file;
  chain_of_devices(file, 8, "1GBps", "0s");
  on_platform(file, [](const MixRuns& run) {
    std::string faults;
    const auto round = [&](std::size_t stages, std::size_t jobs) {
      Mix mix = mix_of(jobs, Discipline::Conserving);
      mix.hand_over = HandOver::Instruction;
      return run(std::vector<TestJob>(jobs, pipeline(stages, 8)), mix, 20).round(10, 15);
    };
    // All durations are whole seconds, so that who asks first is often a matter of the order of equal times.
    const auto lies_in = [](double time, double bound, double most) {
      return time >= bound && time <= most ? "" : fmt::format("{} is not in {} to {}\n", time, bound, most);
    };
    faults += differs(round(4, 1), 33, "4 stages, alone");
    faults += lies_in(round(4, 2), 48, 57);  // alone, one after the other: 66
    faults += lies_in(round(4, 3), 72, 73);
    faults += lies_in(round(8, 2), 48, 69);
    faults += lies_in(round(8, 3), 72, 73);
    return faults;
  });
}

TEST(Mix, ATransferSlowsDownTheComputationsOfOtherJobs)
{
  PlatformFile file;
  pair_of_devices(file);
  on_platform(file, [](const MixRuns& run) {
    TestJob job = lockstep(1, 0.5);
    job.interference = 1.25;
    return differs(run({job, job}, mix_of(2), 10).round(), 2 * (1 + 0.5 * (1 - 1 / 1.25)), "compute-bound pair");
  });
}

TEST(Mix, WithoutADisciplineJobsShareADeviceEvenly)
{
  PlatformFile file;
  pair_of_devices(file);
  on_platform(file, [](const MixRuns& run) {
    const auto times = run({lockstep(1, 0), lockstep(2, 0)}, mix_of(2, Discipline::None), 1);
    return differs(times.ends[0][0], 2, "1 s beside 2 s") + differs(times.ends[1][0], 3, "2 s beside 1 s");
  });
}

TEST(Mix, AJobThatJoinsWaitsForANewRoundUnlessTurnsAreConserving)
{
  PlatformFile file;
  pair_of_devices(file);
  on_platform(file, [](const MixRuns& run) {
    std::string faults;
    Mix mix = mix_of(2);
    mix.jobs[0].steps = 4;
    mix.jobs[1].start = Seconds(5);
    mix.jobs[1].steps = 1;
    const std::vector<TestJob> jobs = {lockstep(2, 2), lockstep(1, 1)};
    // The first job computes from 4 to 6 and from 8 to 10 s. The other one has a turn after that of the next round.
    const auto strict = run(jobs, mix, 1);
    faults += differs(strict.ends[1][0], 13, "strict");
    faults += differs(strict.ends[0][3], 16, "the rest of a job whose partner has ended");
    mix.discipline = Discipline::Conserving;
    faults += differs(run(jobs, mix, 1).ends[1][0], 9, "conserving");
    return faults;
  });
}

TEST(Mix, AMixOfOneJobIsThatJobAlone)
{
  PlatformFile file;
  chain_of_devices(file, 4, "1GBps", "1ms");
  on_platform(file, [](const MixRuns& run) {
    Mix alone = mix_of(1, Discipline::None, LinkSharing::Fair);
    const Workload workload = equal_layers(4, Bytes(3e8), Bytes(2e8));
    const TestJob job = {
        testing_support::program_at(FlopsPerSecond(1e9),
                                    one_layer_per_device(names(4), ChainSchedule::OneForwardOneBackward, 6), workload),
        names(4)};
    const auto expected = run({job}, alone, 4);
    std::string faults;
    for (const Discipline discipline : {Discipline::Strict, Discipline::Conserving}) {
      for (const HandOver hand_over : {HandOver::Step, HandOver::Instruction}) {
        Mix mix = mix_of(1, discipline);
        mix.hand_over = hand_over;
        if (run({job}, mix, 4).ends != expected.ends) faults += fmt::format("{} differs\n", name_of(discipline));
      }
    }
    return faults;
  });
}

TEST(Mix, NoJobWaitsLongerThanTheTurnsOfTheOthers)
{
  PlatformFile file;
  pair_of_devices(file);
  on_platform(file, [](const MixRuns& run) {
    std::string faults;
    std::mt19937 random(4);
    for (std::size_t i = 0; i < 40; ++i) {
      const auto sizes = random_sizes(random, 2 + i % 3);
      const auto times = run(jobs_of(sizes), mix_of(sizes.size(), Discipline::Conserving), 8);
      double all = 0;
      for (const auto& job : sizes) all += job.compute;
      for (std::size_t job = 0; job < sizes.size(); ++job) {
        const double others = all - sizes[job].compute;
        if (times.longest_wait[job] > others + 1e-9) {
          faults += fmt::format("{} waits {} s for {} s\n", job, times.longest_wait[job], others);
        }
      }
    }
    return faults;
  });
}

TEST(Mix, StrictTurnsOfInstructionsThatWaitForEachOtherAreAFaultOfTheMix)
{
  PlatformFile file;
  two_hosts(file, "1GBps", "0s");
  const auto work = [&] {
    const Platform platform = file.load();
    // On device a, job a computes twice before job b's result from device b is there, which waits for job a.
    const auto one = std::make_shared<ListedProgram>(2);
    one->compute(0, Seconds(1));
    one->compute(0, Seconds(1));
    one->transfer(0, 1, Bytes(1e6), after_compute(2));
    one->compute(1, Seconds(1), Wait{one->receive_lane(0, 1), 0, 1});
    const auto other = std::make_shared<ListedProgram>(2);
    other->compute(0, Seconds(1));
    other->transfer(0, 1, Bytes(1e6), after_compute(1));
    other->compute(1, Seconds(1), Wait{other->receive_lane(0, 1), 0, 1});
    Mix mix = mix_of(2);
    mix.hand_over = HandOver::Instruction;
    return message_of([&] { times_of(platform, {{one, {"a", "b"}}, {other, {"b", "a"}}}, mix, 2); });
  };
  EXPECT_EQ(run_in_child(work, Seconds(60)).output_or_throw(),
            "InputError device a is kept for job b, and job a can compute there only after it, so that no job "
            "continues; set discipline to conserving, or hand_over to step");
}

/// Four devices whose transfers share their links up and down.
void star_of_devices(PlatformFile& file)
{
  for (const auto& host : names(4)) {
    file.device(host, "1Gf");
    file.link(host + "_up", "1GBps", "0.1ms");
    file.link(host + "_down", "1GBps", "0.1ms");
  }
  for (const auto& from : names(4)) {
    for (const auto& to : names(4)) {
      if (from != to) file.route(from, to, {from + "_up", to + "_down"});
    }
  }
}

struct RandomJob {
  TestJob job;
  std::vector<std::pair<std::string, double>> compute;  // by device, per step
};

/// A lockstep job, or a pipeline, on two or three devices.
RandomJob random_job(std::mt19937& random)
{
  auto hosts = names(4);
  std::shuffle(hosts.begin(), hosts.end(), random);
  hosts.resize(2 + random() % 2);
  const auto seconds = [&] { return 1e-3 * static_cast<double>(1 + random() % 2000); };
  RandomJob result;
  if (random() % 3 > 0) {
    const auto program = std::make_shared<ListedProgram>(hosts.size());
    std::vector<std::size_t> ranks(hosts.size());
    std::iota(ranks.begin(), ranks.end(), std::size_t{0});
    program->collective(Opcode::AllReduce, ranks, Bytes(1e9 * seconds()), after_compute(1));
    const double compute = seconds();
    for (const std::size_t rank : ranks) {
      program->compute(rank, Seconds(compute), Wait{program->sync_lane(rank, ranks), 1, 1});
      result.compute.emplace_back(hosts[rank], compute);
    }
    result.job = {program, hosts};
    return result;
  }
  const std::uint64_t microbatches = 1 + random() % 4;
  Workload workload = equal_layers(hosts.size(), Bytes(1e8 * seconds()), Bytes(1e8 * seconds()));
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const double forward = seconds();
    workload.layers[i].forward = Flops(1e9 * forward);
    workload.layers[i].backward = Flops(2e9 * forward);
    result.compute.emplace_back(hosts[i], 3 * forward * static_cast<double>(microbatches));
  }
  result.job = {testing_support::program_at(
                    FlopsPerSecond(1e9),
                    one_layer_per_device(hosts, ChainSchedule::OneForwardOneBackward, microbatches), workload),
                hosts};
  return result;
}

// Under a sanitizer a process of its own for each simulation takes long to begin.
#ifdef __SANITIZE_ADDRESS__
constexpr int random_mixes = 100;
#else
constexpr int random_mixes = 1000;
#endif

TEST(Mix, RandomMixesNeverDeadlockAndNeverTakeLessThanTheirBound)
{
  PlatformFile file;
  star_of_devices(file);
  on_platform(file, [](const MixRuns& run) {
    std::string faults;
    std::mt19937 random(5);
    constexpr std::uint64_t rounds = 4;
    for (int i = 0; i < random_mixes; ++i) {
      const std::size_t count = 2 + random() % 3;
      Mix mix = mix_of(count, static_cast<Discipline>(random() % 3), static_cast<LinkSharing>(random() % 2));
      const bool by_instruction = mix.discipline == Discipline::Conserving && random() % 2 == 0;
      mix.hand_over = by_instruction ? HandOver::Instruction : HandOver::Step;
      std::vector<TestJob> jobs;
      std::map<std::string, double> busy;
      for (std::size_t job = 0; job < count; ++job) {
        const RandomJob drawn = random_job(random);
        jobs.push_back(drawn.job);
        for (const auto& [device, compute] : drawn.compute) busy[device] += static_cast<double>(rounds) * compute;
      }
      const auto times = run(jobs, mix, rounds);
      double bound = 0;
      for (const auto& [device, compute] : busy) bound = std::max(bound, compute);
      for (const double bytes : times.link_bytes) bound = std::max(bound, 1e-9 * bytes);
      const std::size_t one = random() % count;
      const auto alone = run({jobs[one]}, mix_of(1), rounds);
      bound = std::max(bound, alone.total);
      if (times.total < (1 - 1e-9) * bound) {
        faults += fmt::format("mix {}, {} {} {}: {} s, bound {} s\n", i, name_of(mix.discipline),
                              name_of(mix.hand_over), name_of(mix.links), times.total, bound);
      }
    }
    return faults;
  });
}

}  // namespace
}  // namespace isobar::sim::mix_test
