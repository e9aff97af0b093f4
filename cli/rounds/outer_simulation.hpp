#pragma once

#include "cli/inputs.hpp"
#include "core/outer/outer.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace isobar::cli {

/// The inputs of a plan of rounds: those of its workers' plans, without the devices that all of them leave out.
Inputs load_rounds(const InputOptions& options, const OuterPlan& plan, const std::string& file);

/// The cluster of a worker's plan, of the devices of such inputs.
Cluster cluster_of_worker(const Plan& worker, const Cluster& cluster);

/// Refuses a plan of rounds that does not hold on its inputs: a worker's plan (check_plan), outer state that does not
/// fit in memory, or a prediction or bound that is not what these inputs give.
/// @throws InputError with every fault.
void check_rounds(const OuterPlan& plan, const std::string& file, const Inputs& inputs);

/// The faults of check_rounds, a line each; none for a plan that holds.
std::vector<std::string> faults_of_rounds(const OuterPlan& plan, const Inputs& inputs);

/// Simulates rounds with all their steps in this process and returns the result as JSON (isobar-rounds-result/1,
/// docs/formats/rounds.md). The last round counts, since in the first one nothing is on its way from one before. Can be
/// called once per process. `trace_file`: the Chrome trace to write, or "".
/// @throws InputError as sim::simulate does.
std::string simulate_rounds(const Inputs& inputs, const OuterPlan& plan, std::uint64_t rounds,
                            const std::string& trace_file);

/// Such a result for people.
std::string summary_of_rounds(const std::string& result_json);

}  // namespace isobar::cli
