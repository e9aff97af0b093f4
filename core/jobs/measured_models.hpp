#pragma once

#include "core/jobs/job.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace isobar {

/// The models whose steps and start costs Muri's authors measured on 8 V100 a node (SIGCOMM 2022; the traces of
/// workloads/jobs).
const std::vector<std::string>& measured_models();

/// A step of one of these models on this number of devices: measured on the next larger of 1, 2, 4, 8, 16 and 32
/// devices that has a measurement, at most on 32.
JobStepTimes measured_step(const std::string& model, std::size_t devices);

/// The time that a model of this name takes to start on that number of devices, chosen likewise; none for other names.
std::optional<Seconds> measured_start_cost(const std::string& model, std::size_t devices);

}  // namespace isobar
