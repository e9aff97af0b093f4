#pragma once

#include "exec/run/run.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

/// How tests train, and how they compare losses.
namespace isobar::exec {

inline constexpr std::uint64_t seed = 7;

inline RunOptions options_for(std::uint64_t steps)
{
  RunOptions options;
  options.steps = steps;
  options.seed = seed;
  options.limits = time_limits(Seconds(0), Seconds(60));
  return options;
}

enum class Way { InProcess, Tcp };

/// Each case by one of the two ways, in turn, so that as many runs as there are cases test all cases and both ways.
template <typename Case>
std::vector<std::tuple<Case, Way>> by_one_way_each(const std::vector<Case>& cases)
{
  std::vector<std::tuple<Case, Way>> ways;
  for (const Case& one : cases) ways.emplace_back(one, ways.size() % 2 == 0 ? Way::InProcess : Way::Tcp);
  return ways;
}

inline MeasuredRun run_by(
    Way way, const Workload& workload, const Plan& plan, const Program& program, const RunOptions& options,
    const StepEnded& step_ended = [](const StepReport&) {})
{
  return (way == Way::InProcess ? run_in_process : run_in_processes)(workload, plan, program, options, step_ended);
}

inline void expect_close(const std::vector<double>& losses, const std::vector<double>& expected, double relative)
{
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_LE(std::abs(losses[i] - expected[i]), relative * std::abs(expected[i])) << "step " << i;
  }
}

}  // namespace isobar::exec
