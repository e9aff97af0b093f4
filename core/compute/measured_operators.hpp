#pragma once

#include "core/compute/operator_table.hpp"

#include <string>

namespace isobar::compute {

/// Products and fused attention in a dtype of 16 bits that were measured on a type of device, as DeviceConstants names
/// it; null where none were. Where rows are of several operators together, or of first calls, only constants were
/// fitted. Source: results/fidelity/operators.
const OperatorTable* measured_operators(const std::string& type, DType dtype);

}  // namespace isobar::compute
