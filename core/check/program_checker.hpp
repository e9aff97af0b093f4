#pragma once

#include "core/program/program.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace isobar {

/// What a program is for. An evaluation has forwards and no backwards or updates.
enum class ProgramUse : std::uint8_t { Training, Evaluation };

/// Most instructions of a period that a program may have to be checked.
inline constexpr std::uint64_t most_checked_instructions = std::uint64_t{1} << 22;
/// Most faults of a program that are shown.
inline constexpr std::size_t most_program_faults = 20;

/// Checks that any program, also one from a user's orders, is sound. Knows no schedule and no plan.
///
/// - Lanes and channels name each other. Lane 0 computes, the names of a rank's lanes are unique, and the ends of a
///   channel are as long as each other.
/// - Every instruction fits its lane and waits for instructions that the rank has. Those that meet at a channel agree
///   in opcode, payload, bytes, micro-batch and stage: an activation goes to the same stage or the next, a gradient to
///   the same or the one before, and the stages of a collective are the same, except of gradient facts.
/// - Every stage has, for every micro-batch, one Forward and one Backward, or one Forward, BackwardInput and
///   BackwardWeight, on one rank. Every rank with backwards of a stage has one Update of it.
/// - An untimed play ends. In it, each task comes after those that it needs, by the order of its lane or by waits: a
///   backward after its forward, both after what they receive, a send after what it sends, an Update after all
///   backwards of its stage and after its gradient sync, and the sync after those backwards.
/// - The parameter gradients of a stage on several ranks meet at collectives. Where a ReduceScatter leaves each with a
///   part, their parameters meet too: after the Update, and forwards wait for that a period later, or after the Update
///   of the period before, and forwards and backwards wait for that. If ranks exchange gradient facts, all that update
///   take part.
/// - The memory of every tier ends where it began and is never below, in the order of the untimed play.
///
/// The checks of one item are made if those before it found no fault.
/// @returns one line per fault, with rank, lane and position where it has one; at most most_program_faults lines, then
/// "and N more"; empty if the program is sound. For a program of more than most_checked_instructions, one line that
/// states the limit. O(instructions x lanes of a rank) time and memory.
std::vector<std::string> faults_of(const Program& program, ProgramUse use = ProgramUse::Training);

}  // namespace isobar
