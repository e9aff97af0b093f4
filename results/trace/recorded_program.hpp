#pragma once

#include "core/program/program.hpp"
#include "results/trace/trace_file.hpp"

#include <memory>

namespace isobar::results {

/// The program that a trace executed, from its first step. Holds every instruction. Its collectives have their ends in
/// the order of ranks, since a trace does not record their ring.
/// @throws InputError when instructions of the step are missing, do not match at the ends of a channel or deadlock.
std::unique_ptr<const Program> recorded_program(const TraceFile& trace);

}  // namespace isobar::results
